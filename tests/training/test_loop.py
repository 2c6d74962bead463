"""The loop on tiny real tasks: it learns, resumes bit for bit, and gives the same model on any workers."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed
import torch.multiprocessing
import torch.nn.functional as F
from hypothesis import given, settings, strategies
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from models.distillation import Distillation
from models.family import lookup
from models.layers import GlobalBatch
from models.transformer import Transformer
from models.transformer_xl import TransformerXL
from pipeline.artifacts.checkpoint_store import CheckpointStore
from pipeline.artifacts.model_folder import ModelFolder, export_model, load_classifier, load_model
from pipeline.corpus.settings import Normalise
from pipeline.corpus.tokens import ShardWriter, SplitInfo, TokensInfo, open_shard, write_info
from pipeline.figures.cost import Cost
from pipeline.objectives.lookup import objective_of
from pipeline.training import layout
from pipeline.training.checkpoint import Checkpoint
from pipeline.training.classifier import (
    TAUGHT_FILE,
    Classification,
    ClassifierJob,
    ClassifierLesson,
    make_classifier_job,
)
from pipeline.training.context import Context
from pipeline.training.jobs import Job
from pipeline.training.language_model import LanguageModelJob, Lesson, make_language_model_job
from pipeline.training.loop import Training, train
from pipeline.training.precision import set_arithmetic
from pipeline.training.settings import ClassifierTraining
from tests.families import FAMILIES, OWN, TEXTS, language_model_settings, model_of

VOCAB = 50
# `HEADSTART_TEST_DEVICE=cuda pytest -k stopped tests/training/test_loop.py` is the same on a GPU.
DEVICE = torch.device(os.environ.get("HEADSTART_TEST_DEVICE", "cpu"))
OPTIMIZER: dict[str, Any] = {
    "kind": "adamw", "lr": 0.02, "momentum": 0.8, "beta2": 0.99, "weight_decay": 0.01, "clip_norm": 0.25,
    "nonmonotone_interval": 1, "discriminative_factor": 1.3,
}  # fmt: skip
TRAINING: dict[str, Any] = {
    "schedule": {"kind": "slanted_triangular", "cut_frac": 0.2, "ratio": 32.0, "span": "run"},
    "unfreeze": "gradual",
    "epochs_per_unfreezing": 0.5,
    "dropout": 1.0,
}
HOPELESS = OPTIMIZER | {"lr": 1e-9}
LANGUAGE_MODEL: dict[str, Any] = {"epochs": 2.5, "evaluations_per_epoch": 3}
CLASSIFIER: dict[str, Any] = {
    "start": "scratch", "method": "plain", "max_labels": None, "epochs": 3.0, "batch_rows": 7, "bptt": 6,
    "max_tokens": 14, "min_steps": 1, "head_hidden": 5, "head_dropout": [0.4, 0.1], "pooling": "concat",
    "attention_score": "additive", "layers": [-1], "combine": "concat", "beside": None, "pair_order": "given",
    "label_smoothing": 0.1, "language_model_weight": 0.0, "evaluations_per_epoch": 2, "patience": None,
    "restarts": 0,
}  # fmt: skip
NORMALISE = Normalise(
    unicode="NFC", html_breaks=True, control_characters=True, collapse_whitespace=True, lowercase=False
)


def write_tokens(folder: Path, num_texts: int = 1) -> Path:
    """Write a learnable language: the previous token and the text's kind determine each token.

    The label of a text is its kind; that of a pair, whether both are of one kind; that of a text with two
    answers, which of these is of its kind.
    """
    folder.mkdir()
    rng = np.random.default_rng(0)
    splits: dict[str, SplitInfo] = {}
    for split, num_documents in (("train", 24), ("validation", 9)):
        num_words = 0
        with ShardWriter(folder, split, VOCAB) as shard:
            for number in range(num_documents):
                label = number % 2
                first = label if num_texts == 1 else int(rng.integers(2))
                kinds = [[first], [first, first ^ label ^ 1], [first, first ^ label, first ^ label ^ 1]]
                document = [np.array([1])]
                for kind in kinds[num_texts - 1]:
                    length = int(rng.integers(4, 20)) // (1 if num_texts == 1 else 2)
                    ids = (rng.integers(40) + (1 + 2 * kind) * np.arange(length)) % 40 + 5
                    document += [ids, np.array([2])]
                    num_words += length
                shard.append([np.concatenate(document)], [label])
            splits[split] = shard.info(num_words, 5 * num_words)
    names = ("slow", "fast")
    specials = {"unk_id": 3, "bos_id": 1, "eos_id": 2, "pad_id": 0}
    info = TokensInfo(VOCAB, "abc", **specials, label_names=names, splits=splits, num_texts=num_texts)
    write_info(folder, info)
    return folder


def language_model_job(
    tokens: Path,
    family: str = "awd_lstm",
    *,
    kind: str = "adamw",
    seed: int = 7,
    start: Path | None = None,
    config: Mapping[str, Any] | None = None,
    **changes: Any,
) -> Job:
    """A training of a tiny model; `changes` are of its settings, also of those of the family's objective."""
    optimizer = {**OPTIMIZER, "kind": kind, **changes.pop("optimizer", {})}
    if kind != "adamw":
        optimizer = {"lr": 3.0, **changes.pop("rate", {})} | {k: v for k, v in optimizer.items() if k != "lr"}
    own = {name: changes.pop(name) for name in OWN[family].keys() & changes.keys()}
    common = {**TRAINING, **LANGUAGE_MODEL, "optimizer": optimizer, **changes}
    return make_language_model_job(
        language_model_settings(family, common, **own),
        model_of(family, **(config or {})),
        stage="finetune_lm" if start else "pretrain_lm",
        tokens=tokens,
        start=ModelFolder.at(start) if start else None,
        seed=seed,
    )


def taught(job: Job, teacher: Path, cosine: float = 0.0, soft: float = 5.0) -> Job:
    assert isinstance(job, LanguageModelJob)
    return dataclasses.replace(
        job, lesson=Lesson(ModelFolder.at(teacher), Distillation(2.0, soft=soft, hard=2.0, cosine=cosine))
    )


def taught_classifier(job: Job, folder: Path) -> Job:
    """The job with a lesson: something that a teacher says of each document."""
    assert isinstance(job, ClassifierJob)
    folder.mkdir(exist_ok=True)
    scores = np.random.default_rng(3).normal(size=(len(open_shard(job.tokens, "train")), 2))
    log_probs = torch.from_numpy(scores).log_softmax(1).float().numpy()
    np.save(folder / TAUGHT_FILE, log_probs)
    return dataclasses.replace(job, lesson=ClassifierLesson(folder, temperature=2.0, soft=1.0, hard=0.5))


