"""The tricks of ULMFiT and AWD-LSTM, how each is switched off, and what the papers saw when they did.

The papers' figures are of far larger models and corpora: they tell a direction, not what to expect here.
`paper` is with the trick and without it. AWD-LSTM's own ablations (Merity et al. 2017) are not given: they
could not be checked against the paper.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pipeline.project.headstarts import ResolvedHeadStart
from pipeline.settings.arm import Use
from pipeline.settings.loader import flatten

ULMFIT = "Howard & Ruder 2018, validation error on IMDb, %"


@dataclass(frozen=True)
class Trick:
    """`without` is laid over the head start (for a language model) or over its `few_labels`.

    `needs` are values, by key, of the settings that it is switched off from; with those of `unless` there is
    nothing to switch off.
    """

    name: str
    level: Literal["language_model", "classifier"]
    without: Mapping[str, Any] = field(default_factory=dict)
    needs: Mapping[str, Any] = field(default_factory=dict)
    unless: Mapping[str, Any] = field(default_factory=dict)
    use: Use = Use.NETWORK  # of the head start, for the classifier
    paper: tuple[float, float] | None = None
    source: str = ""

    @property
    def in_paper(self) -> str:
        """`with -> without`; empty if no paper says."""
        return "" if self.paper is None else f"{self.paper[0]:g} -> {self.paper[1]:g}"

    def applies(self, head_start: ResolvedHeadStart) -> bool:
        """Whether the head start has what this one switches off."""
        values = dict(flatten({
            "config": head_start.model.config,
            "pretrain_lm": head_start.pretrain_lm.dump(),
            **head_start.few_labels.model_dump(),
        }))  # fmt: skip
        is_known = all(key in values for key, _ in flatten(self.without))
        is_off = any(values.get(key) == value for key, value in self.unless.items())
        return is_known and not is_off and all(values.get(key) == value for key, value in self.needs.items())


def _config(name: str, value: Any) -> dict[str, Any]:
    return {"config": {name: value}}


def _pretrain(**values: Any) -> dict[str, Any]:
    return {"pretrain_lm": values}


_SLANTED_LM = {"pretrain_lm.schedule.kind": "slanted_triangular"}
_SLANTED = {"schedule.kind": "slanted_triangular"}
_GRADUAL, _CONCAT = {"unfreeze": "gradual"}, {"pooling": "concat"}


TRICKS = (
    Trick("tied weights", "language_model", _config("tie_weights", False)),
    Trick("embedding dropout", "language_model", _config("embedding_dropout", 0.0)),
    Trick("input dropout", "language_model", _config("input_dropout", 0.0)),
    Trick("hidden dropout", "language_model", _config("hidden_dropout", 0.0)),
    Trick("output dropout", "language_model", _config("output_dropout", 0.0)),
    Trick("weight dropout", "language_model", _config("weight_dropout", 0.0)),
    Trick("AR and TAR", "language_model", _pretrain(ar_alpha=0.0, tar_beta=0.0)),
    Trick("variable BPTT", "language_model", _pretrain(variable_bptt=False)),
    Trick("AdamW, not NT-ASGD", "language_model", _pretrain(
        optimizer={"kind": "nt_asgd", "lr": 10.0, "momentum": 0.0}, schedule={"kind": "constant"}),
        needs={"pretrain_lm.optimizer.kind": "adamw"}),
    Trick("slanted triangular, not cosine (LM)", "language_model", _pretrain(schedule={"kind": "cosine"}),
          needs=_SLANTED_LM),
    Trick("slanted triangular, not constant (LM)", "language_model",
          _pretrain(schedule={"kind": "constant"}), needs=_SLANTED_LM),
    Trick("slanted triangular, not cosine", "classifier", {"schedule": {"kind": "cosine"}}, _SLANTED,
          paper=(5.0, 5.7), source=ULMFIT + ", without discriminative rates too"),
    Trick("slanted triangular, not constant", "classifier", {"schedule": {"kind": "constant"}}, _SLANTED,
          paper=(5.0, 5.39), source=ULMFIT),
    Trick("discriminative rates", "classifier", {"optimizer": {"discriminative_factor": 1.0}},
          paper=(5.0, 5.04), source=ULMFIT),
    Trick("gradual unfreezing, not full", "classifier", {"unfreeze": "full"}, _GRADUAL,
          paper=(5.0, 5.57), source=ULMFIT + ", without the slanted triangular rates too"),
    Trick("gradual unfreezing, not chain-thaw", "classifier", {"unfreeze": "chain_thaw"}, _GRADUAL,
          paper=(5.0, 5.39), source=ULMFIT),
    Trick("concat pooling, not the last state", "classifier", {"pooling": "last"}, _CONCAT),
    Trick("concat pooling, not the mean", "classifier", {"pooling": "mean"}, _CONCAT),
    Trick("features of another head start", "classifier", {"beside": None}, unless={"beside": None}),
    Trick("language-model fine-tuning", "classifier", use=Use.GENERAL_LM, paper=(5.0, 6.99), source=ULMFIT),
    Trick("general pretraining", "classifier", use=Use.TARGET_LM_ALONE, paper=(5.0, 5.63), source=ULMFIT),
    Trick("any pretraining", "classifier", use=Use.SCRATCH, paper=(5.0, 9.93), source=ULMFIT),
)  # fmt: skip
