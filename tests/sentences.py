"""The figures in a sentence of the report: tests assert these, and leave its words free."""

from __future__ import annotations

import re

_NUMBER = re.compile(r"-?\d+(?:,\d{3})*(?:\.\d+)?%?")


def numbers_in(sentence: str) -> list[str]:
    """The numbers as they are spelled, in their order."""
    return _NUMBER.findall(sentence)


def without_numbers(sentence: str) -> str:
    """The sentence's words alone, for tests that what is decided otherwise is said otherwise."""
    return _NUMBER.sub("#", sentence)