def features_beside(tokens: Path) -> dict[str, Any]:
    """Made-up features of another head start, and the setting that names it."""
    folder = tokens.parent / "features" / "vectors"
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(5)
    for split in ("train", "validation"):
        features = rng.normal(size=(len(open_shard(tokens, split)), 2, 3)).astype(np.float32)
        written = folder / f"{split}.{os.getpid()}.npy"  # as several processes write it
        np.save(written, features)
        written.replace(folder / f"{split}.npy")
    return {"beside": "vectors", "features": folder.parent}


def classifier_job(
    tokens: Path,
    family: str = "awd_lstm",
    *,
    kind: str = "adamw",
    start: Path | None = None,
    features: Path | None = None,
    **changes: Any,
) -> Job:
    values = {**TRAINING, **CLASSIFIER, "optimizer": {**OPTIMIZER, "kind": kind}, **changes}
    reads = {} if start or family != "awd_lstm" else {"direction": "backward"}
    return make_classifier_job(
        ClassifierTraining(**values),
        model_of(family, **reads),
        NORMALISE,
        tokens=tokens,
        start=ModelFolder.at(start) if start else None,
        seed=7,
        features=features,
    )


@pytest.fixture
def tokens(tmp_path, request) -> Path:
    """Documents of as many texts as the family's language-model stages learn from, where a test has one."""
    given = getattr(request.node, "callspec", None)
    family = str(given.params.get("family")) if given else ""
    return write_tokens(tmp_path / "tokens", TEXTS.get(family, 1))


@dataclass(frozen=True)
class Starts:
    """Models of a family that earlier stages have exported."""

    pretrained: Path
    finetuned: Path


@pytest.fixture(scope="module")
def starts(tmp_path_factory) -> dict[str, Starts]:
    """By family."""
    folder = tmp_path_factory.mktemp("starts")
    by_number = {number: write_tokens(folder / f"tokens-{number}", number) for number in (1, 2)}
    found = {}
    for family in FAMILIES:
        tokens = by_number[TEXTS.get(family, 1)]
        found[family] = Starts(folder / family / "pretrained", folder / family / "finetuned")
        pretrained = language_model_job(tokens, family, epochs=2.0, seed=1)
        export_trained(pretrained, found[family].pretrained)
        finetuned = language_model_job(tokens, family, epochs=2.0, start=found[family].pretrained)
        export_trained(finetuned, found[family].finetuned)
    return found


def export_trained(job: Job, folder: Path) -> None:
    task = job.task(Context())
    train(task, Context())
    export_model(folder, task.model.state_dict(), job.card)


class StopTrainingError(Exception):
    pass


@dataclass
class Curve:
    """A recorder that drops the steps a resumed run replays, and can stop the run at a step."""

    stop_at: int | None = None
    records: dict[int, dict[str, float]] = field(default_factory=dict)
    opened_at: list[int] = field(default_factory=list)
    durable_step: int = -1  # step of the last record that would survive a power cut
    path: Path | None = None

    def open(self, resume_step: int, earlier: bytes | None = None) -> Curve:
        self.opened_at.append(resume_step)
        self.records = {step: metrics for step, metrics in self.records.items() if step <= resume_step}
        return self

    def record(self, step: int, metrics: Mapping[str, float]) -> None:
        if self.stop_at is not None and step >= self.stop_at:
            raise StopTrainingError
        assert step not in self.records
        timeless = {name: value for name, value in metrics.items() if name != "train/tokens_per_second"}
        self.records[step] = timeless

    def flush(self) -> None:
        self.durable_step = max(self.records)

    def close(self) -> None:
        return None


def context_of(folder: Path, curve: Curve, **where: Any) -> Context:
    return Context(
        device=DEVICE,
        meter=Cost(),
        store=CheckpointStore(str(folder), keep=2),
        open_recorder=curve.open,
        checkpoint_minutes=1e-12,
        log_steps=1,
        **where,
    )


def run(job: Job, folder: Path, curve: Curve | None = None) -> Checkpoint:
    context = context_of(folder, curve or Curve())
    assert context.store is not None
    train(job.task(context), context)
    checkpoint = context.store.newest()
    assert checkpoint is not None
    return checkpoint


def assert_identical(found: Checkpoint, wanted: Checkpoint) -> None:
    assert found.step == wanted.step
    assert without_cost(found) == without_cost(wanted)
    assert found.tensors.keys() == wanted.tensors.keys()
    for name, tensor in wanted.tensors.items():
        assert torch.equal(found.tensors[name], tensor), name


def without_cost(checkpoint: Checkpoint) -> dict[str, Any]:
    return {name: value for name, value in checkpoint.state.items() if name != "spent"}


def jobs_to_resume(tokens: Path, starts: Mapping[str, Starts]) -> dict[str, Job]:
    noisy: dict[str, Any] = {"rate": {"lr": 30.0}, "optimizer": {"clip_norm": None}}
    lstm, vectors = starts["awd_lstm"], starts["word_vectors"]
    pairs = tokens.parent / "pairs"
    if not pairs.exists():
        write_tokens(pairs, 2)
    return {
        "lm-adamw": language_model_job(tokens),
        "lm-sampled": language_model_job(tokens, sampled_words=20),
        "lm-sgd": language_model_job(tokens, kind="sgd"),
        "lm-nt_asgd": language_model_job(tokens, kind="nt_asgd", **noisy),
        "lm-started": language_model_job(tokens, start=lstm.pretrained),
        "lm-taught": taught(language_model_job(tokens), starts["transformer_xl"].pretrained),
        "vectors-skip_gram": language_model_job(tokens, "word_vectors"),
        "vectors-adagrad": language_model_job(tokens, "word_vectors", kind="adagrad", rate={"lr": 0.1}),
        "vectors-cbow": language_model_job(tokens, "word_vectors", config={"algorithm": "cbow"}),
        "vectors-glove": language_model_job(
            tokens, "word_vectors", config={"algorithm": "glove"}, row_tokens=15
        ),
        "vectors-started": language_model_job(tokens, "word_vectors", start=vectors.pretrained),
        "bert-pairs": language_model_job(tokens, "bert", next_sentence=True),
        "bert-taught": taught(
            language_model_job(tokens, "bert", next_sentence=True), starts["bert"].finetuned, cosine=1.0
        ),
        "bert-plain": language_model_job(tokens, "bert"),
        "bert-started": language_model_job(tokens, "bert", start=starts["bert"].pretrained),
        "classifier-bert": classifier_job(tokens, "bert", start=starts["bert"].finetuned, pooling="first"),
        "gpt-adamw": language_model_job(tokens, "gpt"),
        "gpt-taught": taught(language_model_job(tokens, "gpt"), starts["gpt"].finetuned, cosine=1.0),
        "gpt-taught-by-bert": taught(
            language_model_job(tokens, "gpt"), starts["bert"].finetuned, cosine=1.0, soft=0.0
        ),
        "gpt-started": language_model_job(tokens, "gpt", start=starts["gpt"].pretrained),
        "cove-adamw": language_model_job(pairs, "cove"),
        "cove-started": language_model_job(pairs, "cove", start=starts["cove"].pretrained),
        "classifier-cove": classifier_job(tokens, "cove", start=starts["cove"].finetuned, layers=[0, -1]),
        "elmo-adamw": language_model_job(tokens, "elmo"),
        "elmo-started": language_model_job(tokens, "elmo", start=starts["elmo"].pretrained),
        "classifier-elmo": classifier_job(
            tokens, "elmo", start=starts["elmo"].finetuned, layers=[0, 1, 2], combine="mix"
        ),
        "ntm-adamw": language_model_job(tokens, "ntm"),
        "ntm-started": language_model_job(tokens, "ntm", start=starts["ntm"].pretrained),
        "classifier-ntm": classifier_job(tokens, "ntm", start=starts["ntm"].finetuned),
        "xl-adamw": language_model_job(tokens, "transformer_xl"),
        "xl-started": language_model_job(tokens, "transformer_xl", start=starts["transformer_xl"].pretrained),
        "classifier-xl": classifier_job(tokens, "transformer_xl", start=starts["transformer_xl"].finetuned),
        "classifier": classifier_job(tokens, unfreeze="chain_thaw"),
        "classifier-gpt": classifier_job(
            tokens, "gpt", start=starts["gpt"].finetuned, language_model_weight=0.5
        ),
        "classifier-started": classifier_job(tokens, start=lstm.finetuned),
        "classifier-vectors": classifier_job(tokens, "word_vectors", start=vectors.finetuned, pooling="mean"),
        "classifier-attention": classifier_job(tokens, pooling="attention", unfreeze="chain_thaw"),
        "classifier-taught": taught_classifier(classifier_job(tokens), tokens.parent / "lesson"),
        "classifier-beside": classifier_job(tokens, **features_beside(tokens)),
        "contrastive": classifier_job(
            tokens, "gpt", start=starts["gpt"].finetuned, method="contrastive", epochs=4.0
        ),
        "patience": classifier_job(tokens, epochs=8.0, patience=3, optimizer=OPTIMIZER | {"lr": 0.2}),
        "restarts": classifier_job(tokens, optimizer=HOPELESS, restarts=2),
    }


