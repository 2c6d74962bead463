"""Points of a label curve as trials: what their outcomes depend on, and how to build them. Not a stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from pipeline.artifacts.links import read_link, tokens_at
from pipeline.artifacts.model_folder import ModelFolder
from pipeline.corpus.settings import Normalise
from pipeline.corpus.tokenizer_kinds import load_tokenizer
from pipeline.corpus.tokens import open_shard, read_info
from pipeline.distributed.session import Session
from pipeline.distributed.settings import Run
from pipeline.evaluation.in_context import Prompt, prompt_of, without_content
from pipeline.evaluation.settings import ZeroShot
from pipeline.figures.cost import Spent
from pipeline.project.headstarts import ResolvedHeadStart
from pipeline.settings.arm import Arm, Use
from pipeline.stages._trials import (
    ClassifierPoint,
    InContextPoint,
    LogisticPoint,
    ModelPoint,
    Rounds,
    cost_of,
)
from pipeline.sweeps.settings import SampleEfficiency
from pipeline.sweeps.sweep import Spec, Sweep, SweepTrial
from pipeline.training.checkpoint import Checkpoint
from pipeline.training.classifier import FewLabels, label_counts, make_classifier_job
from pipeline.training.language_model import LanguageModelJob, make_language_model_job
from pipeline.training.settings import ClassifierTraining, LanguageModelSettings


@dataclass(frozen=True)
class PointToTrain:
    """A point of the curve: what is trained for it, on how many labels, with which seed."""

    arm: Arm
    num_labels: int
    seed: int
    key: str = "sample_efficiency.labels"  # dotted key that set the number of labels; error messages name it


@dataclass(frozen=True)
class Inputs:
    tokens: Path  # folder of links, by head start
    documents: Path
    general_lm: Path
    target_lm: Path
    features: Path | None = None  # folder, by head start
    target_lm_alone: Mapping[str, Path] = field(default_factory=dict)  # trained here, by head start

    def tokens_of(self, head_start: str, corpus: str = "target") -> Path:
        return tokens_at(self.tokens / head_start / f"{corpus}.json")

    def start(self, use: Use, head_start: str) -> ModelFolder | None:
        """The language model that a network begins with; None from scratch."""
        folders = {
            Use.NETWORK: self.target_lm / head_start,
            Use.IN_CONTEXT: self.target_lm / head_start,
            Use.GENERAL_LM: self.general_lm / head_start,
            Use.TARGET_LM_ALONE: self.target_lm_alone.get(head_start),
        }
        folder = folders.get(use)
        return ModelFolder.at(folder) if folder else None


def settings_alone(head_start: ResolvedHeadStart) -> LanguageModelSettings:
    """Settings of the language model of the target text alone.

    It is trained like the general one, for as many epochs as that one is fine-tuned.
    """
    settings, epochs = head_start.pretrain_lm, head_start.finetune_lm.training.epochs
    return replace(settings, training=settings.training.model_copy(update={"epochs": epochs}))


def new_language_model_job(
    head_start: ResolvedHeadStart, settings: LanguageModelSettings, shards: Path, seed: int
) -> LanguageModelJob:
    """A language model that begins with random weights."""
    return make_language_model_job(
        settings, head_start.model, stage="pretrain_lm", tokens=shards, start=None, seed=seed
    )


def new_language_model(
    trial: str,
    head_start: ResolvedHeadStart,
    settings: LanguageModelSettings,
    tokens: Path,
    *,
    corpus: Literal["general", "target"],
    seed: int,
    run: Run,
) -> Spec:
    """The training of a language model that begins with random weights; `tokens` is a folder of links."""
    link = f"{head_start.name}/{corpus}.json"
    identity = {"seed": seed, "model": head_start.model.model_dump(), "lm": settings.dump()}

    def build(session: Session) -> ModelPoint:
        job = new_language_model_job(head_start, settings, tokens_at(tokens / link), seed)
        return ModelPoint(trial, session.folder, job, run, session)

    return Spec(trial, identity, (f"tokens/{link}",), build, head_start.family.name)


def train_target_lm_alone(
    head_start: ResolvedHeadStart, run: Run, tokens: Path, sweep: Sweep
) -> tuple[Path, Spent]:
    """The language model of the target text alone, for a head start, and what it cost."""
    spec = new_language_model(
        str(Arm(head_start.name, Use.TARGET_LM_ALONE)), head_start, settings_alone(head_start), tokens,
        corpus="target", seed=run.seed, run=run,
    )  # fmt: skip
    (outcome,) = sweep.outcomes([spec]).values()
    assert isinstance(outcome, Checkpoint)  # one that failed has stopped the stage
    keys = sweep.keys_of(spec)
    folder = keys.place_of(keys.of({})).curve.parent / "language_model"
    trial = spec.build(keys.session({}))
    assert isinstance(trial, ModelPoint)
    trial.export(outcome, folder)
    return folder, cost_of(outcome)


def specs_of(
    point: PointToTrain,
    head_starts: Sequence[ResolvedHeadStart],
    curve: SampleEfficiency,
    zero_shot: ZeroShot,
    normalise: Normalise,
    run: Run,
    inputs: Inputs,
) -> list[Spec]:
    """The trainings of a point: one, or one for each member of an ensemble.

    Args:
        head_starts: of the point's arm.
        normalise: of the target's text.
    """
    names, test_documents = [head_start.name for head_start in head_starts], curve.test_documents
    if not names or point.arm.use.is_frozen:
        return [_logistic(point, names, curve, inputs.tokens_of((names or run.headstarts)[0]), inputs)]
    if point.arm.use is Use.IN_CONTEXT:
        (asked,) = head_starts
        return [_in_context(point, asked, zero_shot, normalise, test_documents, run, inputs)]
    return [classifier_spec(point, each, test_documents, normalise, run, inputs) for each in head_starts]


def _logistic(
    point: PointToTrain, names: Sequence[str], curve: SampleEfficiency, tokens: Path, inputs: Inputs
) -> Spec:
    """Logistic regression on head starts' frozen features, with TF-IDF beside them, or on TF-IDF alone.

    `tokens` has the documents and their labels, which are the same for all head starts.
    """
    use = point.arm.use
    rounds = _rounds(curve, tokens) if use.chooses_labels else None
    trial = " ".join((*names, use, f"{point.num_labels} labels, seed {point.seed}"))
    test_documents = curve.test_documents
    read = [file for name in names for file in (f"tokens/{name}/target.json", f"features/{name}")]
    read += ["documents"] if use.reads_tfidf else []
    assert not names or inputs.features is not None
    features = [(inputs.features / name).resolve() for name in names] if inputs.features else []

    def build(session: Session) -> SweepTrial:
        return LogisticPoint(
            trial,
            session.folder,
            tokens.resolve(),
            point.num_labels,
            point.seed,
            test_documents,
            features,
            inputs.documents.resolve() if use.reads_tfidf else None,
            rounds,
        )

    identity = {
        "use": use.drawn,
        **({} if rounds is None else {"rounds": asdict(rounds)}),
        "labels": point.num_labels,
        "seed": point.seed,
        "test_documents": test_documents,
    }
    return Spec(trial, identity, tuple(read), build)


def _rounds(curve: SampleEfficiency, tokens: Path) -> Rounds:
    """How the labels of a point are chosen: they begin as the curve's fewest labels, which are drawn."""
    fewest = label_counts(curve.labels, open_shard(tokens, "train"))[0][0]
    return Rounds(curve.choosing.strategy, fewest, curve.choosing.per_round)


