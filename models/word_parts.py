"""The part that a token plays in a word, for encoders that read words of several tokens. Needs no torch."""

from __future__ import annotations

from enum import IntEnum


class WordPart(IntEnum):
    GOES_ON = 0  # with the word of the token before it, if there is one
    BEGINS = 1  # a word
    ALONE = 2  # a word of its own, wherever it stands: a mark such as a comma, or a special token
    BLANK = 3  # a space before a word, of which it is no character