KINDS = ["lm-adamw", "lm-sampled", "lm-sgd", "lm-nt_asgd", "lm-started"]
KINDS += ["vectors-skip_gram", "vectors-adagrad", "vectors-cbow", "vectors-glove", "vectors-started"]
KINDS += ["lm-taught", "gpt-taught", "gpt-taught-by-bert", "bert-taught"]
KINDS += ["bert-pairs", "bert-plain", "bert-started", "classifier-bert"]
KINDS += ["elmo-adamw", "elmo-started", "classifier-elmo"]
KINDS += ["ntm-adamw", "ntm-started", "classifier-ntm"]
KINDS += ["cove-adamw", "cove-started", "classifier-cove"]
KINDS += ["gpt-adamw", "gpt-started", "classifier-gpt", "xl-adamw", "xl-started", "classifier-xl"]
KINDS += [
    "classifier",
    "classifier-started",
    "classifier-vectors",
    "classifier-attention",
    "classifier-taught",
    "classifier-beside",
]
KINDS += ["contrastive", "patience", "restarts"]


def test_each_family_is_resumed_and_trained_by_several_processes(tokens, starts, tmp_path):
    (tmp_path / "several").mkdir()
    for jobs in (jobs_to_resume(tokens, starts), several_jobs(write_several(tmp_path / "several"))):
        trained = {job.card.family for job in jobs.values() if isinstance(job, LanguageModelJob)}
        assert trained == {*FAMILIES}
    assert {*KINDS} == jobs_to_resume(tokens, starts).keys()
    assert {*SEVERAL} == several_jobs(tmp_path / "several/tokens").keys()


# A word vectors' step counts its pairs on the device, and ELMo finds the words there.
WAITING = {"vectors-skip_gram", "vectors-adagrad", "vectors-cbow", "vectors-started"}
WAITING |= {"elmo-adamw", "elmo-started", "classifier-elmo"}
# A teacher is loaded to where the training runs, and torch has no fused SGD for tensors without numbers.
NOT_WITHOUT_NUMBERS = {"lm-taught", "gpt-taught", "gpt-taught-by-bert", "bert-taught", "lm-sgd", "lm-nt_asgd"}


@pytest.fixture(scope="module")
def resumable(starts, tmp_path_factory) -> dict[str, Job]:
    return jobs_to_resume(write_tokens(tmp_path_factory.mktemp("resumable") / "tokens"), starts)


@pytest.mark.parametrize("name", [name for name in KINDS if name not in WAITING | NOT_WITHOUT_NUMBERS])
def test_a_step_does_not_wait_for_the_device(resumable, name):
    """On torch's device without numbers `.item()`, a copy to the host or a choice by content is an error."""
    training = on_device_without_numbers(resumable[name])
    for _ in range(2):
        training.train_step()


@pytest.mark.parametrize("name", ["vectors-cbow", "elmo-adamw"])
def test_waiting_for_the_device_is_noticed(resumable, name):
    with pytest.raises(RuntimeError, match="cannot be called on meta tensors"):
        on_device_without_numbers(resumable[name]).train_step()


def on_device_without_numbers(job: Job) -> Training:
    task, device = job.task(Context()), torch.device("meta")
    names = {parameter: name for name, parameter in task.model.named_parameters()}
    named_groups = [[names[parameter] for parameter in group] for group in task.groups]
    moved = dict(task.model.to(device).named_parameters())
    groups = [[moved[name] for name in group] for group in named_groups]
    return Training(dataclasses.replace(task, groups=groups), Context(device=device))


@pytest.fixture(autouse=True, scope="module")
def exact_arithmetic():
    if DEVICE.type == "cuda":
        set_arithmetic(None, deterministic=True)


@pytest.mark.parametrize("name", KINDS)
def test_a_run_stopped_at_every_step_ends_bit_for_bit_like_an_undisturbed_one(resumable, tmp_path, name):
    job = resumable[name]
    whole_curve = Curve()
    whole = run(job, tmp_path / "whole", whole_curve)
    task = job.task(Context())
    plan, num_groups = task.plan, len(task.groups)
    expected = {"lm": 3, "vectors": 2, "gpt": 4, "bert": 4, "xl": 3, "cove": 4, "ntm": 3}
    assert num_groups == expected.get(name.partition("-")[0], num_groups)
    assert len(plan.phases) >= num_groups > 1  # groups unfreeze, and a partial epoch begins, during the run
    assert len(set(plan.at(plan.num_steps - 1).lrs)) == num_groups  # each group has its own rate
    assert 10 <= whole.step <= plan.num_steps * (3 if name == "restarts" else 1)
    assert (whole.step < plan.num_steps) == (name == "patience")
    assert whole.state["restarts"] == (2 if name == "restarts" else 0)
    if name == "lm-nt_asgd":
        assert whole.state["averaging"]
        assert 1 < whole.state["num_averaged"] < plan.num_steps

    curve = Curve()
    for step in range(2, whole.step + 1):
        curve.stop_at = step
        with pytest.raises(StopTrainingError):
            run(job, tmp_path / "stopped", curve)
    curve.stop_at = None
    before = CheckpointStore(str(tmp_path / "stopped"), keep=2).newest()
    stopped = run(job, tmp_path / "stopped", curve)
    assert_identical(stopped, whole)
    assert before is not None
    # The cost of interrupted attempts is kept.
    assert stopped.state["spent"]["core_seconds"] >= before.state["spent"]["core_seconds"] > 0
    assert curve.records == whole_curve.records
    assert sorted(curve.records) == list(range(whole.step + 1))
    # Each start but the first resumed from the step before the last stop.
    assert curve.opened_at == [-1, *range(1, whole.step)]


