"""Points of a label curve as trials: what their outcomes depend on, and how to build them. Not a stage."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pipeline.artifacts.model_folder import ModelFolder
from pipeline.corpus.settings import Direction
from pipeline.distributed.session import Session
from pipeline.machine.cost import total
from pipeline.project.params import Params
from pipeline.settings.loader import overlay, typed
from pipeline.stages._trials import ClassifierPoint, LanguageModelPoint, TfidfPoint
from pipeline.sweeps.settings import Arm, SampleEfficiency
from pipeline.sweeps.sweep import Spec, Sweep, SweepTrial
from pipeline.training.checkpoint import Checkpoint
from pipeline.training.classifier import FewLabels, make_classifier_job
from pipeline.training.language_model import make_language_model_job
from pipeline.training.settings import ClassifierTraining

Start = Literal["target_lm", "general_lm", "target_lm_alone", "scratch"]
# What a network's weights come from; tfidf has none.
STARTS: dict[Arm, Start] = {
    "ulmfit": "target_lm",
    "bidirectional": "target_lm",
    "general_lm": "general_lm",
    "target_lm": "target_lm_alone",
    "scratch": "scratch",
}


@dataclass(frozen=True)
class Place:
    """A point of the curve."""

    arm: Arm
    num_labels: int
    seed: int
    key: str = "sample_efficiency.labels"  # dotted key that set the number of labels; error messages name it


@dataclass(frozen=True)
class Inputs:
    tokens: Path
    documents: Path
    general_lm: Path
    target_lm: Path
    target_lm_alone: Path | None  # trained here, if an arm starts from it

    def start(self, start: Start, direction: Direction) -> ModelFolder | None:
        return None if start == "scratch" else ModelFolder.at(getattr(self, start) / direction)


def few_labels(settings: SampleEfficiency, num_labels: int, **more: Any) -> FewLabels:
    """`num_labels` labels, split and trained on by the rules of the label curve."""
    return FewLabels(num_labels, settings.held_out, settings.min_steps, settings.evaluations, **more)


def train_target_lm_alone(params: Params, tokens: Path, sweep: Sweep) -> tuple[Path, dict[str, float]]:
    """The language model of the target text alone, and what it cost.

    It is trained like the general one, for as many epochs as that one is fine-tuned.
    """
    settings = params.pretrain_lm.model_copy(update={"epochs": params.finetune_lm.epochs})
    direction = params.run.directions[0]
    common = {"seed": params.run.seed, "model": params.model.model_dump(), "lm": settings.model_dump()}

    def build(session: Session) -> LanguageModelPoint:
        job = make_language_model_job(
            settings,
            params.model,
            stage="pretrain_lm",
            tokens=tokens,
            start=None,
            direction=direction,
            seed=params.run.seed,
        )
        return LanguageModelPoint("target_lm_alone", session.folder, job, params.run, session)

    spec = Spec("target_lm_alone", {**common, "direction": direction}, ("tokens",), build)
    (outcome,) = sweep.outcomes([spec]).values()
    assert isinstance(outcome, Checkpoint)  # one that failed has stopped the stage
    keys = sweep.keys(spec.settings, spec.inputs)
    folder = keys.places(keys.of({}))[1].parent / "language_model"
    build(keys.session({})).export(outcome, folder / direction)
    return folder, total(outcome.state)


def specs_of(place: Place, params: Params, inputs: Inputs) -> list[Spec]:
    """The trainings of a point: one, or one for each direction."""
    if place.arm == "tfidf":
        return [_tfidf(place, params.sample_efficiency.test_documents, inputs)]
    directions = params.run.directions if place.arm == "bidirectional" else params.run.directions[:1]
    return [_classifier(place, direction, params, inputs) for direction in directions]


def _tfidf(place: Place, test_documents: int | None, inputs: Inputs) -> Spec:
    name = f"tfidf {place.num_labels} labels, seed {place.seed}"

    def build(session: Session) -> SweepTrial:
        return TfidfPoint(
            name,
            session.folder,
            inputs.tokens.resolve(),
            inputs.documents.resolve(),
            place.num_labels,
            place.seed,
            test_documents,
        )

    return Spec(
        name,
        {
            "arm": "tfidf",
            "labels": place.num_labels,
            "seed": place.seed,
            "test_documents": test_documents,
        },
        ("tokens", "documents"),
        build,
    )


def _classifier(place: Place, direction: Direction, params: Params, inputs: Inputs) -> Spec:
    settings = params.sample_efficiency
    start = STARTS[place.arm]
    few = few_labels(settings, place.num_labels, key=place.key)
    classifier = classifier_settings(params, start)
    name = f"{start} {direction} {place.num_labels} labels, seed {place.seed}"

    def build(session: Session) -> SweepTrial:
        job = make_classifier_job(
            classifier,
            params.model,
            params.corpus.target.normalise,
            tokens=inputs.tokens,
            start=inputs.start(start, direction),
            direction=direction,
            seed=place.seed,
            few_labels=few,
        )
        return ClassifierPoint(name, session.folder, job, params.run, session, settings.test_documents)

    identity: dict[str, Any] = {
        "start": start,
        "direction": direction,
        "labels": place.num_labels,
        "seed": place.seed,
        "test_documents": settings.test_documents,
        "held_out": few.held_out,
        "min_steps": few.min_steps,
        "evaluations": few.num_evaluations,
        "model": params.model.model_dump(),
        "normalise": params.corpus.target.normalise.model_dump(),
        "classifier": classifier.model_dump(exclude={"start", "max_labels"}),
    }
    of_start = {"target_lm": ("target_lm",), "general_lm": ("general_lm",)}
    if start == "target_lm_alone":
        identity["lm"] = params.pretrain_lm.model_dump() | {"epochs": params.finetune_lm.epochs}
        identity["lm_seed"] = params.run.seed
    return Spec(name, identity, ("tokens", *of_start.get(start, ())), build)


def classifier_settings(params: Params, start: Start) -> ClassifierTraining:
    """Settings of a point's classifier. Raises ValueError for a key that finetune_classifier lacks."""
    settings = params.sample_efficiency
    where, prefix = "params.yaml", "sample_efficiency.classifier."
    merged = overlay(params.finetune_classifier.model_dump(), settings.classifier)
    found = typed(ClassifierTraining, merged, where=where, prefix=prefix)
    if start == "scratch":
        merged, prefix = overlay(merged, settings.scratch), "sample_efficiency.scratch."
        found = typed(ClassifierTraining, merged, where=where, prefix=prefix)
    return found
