"""Refuses labels that no classifier could be trained or tested on, before hours are spent on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.corpus.data_quality import alike_labels
from pipeline.corpus.listing import short, some


@dataclass(frozen=True)
class LabelCheck:
    names: tuple[str, ...] | None
    key: str

    def check(self, counts: Mapping[str, Counter[int]], wanted: Mapping[str, float]) -> None:
        """Refuse label counts by split that no classifier could be trained or tested on."""
        if self.names is None:
            return
        column = f"`{self.key}.source.label_column`"
        train = counts.get("train", Counter())
        present = [label for label, count in train.items() if count]
        if len(present) < 2:
            only = f"only the class {self.names[present[0]]!r}" if present else "no label"
            raise ValueError(
                f"{column}: {train.total():,} labelled training rows hold {only}; a classifier needs "
                "at least two classes. Choose another column, or null for a corpus without labels"
            )
        self._check_tested_labels(counts, train)
        self._check_enough_rows(train, wanted)

    def _check_tested_labels(self, counts: Mapping[str, Counter[int]], train: Counter[int]) -> None:
        for split in ("validation", "test"):
            tested = counts.get(split, Counter())
            unseen = {label: count for label, count in tested.items() if not train[label]}
            if unseen:
                raise ValueError(
                    f"`{self.key}.source.{split}`: {sum(unseen.values()):,} rows have labels that no "
                    f"training row has: {self._named(unseen)}; add training rows of these classes, or "
                    "remove the rows"
                )
        missing = [name for label, name in enumerate(self.names or ()) if not train[label]]
        if missing:
            names = some(repr(short(name, 40)) for name in missing)
            raise ValueError(
                f"`{self.key}`: no training row has the label {names}; remove it "
                f"from `{self.key}.source.label_names`, add rows, or raise `{self.key}.max_documents`"
            )

    def _check_enough_rows(self, train: Counter[int], wanted: Mapping[str, float]) -> None:
        needed = 1 + len(wanted)
        few = {label: count for label, count in train.items() if count < needed}
        if few:
            raise ValueError(
                f"`{self.key}.split`: each of {', '.join(('train', *wanted))} needs a row of every class, "
                f"{needed} in all; too few have {self._named(few)}. Add rows, merge classes, raise "
                f"`{self.key}.max_documents`, or give files for the splits. Is "
                f"`{self.key}.source.label_column` the right column?"
                + "".join(f" There are {warning}." for warning in alike_labels(self.names or ()))
            )

    def _named(self, counts: Mapping[int, int]) -> str:
        assert self.names is not None
        return some(
            f"{short(self.names[label], 40)!r} ({count:,})" for label, count in sorted(counts.items())
        )