@given(data=strategies.data())
@settings(max_examples=30, derandomize=True)
def test_wherever_and_however_often_a_run_is_stopped_it_ends_alike(whole_runs, data):
    """Stops between checkpoints: the steps since the last checkpoint are repeated."""
    job, whole, records = whole_runs(data.draw(strategies.sampled_from(sorted(KINDS))))
    with tempfile.TemporaryDirectory() as folder:
        curve = Curve()
        for _ in range(data.draw(strategies.integers(1, 4))):
            curve.stop_at = data.draw(strategies.integers(1, whole.step))
            context = context_of(Path(folder), curve)
            context.log_steps = data.draw(strategies.integers(1, 7))
            with contextlib.suppress(StopTrainingError):
                train(job.task(context), context)
        curve.stop_at = None
        assert_identical(run(job, Path(folder), curve), whole)
        evaluated = {step: metrics for step, metrics in records.items() if "validation/loss" in metrics}
        for step, metrics in evaluated.items():
            found = {
                key: value for key, value in curve.records[step].items() if key.startswith("validation/")
            }
            assert found == {key: value for key, value in metrics.items() if key.startswith("validation/")}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_started_run_begins_with_the_weights_that_it_is_given(tokens, tmp_path, starts, family):
    texts = write_tokens(tmp_path / "texts")
    jobs = {
        starts[family].pretrained: language_model_job(tokens, family, start=starts[family].pretrained),
        starts[family].finetuned: classifier_job(texts, family, start=starts[family].finetuned),
    }
    for start, job in jobs.items():
        given = load_model(start)[0]
        if job.card.head is not None:
            given = {key: value for key, value in given.items() if key.startswith("encoder.")}
        begun = job.task(Context()).model.state_dict()
        assert "encoder.embedding.weight" in given
        assert (len(given) > 5) == (family != "word_vectors")
        for key, weight in given.items():
            assert torch.equal(begun[key], weight), key


def evaluations(records: Mapping[int, Mapping[str, float]]) -> dict[int, dict[str, float]]:
    found = {
        step: {key: value for key, value in metrics.items() if key.startswith("validation/")}
        for step, metrics in records.items()
    }
    return {step: metrics for step, metrics in found.items() if metrics}


WholeRun = tuple[Job, Checkpoint, dict[int, dict[str, float]]]


@pytest.fixture(scope="module")
def whole_runs(tmp_path_factory, resumable) -> Callable[[str], WholeRun]:
    """Uninterrupted runs by kind, with their curves, each made when it is first asked for."""
    folder = tmp_path_factory.mktemp("whole")

    @cache
    def whole_run(name: str) -> WholeRun:
        curve = Curve()
        return resumable[name], run(resumable[name], folder / name, curve), curve.records

    return whole_run


@pytest.mark.parametrize("family", FAMILIES)
def test_the_curve_is_durable_before_a_checkpoint_covers_it(tokens, tmp_path, family):
    curve = Curve()
    saved = []

    class Store(CheckpointStore):
        def save(self, checkpoint: Checkpoint) -> None:
            assert curve.durable_step == checkpoint.step
            saved.append(checkpoint.step)

    context = context_of(tmp_path / "run", curve)
    context.store = Store(str(tmp_path / "run"), keep=2)
    train(language_model_job(tokens, family, epochs=2.0).task(context), context)
    assert saved == list(range(1, max(curve.records) + 1))


@pytest.mark.parametrize("family", FAMILIES)
def test_each_evaluation_has_the_measures_of_the_objective(tokens, tmp_path, family):
    curve = Curve()
    run(language_model_job(tokens, family), tmp_path / "run", curve)
    measures = {f"validation/{measure.name}" for measure in objective_of(lookup(family)).measures}
    evaluated = evaluations(curve.records)
    assert len(evaluated) == 1 + round(2.5 * 3)  # the first before training
    switched_off = {"validation/next_sentence_error"} if family == "bert" else set()
    assert {frozenset(metrics) for metrics in evaluated.values()} == {frozenset(measures - switched_off)}
    losses = [metrics["validation/loss"] for metrics in evaluated.values()]
    assert losses[-1] < losses[0]
    trained = [
        step for step, metrics in curve.records.items() if np.isfinite(metrics.get("train/loss", np.nan))
    ]
    assert trained == list(range(1, max(evaluated) + 1))


@pytest.mark.parametrize(
    "name", ["lm-adamw", "lm-nt_asgd", "vectors-skip_gram", "vectors-glove", "classifier"]
)
def test_a_finished_run_is_restored_without_a_step(resumable, tmp_path, name):
    job = resumable[name]
    done = run(job, tmp_path / "run")
    curve = Curve()
    context = context_of(tmp_path / "run", curve)
    task = job.task(context)
    metrics = train(task, context)
    assert curve.opened_at == [done.step]
    assert curve.records == {}
    assert metrics == done.state["evaluations"][-1]["metrics"]
    for key, tensor in task.model.state_dict().items():
        assert torch.equal(tensor, done.tensors[f"model.{key}"])
    assert_identical(run(job, tmp_path / "run"), done)


def test_the_finished_weights_of_nt_asgd_are_the_averaged_ones(resumable, tmp_path):
    job = resumable["lm-nt_asgd"]
    context = context_of(tmp_path / "run", Curve())
    task = job.task(context)
    metrics = train(task, context)
    again = task.objective.evaluate(context)
    assert again == metrics  # the last evaluation used the average, and the model keeps it


def test_a_run_that_stops_early_keeps_the_weights_of_its_best_evaluation(resumable, tmp_path):
    job = resumable["patience"]
    context = context_of(tmp_path / "run", Curve())
    task = job.task(context)
    metrics = train(task, context)
    assert task.objective.evaluate(context) == metrics
    done = run(job, tmp_path / "run")
    evaluations = done.state["evaluations"][1:]  # the first precedes training
    losses = [each["metrics"]["validation/loss"] for each in evaluations]
    assert metrics["validation/loss"] == min(losses)
    assert losses.index(min(losses)) == len(losses) - 1 - 3  # followed by three that were no better
    assert done.state["kept_metrics"] == metrics


