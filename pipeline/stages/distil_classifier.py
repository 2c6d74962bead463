"""Stage: what ships, and text -> one small classifier that learned from it (none with student: null)."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import numpy as np

from pipeline.artifacts.links import read_link, tokens_at
from pipeline.artifacts.model_folder import ModelFolder
from pipeline.corpus.document_files import read_texts
from pipeline.corpus.leakage import leaked_documents
from pipeline.corpus.settings import Normalise
from pipeline.corpus.text_parts import texts_of
from pipeline.corpus.tokenizer_kinds import tokenizer_file_in
from pipeline.corpus.tokens import (
    UNLABELLED,
    ShardWriter,
    SplitInfo,
    TokenShard,
    open_shard,
    read_info,
    read_word_parts,
    read_word_starts,
    write_info,
)
from pipeline.distributed.session import Session
from pipeline.evaluation.metrics import classification_metrics
from pipeline.evaluation.settings import Evaluate
from pipeline.figures.cost import Cost
from pipeline.figures.sweeps import DistilFigures, MeasuredClassifier, NoTrials
from pipeline.files.atomic import atomic_folder
from pipeline.identity.fingerprint import fingerprint_of
from pipeline.inference.predict import Predictor
from pipeline.inference.reference_sample import write_judged_and_reference
from pipeline.project.headstarts import ResolvedHeadStart
from pipeline.project.project import Project
from pipeline.project.student import student_training
from pipeline.stages._trials import ModelPoint, cost_of
from pipeline.sweeps.settings import DistilClassifier
from pipeline.sweeps.sweep import Spec, Sweep
from pipeline.training.checkpoint import Checkpoint
from pipeline.training.classifier import (
    TAUGHT_FILE,
    ClassifierLesson,
    chosen_documents,
    make_classifier_job,
)
from pipeline.training.settings import ClassifierTraining

_NONE_FILE = "nothing.txt"
_TEACHING_SPLITS = ("train", "unlabelled")
_ROUNDS = 3  # of predictions that are timed; the fastest counts


def run(
    project: Project,
    *,
    tokens: Path,
    documents: Path,
    classifier: Path,
    general_lm: Path,
    target_lm: Path,
    leaks: Path,
    out: Path,
    sweep: Sweep,
) -> DistilFigures | NoTrials:
    """Train the student on what the classifier says of all training and unlabelled text; compare the two.

    Raises ValueError where settings or inputs do not go together.
    """
    params, settings = project.params, project.params.distil_classifier
    if settings.student is None:
        with atomic_folder(out) as folder:  # DVC warns of an empty one
            (folder / _NONE_FILE).write_text("distil_classifier.student is null.\n", encoding="utf-8")
        return NoTrials(key=sweep.key)
    student = project.head_starts[settings.student]
    starts = {"target_lm": target_lm / student.name, "general_lm": general_lm / student.name}
    trained = student_training(settings, student.finetune_classifier)
    assert trained.method == "plain"  # `pipeline.project.checks` refuses others
    link = tokens / student.name / "target.json"
    labelled = chosen_documents(
        open_shard(tokens_at(link), "train"), student.finetune_classifier.max_labels, params.run.seed
    )
    identity = _identity(settings, student, trained, params.corpus.target.normalise, params.run.seed)
    read = _read(student, trained)
    keys = sweep.keys(identity, read, student.family.name)
    folder = keys.place_of(keys.of({})).curve.parent / "taught"
    cost = Cost()
    lesson = _Lesson.give(folder, tokens_at(link), documents, classifier, labelled)
    taught = cost.spent()

    def build(session: Session) -> ModelPoint:
        job = make_classifier_job(
            trained,
            student.model,
            params.corpus.target.normalise,
            tokens=folder,
            start=ModelFolder.at(starts[trained.start]) if trained.start in starts else None,
            seed=params.run.seed,
        )
        values = settings.model_dump(include={"temperature", "soft", "hard"})
        job = replace(job, lesson=ClassifierLesson(folder.resolve(), **values))
        return ModelPoint(name, session.folder, job, params.run, session)

    name = f"{student.name} distilled"
    (outcome,) = sweep.outcomes([Spec(name, identity, read, build, student.family.name)]).values()
    assert isinstance(outcome, Checkpoint)  # one that failed has stopped the stage
    tokenizer = tokenizer_file_in(read_link(link)["tokenizer"])
    build(keys.session({})).export(outcome, out, [tokenizer])
    shutil.rmtree(folder, ignore_errors=True)
    write_judged_and_reference(out, tokens_at(link), documents, labelled, params.run.seed)
    leaked = leaked_documents(leaks) if params.leakage.action == "drop" else np.array([], dtype=int)
    judged = _judged(tokens_at(link), documents, leaked)
    return DistilFigures(
        key=sweep.key,
        student=student.name,
        num_labels=len(labelled),
        num_taught=lesson.num_documents,
        validation=outcome.state["validation"],
        cost=taught + cost_of(outcome),
        **_compared(classifier, out, judged, params.evaluate, params.run.seed),
    )


def _identity(
    settings: DistilClassifier,
    student: ResolvedHeadStart,
    trained: ClassifierTraining,
    normalise: Normalise,
    seed: int,
) -> dict[str, Any]:
    """The settings that the training depends on."""
    return {
        "seed": seed,
        "model": student.model.model_dump(),
        "normalise": normalise.model_dump(),
        "classifier": trained.model_dump(),
        "labels": student.finetune_classifier.max_labels,
        "lesson": settings.model_dump(include={"temperature", "soft", "hard"}),
        "lesson_code": fingerprint_of("pipeline.stages.distil_classifier").digest,
    }


def _read(student: ResolvedHeadStart, trained: ClassifierTraining) -> tuple[str, ...]:
    """The inputs that it depends on: a flag, and a path below it."""
    start = () if trained.start == "scratch" else (f"{trained.start}/{student.name}",)
    return (f"tokens/{student.name}/target.json", "documents", "classifier", *start)


# ------------------------------------------------------------------------------------------- lesson


@dataclass(frozen=True)
class _Lesson:
    """Token shards whose documents all have a label, and what a teacher says of each."""

    folder: Path
    num_documents: int

    @staticmethod
    def give(folder: Path, tokens: Path, documents: Path, teacher: Path, labelled: np.ndarray) -> _Lesson:
        """Write the documents of the splits `train` and `unlabelled` as one split `train`.

        Those of `labelled`, indices into `train`, keep their label; others get the teacher's likeliest one.
        """
        info, predictor = read_info(tokens), Predictor.load(teacher)
        splits = [split for split in _TEACHING_SPLITS if split in info.splits]
        probs_NC = np.concatenate(
            [_probabilities(predictor, read_texts(documents, split))[0] for split in splits]
        )
        labels_N = probs_NC.argmax(1)
        labels_N[labelled] = open_shard(tokens, "train").labels[labelled]
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        sizes: dict[str, SplitInfo] = {}
        taught = [open_shard(tokens, split) for split in splits]
        sizes["train"] = _write(folder, "train", taught, labels_N, info.vocab_size)
        validation = open_shard(tokens, "validation")
        sizes["validation"] = _write(
            folder, "validation", [validation], np.asarray(validation.labels), info.vocab_size
        )
        log_probs = np.log(np.clip(probs_NC, 1e-12, None)).astype(np.float32)
        np.save(folder / TAUGHT_FILE, log_probs)
        write_info(folder, replace(info, splits=sizes), read_word_starts(tokens), read_word_parts(tokens))
        return _Lesson(folder, len(labels_N))


def _write(
    folder: Path, split: str, shards: Sequence[TokenShard], labels_N: np.ndarray, vocab_size: int
) -> SplitInfo:
    texts = (shard.document(k) for shard in shards for k in range(len(shard)))
    with ShardWriter(folder, split, vocab_size) as writer:
        writer.append(texts, (None if label == UNLABELLED else int(label) for label in labels_N))
    num_words, num_bytes = (
        sum(getattr(shard, size) for shard in shards) for size in ("num_words", "num_bytes")
    )
    return writer.info(num_words, num_bytes)


def _probabilities(predictor: Predictor, texts: Sequence[str]) -> tuple[np.ndarray, float]:
    """Probabilities (N, C) of documents, and the seconds that they took."""
    given = [texts_of(text) for text in texts]
    before = time.monotonic()
    probs_NC = predictor.probabilities(given)
    return probs_NC, time.monotonic() - before


# --------------------------------------------------------------------------------------- comparison


class _Comparison(TypedDict):
    """How both do on the test documents, and how often they agree."""

    teacher: MeasuredClassifier
    distilled: MeasuredClassifier
    agreement: float
    num_documents: int


class _Judged(NamedTuple):
    """The test documents that both are judged on."""

    texts: list[str]
    labels_N: np.ndarray


def _judged(tokens: Path, documents: Path, leaked: np.ndarray) -> _Judged:
    """The labelled test documents without those that are leaked, by index."""
    test, texts = open_shard(tokens, "test"), read_texts(documents, "test")
    chosen = np.setdiff1d(np.flatnonzero(test.labels != UNLABELLED), leaked)
    return _Judged([texts[k] for k in chosen], test.labels[chosen].astype(np.int64))


def _compared(teacher: Path, student: Path, judged: _Judged, evaluate: Evaluate, seed: int) -> _Comparison:
    read, labels_N = judged

    def measured(folder: Path) -> tuple[MeasuredClassifier, np.ndarray]:
        predictor = Predictor.load(folder)
        rounds = [_probabilities(predictor, read) for _ in range(_ROUNDS)]
        said = rounds[0][0]
        scores = classification_metrics(labels_N, said, evaluate, seed)
        figures = MeasuredClassifier(
            scores=scores,
            documents_per_second=len(read) / min(seconds for _, seconds in rounds),
            num_bytes=sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()),
        )
        return figures, said.argmax(1)

    (ours, said), (theirs, said_by_student) = measured(teacher), measured(student)
    return {
        "teacher": ours,
        "distilled": theirs,
        "agreement": float((said == said_by_student).mean()),
        "num_documents": len(read),
    }
