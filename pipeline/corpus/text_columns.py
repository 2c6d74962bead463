"""Which columns of a file hold the texts of a document."""

from __future__ import annotations

from pipeline.corpus.settings import FilesSource


def text_columns(source: FilesSource) -> list[tuple[str, str]]:
    """Return the columns of a document's texts, in their order, each after the setting that names it."""
    texts = [("text_column", source.text_column)]
    if source.text_pair_column is not None:
        texts.append(("text_pair_column", source.text_pair_column))
    return texts + [("choice_columns", column) for column in source.choice_columns or ()]
