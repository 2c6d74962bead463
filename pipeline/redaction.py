"""Text without credentials: for messages, logs, tags and reports. Standard library only."""

from __future__ import annotations

import os
import re

_HIDDEN = "***"
_SECRET = r"password|passwd|pwd|token|secret|key|signature|sig|credential|auth"
_USER = re.compile(r"(\w://)(?:[^\s/]*|[^\s/:@]*:\S*)@")  # a password may hold slashes
_PARAMETER = re.compile(rf"(?i)([?&;][\w.-]*(?:{_SECRET})[\w.-]*=)[^&;\s\"'<>]+")
_VARIABLE = re.compile(r"(?i)(?:^|_)(?:password|passwd|token|secret|key|credentials?)$")
_SHORTEST = 8  # of a variable: less would hide common words


def redact(text: str) -> str:
    """`text` without user and password in addresses, secrets among their parameters, and the values of
    environment variables that are called a password, token, secret or key.
    """
    values = {value for name, value in os.environ.items() if _VARIABLE.search(name)}
    for value in sorted(values, key=len, reverse=True):
        if len(value) >= _SHORTEST:
            text = text.replace(value, _HIDDEN)
    return _PARAMETER.sub(rf"\1{_HIDDEN}", _USER.sub(rf"\1{_HIDDEN}@", text))