def test_a_training_that_did_not_take_off_begins_anew_at_half_the_rates(tokens, tmp_path):
    job, curve = classifier_job(tokens, optimizer=HOPELESS, restarts=2), Curve()
    num_steps = job.task(Context()).plan.num_steps
    done = run(job, tmp_path / "run", curve)
    assert done.step == 3 * num_steps
    assert (done.state["restarts"], done.state["took_off"]) == (2, False)
    assert done.state["first_step"] == 2 * num_steps
    for step in range(1, num_steps + 1):
        first, second, third = (curve.records[step + begun * num_steps] for begun in range(3))
        for rate in (name for name in first if name.startswith("lr/")):
            assert second[rate] == first[rate] / 2
            assert third[rate] == first[rate] / 4
    assert [each["step"] for each in done.state["evaluations"]][-1] == 3 * num_steps


def test_a_training_that_begins_anew_does_so_from_its_first_weights(tokens):
    task = classifier_job(tokens, restarts=1).task(Context())
    first = {name: each.clone() for name, each in task.model.state_dict().items()}
    training = Training(task, Context())
    task.objective.took_off = lambda context: False  # type: ignore[method-assign]
    while not training.at_end:
        training.train_step()
    assert any(not torch.equal(each, first[name]) for name, each in task.model.state_dict().items())
    training.conclude()
    assert not training.finished
    assert not training.at_end
    assert all(torch.equal(each, first[name]) for name, each in task.model.state_dict().items())
    assert not training.optimizer.state


def test_a_classifier_takes_off_if_it_beats_the_class_frequencies_on_its_training_documents(tokens, tmp_path):
    job = classifier_job(tokens, epochs=40.0, restarts=1)
    done = run(job, tmp_path / "run")
    assert (done.state["restarts"], done.state["took_off"]) == (0, True)
    task = job.task(Context())
    with torch.no_grad():  # the frequencies of the two classes, which are equally frequent
        for name in ("weight", "bias"):
            task.model.get_parameter(f"head.linear_out.{name}").zero_()
    assert not task.objective.took_off(Context())


def test_a_layer_that_would_never_train_is_refused_before_training(tokens):
    with pytest.raises(ValueError, match=r"pretrain_lm\.epochs is 1\.0, .* over 3 layer groups"):
        language_model_job(tokens, epochs=1.0)
    with pytest.raises(ValueError, match=r"pretrain_lm\.epochs is 0\.5, .* over 2 layer groups"):
        language_model_job(tokens, "word_vectors", epochs=0.5)
    with pytest.raises(ValueError, match=r"finetune_classifier\.epochs is 1\.0, .* over 4 layer groups"):
        classifier_job(tokens, epochs=1.0)


def test_as_many_sampled_words_as_the_vocabulary_has_are_refused(tokens):
    with pytest.raises(ValueError, match=r"pretrain_lm\.sampled_words is 50 of a vocabulary of 50"):
        language_model_job(tokens, sampled_words=VOCAB)


def test_training_does_not_load_the_compiler_of_torch(tokens, tmp_path):
    """Loading it takes over a second of each process that makes a job or trains one."""
    code = f"""
import sys
from pathlib import Path
from tests.training.test_loop import Curve, classifier_job, language_model_job, run
for family in ("awd_lstm", "word_vectors"):
    run(language_model_job(Path({str(tokens)!r}), family), Path({str(tmp_path)!r}) / family, Curve())
run(classifier_job(Path({str(tokens)!r})), Path({str(tmp_path / "classifier")!r}), Curve())
print("torch._dynamo" in sys.modules)
"""
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, text=True, capture_output=True, check=True)
    assert done.stdout.split() == ["False"]


def test_a_text_that_a_family_cannot_learn_from_takes_no_epochs(tokens, starts, tmp_path):
    start = starts["cove"].pretrained
    with pytest.raises(
        ValueError, match=r"finetune_lm\.epochs is 2\.5, .* the family cove learns from; set it"
    ):
        language_model_job(tokens, "cove", start=start)
    job = language_model_job(tokens, "cove", start=start, epochs=0.0)
    assert isinstance(job, LanguageModelJob)
    assert not job.learns  # so `lr-find` refuses it
    done = run(job, tmp_path / "run")
    assert done.step == 0
    assert [each["metrics"] for each in done.state["evaluations"]] == [{}]
    for key, weight in load_model(start)[0].items():
        assert torch.equal(done.tensors[f"model.{key}"], weight), key


@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_seed_gives_the_same_figures_and_another_others(tokens, tmp_path, family):
    curves = [Curve(), Curve(), Curve()]
    for number, (seed, curve) in enumerate(zip((7, 7, 8), curves, strict=True)):
        run(language_model_job(tokens, family, seed=seed), tmp_path / str(number), curve)
    assert curves[0].records == curves[1].records
    assert curves[0].records != curves[2].records


def test_a_language_model_learns_a_learnable_language(tokens):
    # Two tokens can follow each: log(2) = 0.69 nats at best, log(50) = 3.9 untrained.
    job = language_model_job(
        tokens, epochs=60.0, unfreeze="full", dropout=0.0, ar_alpha=0.0, tar_beta=0.0, evaluations_per_epoch=1
    )
    curve = Curve()
    context = Context(open_recorder=curve.open)
    metrics = train(job.task(context), context)
    before = curve.records[0]
    assert before["validation/loss"] == pytest.approx(np.log(VOCAB), abs=0.3)
    assert metrics["validation/loss"] < 0.8 * before["validation/loss"]
    last = max(step for step, each in curve.records.items() if "train/loss" in each)
    assert curve.records[last]["train/loss"] < 0.6 * np.log(VOCAB)
    assert metrics["validation/bits_per_byte"] < before["validation/bits_per_byte"]
    assert metrics["validation/perplexity"] == pytest.approx(np.exp(metrics["validation/loss"]))


def test_sampled_words_teach_and_nearly_as_much_as_all_words_where_they_are_most(tokens):
    losses = {}
    for sampled_words in (None, 40, 25):
        job = language_model_job(
            tokens, epochs=40.0, unfreeze="full", dropout=0.0, sampled_words=sampled_words
        )
        context = Context()
        losses[sampled_words] = train(job.task(context), context)["validation/loss"]
    assert max(losses.values()) < 0.8 * np.log(VOCAB)
    assert losses[40] == pytest.approx(losses[None], rel=0.03)


def test_a_classifier_learns_a_learnable_difference(tokens):
    job = classifier_job(tokens, epochs=60.0, unfreeze="full", dropout=0.0, head_dropout=[0.0, 0.0])
    curve = Curve()
    context = Context(open_recorder=curve.open)
    train(job.task(context), context)
    steps = sorted(step for step, metrics in curve.records.items() if "train/loss" in metrics)
    assert curve.records[steps[-1]]["train/loss"] < 0.4 * np.log(2)


