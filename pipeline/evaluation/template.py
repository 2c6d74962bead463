"""A template for zero-shot classification: words around a text, with the label at the end."""

from __future__ import annotations

TEXT, LABEL = "{text}", "{label}"


def checked_template(template: str) -> str:
    """Return the template. Raises ValueError unless it has `{text}` once and `{label}` at its end alone."""
    if template.count(TEXT) != 1 or template.count(LABEL) != 1 or not template.endswith(LABEL):
        raise ValueError(f"is {template!r}; it has to have {TEXT} once, and to end with {LABEL}")
    return template


def parts_of(template: str) -> tuple[str, str]:
    """Return what stands before the text, and what between it and the label."""
    before, behind = template.removesuffix(LABEL).rstrip().split(TEXT)
    return before.rstrip(), behind