def classifier_spec(
    point: PointToTrain,
    head_start: ResolvedHeadStart,
    test_documents: int | None,
    normalise: Normalise,
    run: Run,
    inputs: Inputs,
) -> Spec:
    """The training of a network on few labels."""
    use = point.arm.use
    few = FewLabels(point.num_labels, key=point.key)
    classifier = classifier_settings(head_start, use)
    assert classifier.beside is None or inputs.features is not None
    name = f"{head_start.name} {use} {point.num_labels} labels, seed {point.seed}"

    def build(session: Session) -> SweepTrial:
        job = make_classifier_job(
            classifier,
            head_start.model,
            normalise,
            tokens=inputs.tokens_of(head_start.name),
            start=inputs.start(use, head_start.name),
            seed=point.seed,
            few_labels=few,
            features=inputs.features,
        )
        return ClassifierPoint(name, session.folder, job, run, session, test_documents)

    identity: dict[str, Any] = {
        "use": use,
        "labels": point.num_labels,
        "seed": point.seed,
        "test_documents": test_documents,
        "model": head_start.model.model_dump(),
        "normalise": normalise.model_dump(),
        "classifier": classifier.model_dump(exclude={"start", "max_labels"}),
    }
    read = [f"tokens/{head_start.name}/target.json"]
    if use is Use.NETWORK:
        read.append(f"target_lm/{head_start.name}")
    elif use is Use.GENERAL_LM:
        read.append(f"general_lm/{head_start.name}")
    elif use is Use.TARGET_LM_ALONE:
        identity["lm"] = settings_alone(head_start).dump()
        identity["lm_seed"] = run.seed
    if classifier.beside is not None:
        read.append(f"features/{classifier.beside}")
    return Spec(name, identity, tuple(read), build, head_start.family.name)