def test_features_of_other_documents_are_refused(tokens):
    settings = features_beside(tokens)
    file = settings["features"] / "vectors" / "train.npy"
    np.save(file, np.load(file)[:-1])
    with pytest.raises(ValueError, match=r"vectors has features of \d+ documents of train, where there are"):
        classifier_job(tokens, **settings)
    file.unlink()
    with pytest.raises(ValueError, match="the features of vectors cannot be read"):
        classifier_job(tokens, **settings)


def test_what_the_features_of_another_head_start_tell_is_learned(tokens):
    settings = features_beside(tokens)
    for split in ("train", "validation"):
        labels = np.array(open_shard(tokens, split).labels)
        told = np.random.default_rng(6).normal(size=(len(labels), 1, 4)) + 4 * labels[:, None, None]
        np.save(settings["features"] / "vectors" / f"{split}.npy", told.astype(np.float32))
    loss = {}
    for name, features in {"alone": {}, "beside": settings}.items():
        job = classifier_job(tokens, epochs=20.0, unfreeze="head", head_dropout=[0.0, 0.0], **features)
        task = job.task(Context())
        train(task, Context())
        loss[name] = task.objective.evaluate(Context())["validation/loss"]
    assert loss["beside"] < 0.2 * np.log(2) < 0.8 * np.log(2) < loss["alone"]


def test_with_unfreeze_head_the_head_trains_and_the_encoder_stays_as_it_was(tokens, starts, tmp_path):
    job = classifier_job(tokens, start=starts["awd_lstm"].finetuned, unfreeze="head", epochs=1.0)
    before, after = job.task(context_of(tmp_path / "x", Curve())).model, run(job, tmp_path / "run").tensors
    for name, tensor in before.state_dict().items():
        same = torch.equal(after[f"model.{name}"], tensor)
        assert same == name.startswith("encoder."), name


@pytest.mark.parametrize("tie_weights", [True, False])
def test_the_auxiliary_loss_is_that_of_the_language_model_on_the_same_texts(tokens, tmp_path, tie_weights):
    """Radford et al. 2018, section 3.2: L3 = L2 + weight * L1."""
    own = {"tie_weights": tie_weights, "embedding_dropout": 0.0, "attention_dropout": 0.0}
    config = {**own, "residual_dropout": 0.0, "context": 20}
    pretrained = language_model_job(tokens, "gpt", config=config, epochs=2.0)
    export_trained(pretrained, tmp_path / "start")
    model, start = model_of("gpt", **config), ModelFolder.at(tmp_path / "start")
    values = {**TRAINING, **CLASSIFIER, "optimizer": OPTIMIZER, "bptt": 20, "head_dropout": [0.0, 0.0]}
    tasks = [
        make_classifier_job(
            ClassifierTraining(**values | {"language_model_weight": weight}),
            model, NORMALISE, tokens=tokens, start=start, seed=7,
        ).task(Context())
        for weight in (0.0, 0.3)
    ]  # fmt: skip
    without, with_it = (task.objective.loss(3, (), Context()).objective for task in tasks)
    assert isinstance(tasks[0].objective, Classification)
    batch = tasks[0].objective.batches.at(3, 0, 1)
    language_model: Any = pretrained.task(Context()).model
    language_model.load_state_dict(start.tensors())
    logits = language_model.logits(language_model(batch.ids_BT).features)
    nats = torch.cat(
        [
            F.cross_entropy(logits[row, : mask.sum() - 1], ids[1 : mask.sum()], reduction="none")
            for row, (ids, mask) in enumerate(zip(batch.ids_BT, batch.mask_BT, strict=True))
        ]
    )
    assert float((with_it - without).detach()) == pytest.approx(0.3 * float(nats.detach().mean()), rel=1e-4)
    with_it.backward()
    assert tasks[1].model.get_parameter("encoder.embedding.weight").grad is not None


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("bert", {}, "language_model_weight is 0.5, but bert is not trained to predict the next token"),
        ("gpt", {"method": "contrastive", "unfreeze": "full"}, "language_model_weight is 0.5; set it to 0"),
    ],
)
def test_an_auxiliary_loss_that_there_is_not_is_refused(tokens, family, changes, message):
    with pytest.raises(ValueError, match=message):
        classifier_job(tokens, family, kind="sgd", language_model_weight=0.5, **changes)


@pytest.mark.parametrize("name", ["awd_lstm", "elmo", "cove"])
def test_an_encoder_that_stays_frozen_gives_in_training_what_a_probe_reads(tokens, starts, name):
    start = starts[name].finetuned
    for unfreeze in ("head", "full"):
        job = classifier_job(tokens, name, start=start, unfreeze=unfreeze, dropout=5.0)
        objective = job.task(Context()).objective
        assert isinstance(objective, Classification)
        read = objective.batches.at(0, 0, 1)
        num_rows = len(read.ids_BT)
        clean = objective.model.features(read.ids_BT, read.mask_BT)
        batch = GlobalBatch(7, 3, num_rows, slice(0, num_rows))
        trained = objective.model.features(read.ids_BT, read.mask_BT, batch)
        assert torch.equal(trained, clean) == (unfreeze == "head")


@pytest.mark.parametrize("family", ["awd_lstm", "gpt"])
def test_what_reads_from_left_to_right_is_not_judged_by_its_first_token(tokens, family):
    with pytest.raises(
        ValueError, match=rf"pooling is first, but {family} reads .*; choose last, mean or con"
    ):
        classifier_job(tokens, family, pooling="first")


def test_idf_pooling_is_filled_from_the_training_documents_and_exported_with_the_weights(tokens, tmp_path):
    job = classifier_job(tokens, pooling="idf", epochs=2.5, max_labels=4)
    export_trained(job, tmp_path / "model")
    shard = open_shard(tokens, "train")
    held = np.array([[token in shard.document(k) for token in range(VOCAB)] for k in range(len(shard))])
    expected = np.log((1 + len(shard)) / (1 + held.sum(0))) + 1
    model, _, _ = load_classifier(tmp_path / "model")
    assert model.idf_V is not None
    np.testing.assert_allclose(model.idf_V.numpy(), expected, rtol=1e-6)


def test_a_loss_that_is_not_finite_is_refused_with_what_to_do(tokens):
    job = language_model_job(
        tokens, kind="sgd", rate={"lr": 1e30}, optimizer={"clip_norm": None}, unfreeze="full"
    )
    context = Context(log_steps=1)
    with pytest.raises(
        ValueError, match=r"the training loss is (nan|inf) at step \d+: lower .*optimizer\.lr"
    ):
        train(job.task(context), context)


