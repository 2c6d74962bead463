"""Text without credentials: for messages, logs, tags and reports. Standard library only."""

from __future__ import annotations

import functools
import os
import re
from urllib.parse import quote

_HIDDEN = "***"
_SECRET = r"password|passwd|pwd|token|secret|key|signature|sig|credential|auth"
# A password may hold slashes and at signs: all up to the last one of these is hidden.
_USER = re.compile(r"(\w://)(?:[^\s/:@]*:[^\s\"'<>]*|[^\s/]*)@")
_PARAMETER = re.compile(rf"(?i)([?&;][\w.-]*(?:{_SECRET})[\w.-]*=)[^&;\s\"'<>]+")
# Of a DSN, a mapping or an assignment. A token or key alone is an ordinary word here.
_ASSIGNED = re.compile(
    r"(?i)((?:password|passwd|passphrase|_pwd|secret|(?:api|access|private)[_-]?key"
    r"|(?:api|access|auth|session|refresh)[_-]?token)(?:[\"']\s*:|\s*=)\s*)"
    r"(?:'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|[^\s\"'&]+)"
)
_HEADER = re.compile(
    r"(?i)(authorization[\"']?\s*[:=]\s*b?[\"']?(?:basic|bearer|token|negotiate)\s+)[^\s\"',]+"
)

# PWD is a folder.
_PASSWORD_VARIABLE = re.compile(r"(?i)(?:password|passwd|passphrase|_pwd|(?:^|_|ssh)pass)$")
_KEY_VARIABLE = re.compile(r"(?i)(?:token|secret|apikey|(?:^|_)(?:key|pat|credentials?))$")
_SHORTEST_PASSWORD, _SHORTEST = 6, 8  # less would hide common words and figures


def redact(text: str) -> str:
    """`text` without user and password in addresses, secrets among their parameters, in DSNs and headers, and
    the values of environment variables that are called a password, token, secret or key.
    """
    for pattern in map(_pattern_of, _secrets()):
        text = pattern.sub(_HIDDEN, text)
    text = _USER.sub(rf"\1{_HIDDEN}@", text)
    for named in (_PARAMETER, _HEADER, _ASSIGNED):
        text = named.sub(rf"\1{_HIDDEN}", text)
    return text


def _secrets() -> list[str]:
    """Values of environment variables, the longest first: one may be part of another."""
    found = {value for name, value in os.environ.items() if len(value) >= _shortest(name)}
    return sorted(found, key=len, reverse=True)


def _shortest(name: str) -> float:
    """So long is a value of this variable that is a secret."""
    if _PASSWORD_VARIABLE.search(name):
        return _SHORTEST_PASSWORD
    return _SHORTEST if _KEY_VARIABLE.search(name) else float("inf")


@functools.lru_cache(maxsize=256)
def _pattern_of(secret: str) -> re.Pattern[str]:
    """As it is, or percent-encoded, in whole or in part. A short one has to stand as a word of its own."""
    written = "".join(map(_character, secret))
    return re.compile(written if len(secret) >= _SHORTEST else rf"(?<!\w){written}(?!\w)")


def _character(letter: str) -> str:
    encoded = quote(letter, safe="", errors="surrogateescape")  # a variable may hold any bytes
    if encoded == letter:
        return re.escape(letter)
    of_a_form = r"|\+" if letter == " " else ""
    return f"(?:{re.escape(letter)}|(?i:{encoded}){of_a_form})"
