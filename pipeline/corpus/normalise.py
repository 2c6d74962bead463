"""Normalisation: the one place where a document's text is changed.

Steps, in this order, each a setting of `corpus.<name>.normalise`:

1. `unicode`: NFC (accents composed, nothing lost) or NFKC (also ligatures, full-width letters, ...).
2. `control_characters`: C0, delete and C1 controls become a space; tab and newline are white space, kept.
   C1 controls are what Windows quotes and dashes turn into when read as Latin-1.
3. `html_breaks`: `<br>`, `<br/>`, `<br />` become a space (a line break in IMDb's reviews).
4. `lowercase`, and the Unicode form again, as lower-casing takes some letters apart (U+0130).
5. `collapse_whitespace`: runs of white space, newlines among them, become one space; none at the ends.

With every step on, normalising twice gives what normalising once gives.
"""

from __future__ import annotations

import re
import unicodedata

from pipeline.params import Normalise

_BREAK = re.compile(r"<br\s*/?>", re.IGNORECASE)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def normalise(text: str, settings: Normalise) -> str:
    """Return `text` after the steps that `settings` asks for."""
    text = _composed(text, settings)
    if settings.control_characters:
        text = _CONTROL.sub(" ", text)
    if settings.html_breaks:
        text = _BREAK.sub(" ", text)
    if settings.lowercase:
        text = _composed(text.lower(), settings)
    if settings.collapse_whitespace:
        text = " ".join(text.split())
    return text


def _composed(text: str, settings: Normalise) -> str:
    return text if settings.unicode == "none" else unicodedata.normalize(settings.unicode, text)