@pytest.mark.parametrize("kind", ["lm", "vectors", "glove", "classifier"])
def test_a_worker_without_rows_takes_part_with_nothing(tokens, kind):
    # With three workers and two rows, the first worker has no row and adds nothing to loss and gradient.
    two: dict[str, Any] = {"batch_rows": 2, "unfreeze": "full"}
    job = {
        "lm": lambda: language_model_job(tokens, **two),
        "vectors": lambda: language_model_job(tokens, "word_vectors", **two),
        "glove": lambda: language_model_job(tokens, "word_vectors", config={"algorithm": "glove"}, **two),
        "classifier": lambda: classifier_job(tokens, **two),
    }[kind]()
    context = Context(rank=0, world=3)
    if kind == "vectors":  # how many pairs the others have is only known to them
        context.all_reduce = lambda counts: counts.add_(5)
    task = job.task(context)
    loss = task.objective.loss(0, (), context)
    loss.objective.backward()
    assert float(loss.nats) == 0
    assert loss.num_targets > 0
    for name, parameter in task.model.named_parameters():
        assert parameter.grad is None or not bool(parameter.grad.any()), name


@pytest.mark.parametrize("name", ["lm", "xl", "bert", "classifier-gpt", "contrastive", "pairs", "choices"])
def test_micro_batches_train_the_same_model(tmp_path, name):
    job = several_jobs(write_several(tmp_path))[name]
    trained = []
    for micro_rows in (None, 2):
        task = job.task(Context(micro_rows=micro_rows))
        metrics = train(task, Context(micro_rows=micro_rows))
        trained.append((metrics, task.model.state_dict()))
    (one, weights), (parts, weights_in_parts) = trained
    assert parts == pytest.approx(one, rel=1e-4)
    for key, tensor in weights.items():
        computed, expected = without_key_biases(key, weights_in_parts[key]), without_key_biases(key, tensor)
        assert torch.allclose(computed, expected, rtol=1e-3, atol=2e-5), key


# ------------------------------------------------------------------------------- several processes


WORLDS = (2, 3)
WORLDS_BEGUN_BY_ONE = (3,)
WORLDS_OF_SHARDS = (3,)
SHARDED = ("nt_asgd", "bert", "xl", "classifier-gpt", "contrastive", "pairs")


