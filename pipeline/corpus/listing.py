"""Names and values in messages: lists cut after a few, texts after some characters."""

from __future__ import annotations

from collections.abc import Iterable


def some(items: Iterable[str], most: int = 5) -> str:
    """List the first few items and count the others."""
    listed = list(items)
    more = f" and {len(listed) - most:,} more" if len(listed) > most else ""
    return ", ".join(listed[:most]) + more


def short(text: str, most: int = 100) -> str:
    """Return the text, or its first `most` characters and an ellipsis."""
    return text if len(text) <= most else text[:most] + "…"