def _in_context(
    point: PointToTrain,
    head_start: ResolvedHeadStart,
    settings: ZeroShot,
    normalise: Normalise,
    test_documents: int | None,
    run: Run,
    inputs: Inputs,
) -> Spec:
    """A language model that is asked. Without examples, all seeds share one trial."""
    seed = point.seed if point.num_labels else 0
    name = f"{head_start.name} in_context {point.num_labels} labels, seed {seed}"
    prompt, free_of_content = prompt_for(settings, normalise, inputs, head_start.name)
    start = inputs.start(Use.IN_CONTEXT, head_start.name)
    assert start is not None

    def build(session: Session) -> SweepTrial:
        return InContextPoint(
            name,
            session.folder,
            start,
            inputs.tokens_of(head_start.name).resolve(),
            point.num_labels,
            seed,
            test_documents,
            prompt,
            free_of_content if settings.calibrate else (),
            settings.example_tokens,
            settings.text_tokens,
            run,
        )

    identity = {
        "use": Use.IN_CONTEXT,
        "labels": point.num_labels,
        "seed": seed,
        "test_documents": test_documents,
        "prompt": asdict(prompt),
        "free_of_content": free_of_content if settings.calibrate else [],
        "zero_shot": settings.model_dump(exclude={"examples"}),
    }
    read = (f"tokens/{head_start.name}/target.json", f"target_lm/{head_start.name}")
    return Spec(name, identity, read, build, head_start.family.name)


def prompt_for(
    settings: ZeroShot, normalise: Normalise, inputs: Inputs, head_start: str
) -> tuple[Prompt, list[list[int]]]:
    """Return what a head start is asked, and the inputs without content. Raises ValueError as `prompt_of`."""
    link = inputs.tokens / head_start / "target.json"
    tokenizer = load_tokenizer(read_link(link)["tokenizer"])
    classes = read_info(inputs.tokens_of(head_start)).label_names or ()
    return prompt_of(settings, normalise, tokenizer, classes), without_content(tokenizer, normalise)


def classifier_settings(head_start: ResolvedHeadStart, use: Use) -> ClassifierTraining:
    """Settings of a point's classifier."""
    return head_start.scratch if use is Use.SCRATCH else head_start.few_labels
