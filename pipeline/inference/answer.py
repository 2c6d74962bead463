"""The answer of a classifier for one document, to the command line or a client of the service."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pipeline.inference.predict import Prediction
from pipeline.inference.summary import Row
from pipeline.inference.thresholds import NOT_ASKED, Certainty
from pipeline.inference.word_effects import WordEffect


@dataclass(frozen=True)
class Answer:
    prediction: Prediction | None  # None: the document has no words
    certainty: Certainty = NOT_ASKED
    words: Sequence[WordEffect] | None = None  # that moved the label most; None: they were not asked for
    measured: Row | None = None  # for the summary, not for a client; None: it is not in the sample

    @property
    def label(self) -> str | None:
        return self.prediction.label if self.prediction else None

    def to_json(self) -> dict[str, Any]:
        """The object that stands for it in JSON; a document without words has null throughout."""
        certainty = self.certainty.asked_for()
        return {
            "label": self.label,
            **(certainty if self.prediction else dict.fromkeys(certainty)),
            "probabilities": self.prediction.probabilities if self.prediction else None,
            **({} if self.words is None else {"words": [asdict(effect) for effect in self.words]}),
        }