def process(rank: int, num_processes: int, folder: Path) -> None:
    """Run one of several processes: it joins each world that includes its rank and saves a checkpoint."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder / 'meeting'}", rank=rank, world_size=num_processes
    )
    layout._BUCKET_NUMBERS = 100  # so that even these models have several buckets
    for world in WORLDS:
        group, beside = (torch.distributed.new_group(list(range(world))) for _ in range(2))
        if rank >= world:
            continue
        where: dict[str, Any] = {
            "rank": rank, "world": world, "all_reduce": partial(summed, group=group),
        }  # fmt: skip
        buckets = {"begin_all_reduce": partial(begin_sum, group=beside)}
        shards = {"shard_mesh": partial(DeviceMesh.from_group, group, "cpu")}
        for name, job in several_jobs(folder / "tokens").items():
            layouts: dict[str, dict[str, Any]] = {"": buckets}
            if world in WORLDS_BEGUN_BY_ONE:
                layouts["begun-by-one-"] = {}
            if in_shards := name in SHARDED and world in WORLDS_OF_SHARDS:
                layouts["sharded-begun-by-one-"] = shards
            for begun, more in layouts.items():
                context = context_of(folder / f"{name}-{begun}{world}", Curve(), **where, **more)
                train(job.task(context), context)
            if not in_shards:
                continue
            newest = CheckpointStore(str(folder / f"{name}-{world}")).newest()
            assert newest is not None
            context = context_of(
                folder / f"{name}-begun-in-shards-{world}", Curve(), **where, **shards,
                report=stopping_after(newest.step // 2),
            )  # fmt: skip
            with pytest.raises(StopTrainingError):
                train(job.task(context), context)
    torch.distributed.destroy_process_group()


def stopping_after(num_records: int) -> Callable[[Mapping[str, float]], None]:
    """Stop all processes alike, which report equally often."""
    reported = []

    def report(metrics: Mapping[str, float]) -> None:
        reported.append(metrics)
        if len(reported) > num_records:
            raise StopTrainingError

    return report


def summed(tensor: Tensor, group: Any) -> Tensor:
    torch.distributed.all_reduce(tensor, group=group)
    return tensor


def begin_sum(tensor: Tensor, group: Any) -> Callable[[], None]:
    work = torch.distributed.all_reduce(tensor, group=group, async_op=True)
    assert work is not None
    return work.wait


SEVERAL = [
    "bert",
    "lm",
    "taught",
    "bert-taught",
    "sampled",
    "nt_asgd",
    "vectors",
    "glove",
    "gpt",
    "xl",
    "cove",
    "elmo",
    "ntm",
    "classifier",
    "classifier-attention",
    "classifier-taught",
    "classifier-beside",
    "classifier-gpt",
    "contrastive",
    "pairs",
    "choices",
]


def several_jobs(tokens: Path) -> dict[str, Job]:
    return {
        "lm": language_model_job(tokens, epochs=2.0),
        "taught": taught(language_model_job(tokens, epochs=2.0), tokens.parent / "start"),
        "bert-taught": taught(
            language_model_job(tokens, "bert", kind="sgd", epochs=2.0, rate={"lr": 0.3}),
            tokens.parent / "start-bert",
            cosine=1.0,
        ),
        "sampled": language_model_job(tokens, epochs=2.0, sampled_words=20),
        "nt_asgd": language_model_job(tokens, kind="nt_asgd", epochs=2.0, rate={"lr": 10.0}),
        "vectors": language_model_job(tokens, "word_vectors", epochs=2.0),
        "glove": language_model_job(
            tokens, "word_vectors", config={"algorithm": "glove"}, row_tokens=15, epochs=2.0
        ),
        "gpt": language_model_job(tokens, "gpt", epochs=2.0),
        "xl": language_model_job(tokens, "transformer_xl", epochs=2.0),
        "bert": language_model_job(tokens, "bert", epochs=2.0, next_sentence=True),
        "elmo": language_model_job(tokens, "elmo", kind="sgd", epochs=2.0, rate={"lr": 0.3}),
        "ntm": language_model_job(tokens, "ntm", kind="sgd", epochs=2.0, rate={"lr": 1.0}),
        "cove": language_model_job(tokens.parent / "pairs", "cove", kind="sgd", epochs=2.0, rate={"lr": 0.3}),
        "classifier": classifier_job(tokens, epochs=2.0),
        "classifier-attention": classifier_job(tokens, kind="sgd", epochs=2.0, pooling="attention"),
        "classifier-taught": taught_classifier(
            classifier_job(tokens, kind="sgd", epochs=2.0), tokens.parent / "lesson"
        ),
        "classifier-beside": classifier_job(tokens, kind="sgd", epochs=2.0, **features_beside(tokens)),
        "contrastive": classifier_job(tokens, kind="sgd", method="contrastive", epochs=2.0),
        # The head's batch normalisation takes out what the last bias adds, so that its gradient is rounding
        # alone, of which Adam would make whole steps.
        "classifier-gpt": classifier_job(
            tokens, "gpt", kind="sgd", epochs=2.0, start=tokens.parent / "start", language_model_weight=0.5
        ),
        "pairs": classifier_job(
            tokens.parent / "pairs", "bert", kind="sgd", epochs=2.0, pair_order="both", bptt=14
        ),
        "choices": classifier_job(tokens.parent / "choices", "gpt", kind="sgd", epochs=2.0),
    }


def write_several(folder: Path) -> Path:
    """Write what the jobs of `several_jobs` read; return the folder of tokens."""
    tokens = write_tokens(folder / "tokens")
    for num_texts, name in ((2, "pairs"), (3, "choices")):
        write_tokens(folder / name, num_texts)
    export_trained(language_model_job(tokens, "gpt", epochs=2.0), folder / "start")
    export_trained(language_model_job(tokens, "bert", epochs=2.0), folder / "start-bert")
    return tokens


@pytest.fixture(scope="module")
def several(tmp_path_factory) -> Path:
    """Runs of several jobs by 1, 2 and 3 processes."""
    folder = tmp_path_factory.mktemp("several")
    tokens = write_several(folder)
    for name, job in several_jobs(tokens).items():
        half = run(job, folder / f"{name}-1").step // 2
        sharded = WORLDS_OF_SHARDS if name in SHARDED else ()
        begun_by_one = [f"begun-by-one-{world}" for world in WORLDS_BEGUN_BY_ONE]
        for begun in (*begun_by_one, *(f"sharded-begun-by-one-{world}" for world in sharded)):
            with pytest.raises(StopTrainingError):
                run(job, folder / f"{name}-{begun}", Curve(stop_at=half))
    torch.multiprocessing.spawn(process, args=(max(WORLDS), folder), nprocs=max(WORLDS))
    for name in SHARDED:
        for world in WORLDS_OF_SHARDS:
            run(several_jobs(tokens)[name], folder / f"{name}-begun-in-shards-{world}")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("name", SEVERAL)
def test_any_number_of_processes_trains_the_same_model(several, name, world):
    assert_same_model(several, name, world)


@pytest.mark.slow
@pytest.mark.parametrize("world", WORLDS_BEGUN_BY_ONE)
@pytest.mark.parametrize("name", SEVERAL)
def test_what_one_process_began_several_end_alike(several, name, world):
    assert_same_model(several, name, world, "begun-by-one-")


@pytest.mark.slow
@pytest.mark.parametrize("world", WORLDS_OF_SHARDS)
@pytest.mark.parametrize("name", SHARDED)
@pytest.mark.parametrize("begun", ["sharded-begun-by-one-", "begun-in-shards-"])
def test_shards_train_the_same_model_whoever_began_it(several, name, world, begun):
    assert_same_model(several, name, world, begun)


def assert_same_model(several: Path, name: str, world: int, begun: str = "") -> None:
    folders = (f"{name}-1", f"{name}-{begun}{world}")
    one, many = (CheckpointStore(str(several / folder)).newest() for folder in folders)
    assert one is not None
    assert many is not None
    assert many.step == one.step
    for ours, theirs in zip(many.state["evaluations"], one.state["evaluations"], strict=True):
        assert ours["metrics"] == pytest.approx(theirs["metrics"], rel=1e-4)
    assert many.tensors.keys() == one.tensors.keys()
    for key, tensor in one.tensors.items():
        if not key.startswith("optimizer."):
            computed, expected = without_key_biases(key, many.tensors[key]), without_key_biases(key, tensor)
            assert torch.allclose(computed, expected, rtol=1e-3, atol=2e-5), key


def without_key_biases(key: str, tensor: Tensor) -> Tensor:
    """What has an effect of a parameter.

    The bias of attention's keys adds the same to all scores of a query, which softmax takes out: its gradient
    is rounding alone, of which Adam makes whole steps.
    """
    if not key.endswith("attention.inputs.bias"):
        return tensor
    queries, _keys, values = tensor.chunk(3)
    return torch.cat([queries, values])


@pytest.mark.parametrize(
    ("num_texts", "family", "changes"),
    [
        (2, "bert", {}),  # segments tell the texts apart
        (2, "bert", {"pair_order": "both"}),
        (3, "gpt", {"pooling": "last"}),
    ],
)
def test_what_only_both_texts_tell_is_learned(tmp_path, num_texts, family, changes):
    """The label of such a corpus is that of neither text alone."""
    tokens = write_tokens(tmp_path / "tokens", num_texts)
    job = classifier_job(tokens, family, epochs=60.0, bptt=14, unfreeze="full", dropout=0.0, **changes)
    task = job.task(Context())
    train(task, Context())
    assert isinstance(task.objective, Classification)
    documents = task.objective.batches.documents
    loss, accuracy = task.objective._judged("train", documents, Context())
    assert accuracy > 0.9, loss


def trained_and_counted(job: Job, context: Context, counted: str) -> tuple[dict[str, Tensor], int]:
    """The weights that a training ends with, and how often the encoder's first layer was run meanwhile."""
    task = job.task(context)
    (encoder,) = (
        module for module in task.model.modules() if isinstance(module, Transformer | TransformerXL)
    )
    layer, num_runs = encoder.layers[0], 0
    run_layer = getattr(layer, counted)

    def noted(*arguments: Any) -> Any:
        nonlocal num_runs
        num_runs += 1
        return run_layer(*arguments)

    if run_layer is not None:
        setattr(layer, counted, noted)
    train(task, context)
    return task.model.state_dict(), num_runs


@pytest.mark.parametrize("name", ["gpt", "xl", "bert", "pairs"])
def test_layers_that_are_recomputed_train_the_same_model(tmp_path, name):
    job = several_jobs(write_several(tmp_path))[name]
    kept, once = trained_and_counted(job, Context(), "forward")
    again, more = trained_and_counted(job, Context(recompute_layers=True), "forward")
    # Once more in each step, but for those in which the layer is frozen.
    assert 0 < more - once <= job.task(Context()).plan.num_steps
    for key, tensor in kept.items():
        assert torch.equal(again[key], tensor), key


@pytest.mark.long
def test_compiled_layers_train_the_same_model(tmp_path):
    if shutil.which("g++") is None:
        pytest.skip("torch.compile needs a C++ compiler for CPUs")
    job = several_jobs(write_several(tmp_path))["bert"]
    plain, none = trained_and_counted(job, Context(), "_compiled_call_impl")
    compiled, some = trained_and_counted(job, Context(compile=True), "_compiled_call_impl")
    assert some > none == 0  # what a module calls once it is compiled
    for key, tensor in plain.items():
        computed, expected = without_key_biases(key, compiled[key]), without_key_biases(key, tensor)
        assert torch.allclose(computed, expected, rtol=1e-3, atol=2e-5), key
