"""The stages, in the order of the route.

Everything else that knows about stages derives it from here: the command line, tracking, `gc`, `lr-find`, the
doctor and the tests on dvc.yaml. This module imports nothing that is slow, so that `headstart --help` answers
at once. A test compares each description with the stage's file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pipeline.project.relations import READING, own_settings_of

Kind = Literal["prepares", "trains", "sweeps", "evaluates", "reports"]
Item = Literal["corpus", "tokenizer", "headstart"]


@dataclass(frozen=True)
class Stage:
    """The description of a stage, which is a file of the same name in `pipeline/stages`."""

    title: str  # what it reads -> what it makes
    kind: Kind  # prepares data; trains one model; sweeps: trains many; evaluates; reports
    inputs: tuple[str, ...]  # flags of the paths that it reads
    # Dotted paths of the settings that make its numbers, beside those of what its head start is related to
    # (`RELATIONS`); it is handed no others. Head starts are those with all layers applied; `{headstart}` is
    # the value of that flag, `*` each one of `run.headstarts`.
    settings: tuple[str, ...] = ()
    switch: str | None = None  # the setting without which it does nothing, and depends on no other one
    uncounted_settings: tuple[str, ...] = ()  # those that it reads, too, and that change no number
    outputs: tuple[str, ...] = ("out",)  # flags of the paths that it writes
    item: Item | None = None  # the flag that names what it runs for, if it runs several times
    needs_labels: bool = False  # without labels it is passed over, and its outputs are empty
    registers: str | None = None  # the MLflow model that its last output becomes

    @property
    def is_training(self) -> bool:
        return self.kind in ("trains", "sweeps")

    @property
    def flags(self) -> Mapping[str, type[str] | type[Path]]:
        """The flags of its command with their types."""
        item: dict[str, type[str] | type[Path]] = {self.item: str} if self.item else {}
        return item | dict.fromkeys((*self.inputs, *self.outputs), Path)


def _of(head_start: str, *settings: str) -> tuple[str, ...]:
    """The paths of settings of a head start."""
    return tuple(f"headstarts.{head_start}.{each}" for each in settings)


_SEEDED = ("run.seed", "run.precision")
_EVERYTHING = (
    "model", "tokenizer", "pretrain_lm", "finetune_lm", "finetune_classifier", "few_labels", "scratch",
    *own_settings_of("pretrain_lm", "finetune_lm", "finetune_classifier"),
)  # fmt: skip

STAGES: Mapping[str, Stage] = {
    "prepare": Stage(
        title="raw text of one corpus -> normalised documents in splits.",
        kind="prepares",
        item="corpus",
        inputs=(),
        settings=("run.seed", "corpus.{corpus}"),
    ),
    "train_tokenizer": Stage(
        title="documents, or a file from elsewhere -> a tokenizer.",
        kind="prepares",
        item="tokenizer",
        inputs=("documents",),
        settings=("run.seed", "tokenizers.{tokenizer}"),
    ),
    "encode": Stage(
        title="documents -> token shards.",
        kind="prepares",
        inputs=("documents", "tokenizer"),
        uncounted_settings=("tokenizers",),  # their threads
    ),
    "pretrain_lm": Stage(
        title="general token shards -> a language model of general text.",
        kind="trains",
        item="headstart",
        inputs=("tokens",),
        settings=(*_SEEDED, *_of("{headstart}", "model", "pretrain_lm")),
    ),
    "finetune_lm": Stage(
        title="target token shards and the general language model -> a language model of the target text.",
        kind="trains",
        item="headstart",
        inputs=("tokens", "start"),
        settings=(*_SEEDED, *_of("{headstart}", "model", "finetune_lm")),
    ),
    "read_features": Stage(
        title="the labelled documents, as a frozen language model sees them -> their pooled features.",
        kind="evaluates",
        item="headstart",
        inputs=("tokens", "target_lm"),
        settings=("run.precision", *_of("{headstart}", *READING)),
        needs_labels=True,
    ),
    "finetune_classifier": Stage(
        title="labelled token shards and a language model -> a classifier.",
        kind="trains",
        item="headstart",
        inputs=("tokens", "target_lm", "general_lm", "beside"),
        settings=(
            *_SEEDED,
            *_of("{headstart}", "model", "finetune_classifier"),
            "corpus.target.normalise",
        ),
        needs_labels=True,
    ),
    "find_leaks": Stage(
        title="documents -> the test documents among them that were trained on, word for word or nearly so.",
        kind="prepares",
        inputs=("documents",),
        settings=("leakage", "corpus.names"),
    ),
    "evaluate": Stage(
        title="candidates, on validation documents -> the one to ship, and all on test documents.",
        kind="evaluates",
        inputs=("tokens", "documents", "classifiers", "features", "target_lm", "leaks"),
        outputs=("out", "classifier"),
        settings=(
            "run.seed",
            "run.headstarts",
            *_of("*", *READING),
            "ensembles",
            "evaluate",
            "finetune_classifier.max_labels",
            "corpus.target.normalise",
            "leakage.action",
        ),
        needs_labels=True,
        registers="headstart-classifier",
    ),
    "distil_classifier": Stage(
        title="what ships, and text -> one small classifier that learned from it (none with student: null).",
        kind="sweeps",
        inputs=("tokens", "documents", "classifier", "general_lm", "target_lm", "leaks"),
        settings=(
            *_SEEDED,
            *_of("{params.distil_classifier.student}", "model", "finetune_classifier"),
            "corpus.target.normalise",
            "leakage.action",
            "evaluate",
            "trials",
            "distil_classifier",
        ),
        switch="distil_classifier.student",
        needs_labels=True,
    ),
    "tune": Stage(
        title="a search over settings, judged on validation text alone -> the best ones, and what was tried.",
        kind="sweeps",
        inputs=("tokens", "general_lm", "target_lm", "features"),
        settings=(
            *_SEEDED,
            *_of("{params.tune.headstart}", *_EVERYTHING),
            "corpus.target.normalise",
            "trials",
            "tune",
        ),
        switch="tune.num_trials",
    ),
    "sample_efficiency": Stage(
        title="labelled token shards and language models -> error against number of labels, arm by arm.",
        kind="sweeps",
        inputs=("tokens", "documents", "general_lm", "target_lm", "features", "leaks"),
        settings=(
            *_SEEDED,
            "run.headstarts",
            *_of("*", "model", "pretrain_lm", "finetune_lm", "few_labels", "scratch"),
            "ensembles",
            "corpus.target.normalise",
            "leakage.action",
            "trials",
            "sample_efficiency",
            "zero_shot",
        ),
        needs_labels=True,
    ),
    "ablate": Stage(
        title="each trick switched off alone -> the ledger of what it is worth; run by `headstart ablate`.",
        kind="sweeps",
        inputs=("tokens", "documents", "general_lm", "target_lm", "features", "leaks"),
        settings=(
            *_SEEDED,
            *_of("{params.ablate.headstart}", *_EVERYTHING),
            "corpus.target.normalise",
            "leakage.action",
            "trials",
            "sample_efficiency",
            "ablate",
        ),
        switch="ablate.seeds",
    ),
    "scaling": Stage(
        title="sizes and numbers of tokens of one head start -> the law of its loss, and a check of it.",
        kind="sweeps",
        inputs=("tokens",),
        settings=(*_SEEDED, *_of("{params.scaling.headstart}", *_EVERYTHING), "trials", "scaling"),
        switch="scaling.sizes",
    ),
    "report": Stage(
        title="metrics, curves and tables of all stages -> page, Markdown summary, pictures, main figures.",
        kind="reports",
        inputs=("figures", "curves", "evaluation", "studies"),
        outputs=("out", "summary", "pictures", "headline", "card"),
        settings=("run.headstarts", "corpus.names", "card"),
        uncounted_settings=("headstarts",),  # their tokenizers: the shards change with them
    ),
}


def names() -> tuple[str, ...]:
    return tuple(STAGES)


def of_kind(*kinds: Kind) -> tuple[str, ...]:
    return tuple(name for name, stage in STAGES.items() if stage.kind in kinds)


def describe(name: str) -> Stage:
    return STAGES[name]
