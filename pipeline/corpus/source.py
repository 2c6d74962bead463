"""The contract of a source: a corpus in its raw form, streamed in batches of rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import polars as pl

SPLITS = ("train", "validation", "test", "unlabelled")
BATCH_ROWS = 200  # ten times as many took 100 MB more with long documents


class Source(ABC):
    """A corpus in its raw form; without labels, and with training rows alone, if it does not say otherwise.

    Attributes:
        label_names: None if the corpus has no labels.
        num_texts: of a labelled document.
        splits: that the source itself gives.
        skipped: rows left out so far, by reason.
        repaired: rows changed to be usable, by reason.
        origins: rows by where they come from, of a source that knows.
    """

    label_names: tuple[str, ...] | None = None
    num_texts: int = 1
    splits: tuple[str, ...] = ("train",)

    def __init__(self) -> None:
        self.skipped, self.repaired, self.origins = Counter[str](), Counter[str](), Counter[str]()

    def label_counts(self, split: str) -> Counter[int]:
        """Count the labelled rows of each class in a split, without reading the texts."""
        return Counter()

    @abstractmethod
    def rows(self, split: str) -> Iterator[pl.DataFrame]:
        """Stream a split: the columns `text`, never null, and `label`, null if a row has none.

        The further texts of documents are in `text_1`, `text_2`, ..., never null.
        """


def row_batches(rows: Iterable[tuple[Any, ...]], num_texts: int) -> Iterator[pl.DataFrame]:
    """Put rows, each of `num_texts` texts and a label or None, into batches as `Source.rows` yields them."""
    import polars as pl

    texts = ["text", *(f"text_{number}" for number in range(1, num_texts))]
    schema = {**dict.fromkeys(texts, pl.String), "label": pl.Int32}
    iterator = iter(rows)
    while batch := list(islice(iterator, BATCH_ROWS)):
        yield pl.DataFrame(batch, schema=schema, orient="row")
