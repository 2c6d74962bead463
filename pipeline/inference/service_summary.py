"""The summary of what a service saw, in a file that is written now and then."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pipeline.inference.answer import Answer
from pipeline.inference.summary import Summary, may_be_sampled, read_summary, write_summary

log = logging.getLogger(__name__)

_WRITTEN_EVERY = 60.0  # seconds


class ServiceSummary:
    """Counts and samples the documents of a service.

    The file's name may hold the date, as `strftime` writes it: then each day, or hour, has its summary. One
    that exists goes on.
    """

    def __init__(self, name: str, classifier: str) -> None:
        """Raises ValueError if the file exists and is no summary, or one of another classifier."""
        self._name, self._classifier, self._rng = name, classifier, np.random.default_rng()
        self._file = Path(name)
        self._open()

    def draws(self, count: int) -> list[float | None]:
        """Return a number for each of the next documents that is to be measured, else None."""
        if time.strftime(self._name) != self._name_now:
            self._turn_over()
        draws = self._rng.random(count)
        are_measured = may_be_sampled(draws, self._num_drawn + np.arange(1, count + 1))
        self._num_drawn += count
        return [float(draw) if taken else None for draw, taken in zip(draws, are_measured, strict=True)]

    def withdraw(self, count: int) -> None:
        """Take back the last draws, as their documents were refused."""
        self._num_drawn -= count

    def add(self, answers: Sequence[Answer]) -> None:
        """Count answers, and add the documents among them that were measured to the sample."""
        self._summary.add_labels(answer.label for answer in answers)
        self._summary.add_rows(answer.measured for answer in answers if answer.measured is not None)
        if time.monotonic() - self._written > _WRITTEN_EVERY:
            self._try_to_write()

    def write(self) -> None:
        write_summary(self._summary, self._file)
        self._written = time.monotonic()

    def _try_to_write(self) -> None:
        """Write, or say why not: requests are answered all the same."""
        try:
            self.write()
        except OSError as error:
            self._written = time.monotonic()  # so that the next attempt is a minute away
            log.warning("the summary could not be written: %s", error)

    def _turn_over(self) -> None:
        self._try_to_write()
        try:
            self._open()
        except ValueError as error:
            self._file = self._file.with_name(f"{self._file.stem}-{time.time_ns()}{self._file.suffix}")
            self._summary, self._num_drawn = Summary(self._classifier), 0
            log.warning("%s; what is seen goes to %s", error, self._file)

    def _open(self) -> None:
        self._name_now = time.strftime(self._name)
        self._file = Path(self._name_now)
        self._summary = read_summary(self._file) if self._file.exists() else Summary(self._classifier)
        if self._summary.classifier != self._classifier:
            raise ValueError(
                f"{self._file} is the summary of another classifier; name another file, or remove it"
            )
        self._num_drawn, self._written = self._summary.num_documents, time.monotonic()
