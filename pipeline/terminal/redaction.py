"""Hides credentials in messages, logs, tags and reports. Standard library only."""

from __future__ import annotations

import functools
import os
import re
from urllib.parse import quote

_HIDDEN = "***"
_SECRET = r"password|passwd|pwd|token|secret|key|signature|sig|credential|auth"
# A password may hold slashes and at signs, so everything up to the last at sign is hidden.
_USER = re.compile(r"(\w://)(?:[^\s/:@]*:[^\s\"'<>]*|[^\s/]*)@")
_PARAMETER = re.compile(rf"(?i)([?&;][\w.-]*(?:{_SECRET})[\w.-]*=)[^&;\s\"'<>]+")
# In a DSN, a mapping or an assignment. A token or key alone is an ordinary word here.
_ASSIGNED = re.compile(
    r"(?i)((?:password|passwd|passphrase|_pwd|secret|(?:api|access|private)[_-]?key"
    r"|(?:api|access|auth|session|refresh)[_-]?token)(?:[\"']\s*:|\s*=)\s*)"
    r"(?:'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|[^\s\"'&]+)"
)
_HEADER = re.compile(
    r"(?i)(authorization[\"']?\s*[:=]\s*b?[\"']?(?:basic|bearer|token|negotiate)\s+)[^\s\"',]+"
)

# Names of variables that hold secrets, with the shortest value to hide: shorter ones may be common words.
_SHORTEST = 8
_SECRET_VARIABLES = {
    re.compile(r"(?i)(?:password|passwd|passphrase|_pwd|(?:^|_|ssh)pass)$"): 6,  # not PWD, which is a folder
    re.compile(r"(?i)(?:token|secret|apikey|(?:^|_)(?:key|pat|credentials?))$"): _SHORTEST,
}


def redact(text: str) -> str:
    """Hide user and password in addresses, secrets in their parameters, in DSNs and headers, and values of
    environment variables that are named a password, token, secret or key.
    """
    for pattern in map(_pattern_of, _secrets()):
        text = pattern.sub(_HIDDEN, text)
    text = redact_addresses(text)
    for named in (_HEADER, _ASSIGNED):
        text = named.sub(rf"\1{_HIDDEN}", text)
    return text


def redact_addresses(text: str) -> str:
    """Hide user and password in addresses, and secrets in their parameters."""
    return _PARAMETER.sub(rf"\1{_HIDDEN}", _USER.sub(rf"\1{_HIDDEN}@", text))


def printable(text: str) -> str:
    """Text from a file or library for a terminal: without credentials or control characters."""
    return "".join(letter if letter.isprintable() or letter in "\n\t" else "?" for letter in redact(text))


def _secrets() -> list[str]:
    """Secret values of environment variables, the longest first, since one may be part of another."""
    secrets = {
        value
        for name, value in os.environ.items()
        for pattern, shortest in _SECRET_VARIABLES.items()
        if pattern.search(name) and len(value) >= shortest
    }
    return sorted(secrets, key=len, reverse=True)


@functools.lru_cache(maxsize=256)
def _pattern_of(secret: str) -> re.Pattern[str]:
    """Matches the secret, also if percent-encoded in whole or in part. A short one must be a whole word."""
    written = "".join(map(_character, secret))
    return re.compile(written if len(secret) >= _SHORTEST else rf"(?<!\w){written}(?!\w)")


def _character(letter: str) -> str:
    encoded = quote(letter, safe="", errors="surrogateescape")  # a variable may hold any bytes
    if encoded == letter:
        return re.escape(letter)
    of_a_form = r"|\+" if letter == " " else ""
    return f"(?:{re.escape(letter)}|(?i:{encoded}){of_a_form})"
