"""A template for zero-shot classification: words around a text, with the label at the end."""

from __future__ import annotations

TEXT, LABEL = "{text}", "{label}"


def checked_template(template: str) -> str:
    """Return the template.

    Raises ValueError unless it has `{text}` once, and ends with one blank and `{label}`: the words of a label
    are tokenized as words that follow others.
    """
    before_label = template.removesuffix(LABEL)
    once = template.count(TEXT) == template.count(LABEL) == 1
    if not once or before_label == template or before_label.rstrip() + " " != before_label:
        raise ValueError(f"it has to have {TEXT} once, and to end with one blank and {LABEL}")
    return template


def parts_of(template: str) -> tuple[str, str]:
    """Return what stands before the text, and what between it and the label."""
    before, behind = template.removesuffix(LABEL).rstrip().split(TEXT)
    return before.rstrip(), behind


def named_by_text(labels: object) -> object:
    """Return settings whose keys that are whole numbers, as YAML reads `0:`, are the names of classes."""
    if not isinstance(labels, dict):
        return labels
    return {str(key) if type(key) is int else key: words for key, words in labels.items()}
