"""The label column of a corpus from files: which class each value stands for."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from pipeline.corpus.listing import short
from pipeline.corpus.settings import FilesSource

_MINUS_ONE = ("-1", "-1.0")
_INTEGER = re.compile(r"(-?\d{1,18})(?:\.0+)?")  # a longer number is a name


class LabelColumn:
    """The values of the column, counted, and their classes.

    Args:
        values: rows by value as written, by split; None: the row has none.
        files: the names of each split's files.
        are_integers: whether a file has the column as numbers.
        named: gives the words for a setting in messages.

    Attributes:
        class_of: the class of each value; None: it means unlabelled.
        names: of the classes; None: the corpus has no labels.

    Raises ValueError for a value that is no class.
    """

    def __init__(
        self,
        settings: FilesSource,
        values: Mapping[str, Counter[str | None]],
        files: Mapping[str, Sequence[str]],
        *,
        are_integers: bool,
        named: Callable[[str], str],
    ) -> None:
        self._settings, self._values, self._files = settings, values, files
        self._are_integers, self._named = are_integers, named
        self.class_of, self.names = self._classes()

    def counts(self, split: str) -> Counter[int]:
        """Count the labelled rows of each class."""
        counts: Counter[int] = Counter()
        for value, count in self._values[split].items():
            label = self.class_of[value]
            if label is not None:
                counts[label] += count
        return counts

    def _classes(self) -> tuple[dict[str | None, int | None], tuple[str, ...] | None]:
        """Map each value of the label column to its class, or to None for unlabelled."""
        given = self._settings.label_names or self._settings.choice_columns
        values = {value for counts in self._values.values() for value in counts}
        unlabelled = {value for value in values if value is None or self._means_unlabelled(value)}
        written = {value for value in values - unlabelled if value is not None}
        if self._settings.label_column is None or (not written and given is None):
            return dict.fromkeys(values), None
        ids: dict[str | None, int | None] = dict.fromkeys(unlabelled)
        if given is None:
            classes, names = _classes_of(written)
        else:
            names = tuple(given)
            if len(set(names)) < len(names):
                raise ValueError(f"{self._named('label_names')} has a duplicate: {', '.join(names)}")
            classes = {value: self._class_of(value, written, names) for value in written}
        ids.update(classes)
        return ids, names

    def _means_unlabelled(self, value: str) -> bool:
        if value.strip() not in _MINUS_ONE:
            return not value.strip()
        names = self._settings.label_names or self._settings.choice_columns
        if names is None:
            column = self._settings.label_column
            raise ValueError(
                f"{self._files_with(value)}: column {column!r} holds {value}, which is a "
                f"class in some corpora and means unlabelled in others; set {self._named('label_names')}, "
                "with -1 if it is a class, without it if it means unlabelled"
            )
        return "-1" not in names

    def _class_of(self, value: str, written: set[str], names: tuple[str, ...]) -> int:
        # Strings such as "1" and "2" are names; integers are positions, and -1 means unlabelled.
        if written <= set(names) and ("-1" in names or not self._are_integers):
            return names.index(value)
        number = _integer(value)
        if number is not None and 0 <= number < len(names):
            return number
        if value in names:
            return names.index(value)
        raise ValueError(
            f"{self._files_with(value)}: label {short(value)!r} in column {self._settings.label_column!r} is "
            f"neither one of the {len(names)} {self._named(self._names_key)} nor an integer from 0 to "
            f"{len(names) - 1} (-1 or null: unlabelled)"
        )

    @property
    def _names_key(self) -> str:
        return "choice_columns" if self._settings.label_names is None else "label_names"

    def _files_with(self, value: str) -> str:
        split = next(split for split, counts in self._values.items() if value in counts)
        return ", ".join(self._files[split])


def _integer(value: str) -> int | None:
    """Return the number that a label such as `3` or `3.0` stands for, or None."""
    matched = _INTEGER.fullmatch(value)
    return int(matched[1]) if matched else None


def _classes_of(values: set[str]) -> tuple[dict[str, int], tuple[str, ...]]:
    """Make each distinct value a class: integers in numerical order, otherwise alphabetically."""
    numbers = {value: number for value in values if (number := _integer(value)) is not None}
    if len(numbers) == len(values):
        position = {number: index for index, number in enumerate(sorted(set(numbers.values())))}
        return {value: position[number] for value, number in numbers.items()}, tuple(map(str, position))
    names = sorted(values)
    return {name: index for index, name in enumerate(names)}, tuple(names)
