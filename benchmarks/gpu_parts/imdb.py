"""Parts `imdb` and `both`: the error of ULMFiT on IMDb, with all labels and with few."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks.contestants._network import PRECISIONS
from benchmarks.gpu_parts.call import Call, fingerprint_of_code, precision_of
from benchmarks.gpu_parts.packed_tokens import tokens_in
from benchmarks.side_by_side import ROOT
from pipeline.artifacts.checkpoint_store import CheckpointStore
from pipeline.artifacts.model_folder import ModelFolder, export_model, load_classifier
from pipeline.corpus.tokens import open_shard
from pipeline.figures.cost import Cost
from pipeline.project.project import Project
from pipeline.settings.arm import Use
from pipeline.settings.loader import overlay, read_yaml
from pipeline.stages import finetune_classifier, finetune_lm, pretrain_lm
from pipeline.stages._points import classifier_settings
from pipeline.training.cards import form_of
from pipeline.training.checkpoint import Checkpoint, model_tensors
from pipeline.training.classifier import ClassifierJob, FewLabels, make_classifier_job, predict_logits
from pipeline.training.context import Context
from pipeline.training.language_model import LanguageModelJob
from pipeline.training.loop import train

SETTINGS = [ROOT / "presets/imdb.yaml", ROOT / "benchmarks/gpu_imdb.yaml"]
STAGES = ("pretrain_lm", "finetune_lm", "finetune_classifier")
_SEEDS = (1, 2, 3)  # of each number of few labels

_Job = LanguageModelJob | ClassifierJob


class _StoppedError(Exception):
    pass


def imdb(call: Call) -> dict[str, Any]:
    """Train until the time is over, and return what the finished trainings reached."""
    arguments = call.arguments
    tokens = tokens_in(arguments.tokens, arguments.out)
    trainings = _trainings(arguments, tokens)
    earlier = call.earlier_figures()
    figures: dict[str, Any] = {"headstart": arguments.headstart}
    figures |= {name: earlier[name] for name in trainings if name in earlier}
    for name in call.while_time_lasts(name for name in trainings if name not in figures):
        print(f"{name} begins", flush=True)
        reached = _train(name, trainings[name](), call, tokens["target"])
        if reached is None:
            call.left_out[name] = f"{call.reason_to_stop()}; another call resumes it"
        else:
            figures[name] = reached
            print(name, figures[name], flush=True)
            call.write(figures)
    if call.left_out:
        figures["continues with"] = next(iter(call.left_out))
    return figures


def _trainings(arguments: argparse.Namespace, tokens: Mapping[str, Path]) -> dict[str, Callable[[], _Job]]:
    """How to make the job of each training, in their order: one starts from the models of those before it."""
    project, name = _project(arguments), arguments.headstart
    head_start, params = project.head_starts[name], project.params
    model_of = partial(_model_folder, arguments.out)
    makers: dict[str, Callable[[], _Job]] = {
        "pretrain_lm": lambda: pretrain_lm.job(
            head_start, params.run.seed, tokens=tokens["general"], out=model_of("pretrain_lm")
        ),
        "finetune_lm": lambda: finetune_lm.job(
            head_start, params.run.seed, tokens=tokens["target"], start=model_of("pretrain_lm"),
            out=model_of("finetune_lm"),
        ),
        "finetune_classifier": lambda: finetune_classifier.job(
            head_start, params.corpus.target.normalise, params.run.seed, tokens=tokens["target"],
            target_lm=model_of("finetune_lm"), general_lm=model_of("pretrain_lm"),
        ),
    }  # fmt: skip
    makers = {stage: make for stage, make in makers.items() if stage in arguments.stages}
    for few in _few(arguments):
        makers[few.name] = partial(
            _with_few_labels, few, project, name, tokens=tokens["target"], start=model_of("finetune_lm")
        )
    return makers


def _model_folder(out: Path, training: str) -> Path:
    return out / "imdb" / f"{training}-model"


def _train(name: str, job: _Job, call: Call, target: Path) -> dict[str, Any] | None:
    """Train to the end, export the model and return what it reached; None if the time was over before."""
    arguments = call.arguments
    precision = precision_of(call.device)
    if isinstance(job, ClassifierJob) and arguments.classifier_precision is not None:
        precision = PRECISIONS[arguments.classifier_precision]
    # A folder for this code alone, as the figures are said to be of it.
    store = CheckpointStore(str(arguments.out / "imdb" / fingerprint_of_code() / name))
    context = Context(
        device=call.device, precision=precision, store=store, checkpoint_minutes=1.0,
        meter=Cost(gpu=call.device.type == "cuda"),
    )  # fmt: skip
    context.report = _stopping(call, context)
    try:
        train(job.task(context), context)
    except _StoppedError:
        return None
    finished = store.newest()
    assert finished is not None
    folder = _model_folder(arguments.out, name)
    export_model(folder, model_tensors(finished), job.card)
    reached = _reached(finished)
    if isinstance(job, ClassifierJob):
        reached["test error"] = _test_error(folder, target, call.device, precision)
    return reached


def _stopping(call: Call, context: Context) -> Callable[[Any], None]:
    """Return a report that prints a line now and then, and ends the training when the time is over.

    The loop saves after a report of the curve. So the first one that comes too late makes a checkpoint due,
    and the next one stops.
    """
    began = reported = time.monotonic()

    def report(metrics: Any) -> None:
        nonlocal reported
        if time.monotonic() > reported + 15:
            reported = time.monotonic()
            line = ", ".join(f"{name} {value:.4g}" for name, value in metrics.items())
            print(f"{reported - began:.0f} s: {line}", flush=True)
        if "train/progress" in metrics and call.reason_to_stop() is not None:
            if context.checkpoint_minutes == 0:
                raise _StoppedError
            context.checkpoint_minutes = 0.0

    return report


def both(call: Call) -> dict[str, Any]:
    """Return the test errors of several calls of imdb, and that of the mean of their probabilities."""
    tokens = tokens_in(call.arguments.tokens, call.arguments.out)
    labels = open_shard(tokens["target"], "test").labels
    logits = {
        str(member): np.load(_test_logits(_model_folder(member, "finetune_classifier")))
        for member in call.arguments.members
    }
    probs = {name: torch.from_numpy(logits_NC).softmax(1).numpy() for name, logits_NC in logits.items()}
    errors = {name: float((probs_NC.argmax(1) != labels).mean()) for name, probs_NC in probs.items()}
    mean = np.mean([*probs.values()], axis=0)
    return {"test errors": errors, "test error of the mean": float((mean.argmax(1) != labels).mean())}


class _Few(NamedTuple):
    num_labels: int
    seed: int

    @property
    def name(self) -> str:
        return f"{self.num_labels} labels, seed {self.seed}"


def _few(arguments: argparse.Namespace) -> list[_Few]:
    return [_Few(count, seed) for count in arguments.labels for seed in _SEEDS]


def _with_few_labels(few: _Few, project: Project, name: str, *, tokens: Path, start: Path) -> ClassifierJob:
    """The training of a point of the label curve."""
    head_start, normalise = project.head_starts[name], project.params.corpus.target.normalise
    return make_classifier_job(
        classifier_settings(head_start, Use.NETWORK), head_start.model, normalise,
        tokens=tokens, start=ModelFolder.at(start), seed=few.seed, few_labels=FewLabels(few.num_labels),
    )  # fmt: skip


def _project(arguments: argparse.Namespace) -> Project:
    values = read_yaml(ROOT / "params.yaml")
    for file in arguments.settings:
        values = overlay(values, read_yaml(file))
    return Project.of(values, where=f"params.yaml with {', '.join(map(str, arguments.settings))}")


def _reached(finished: Checkpoint) -> dict[str, Any]:
    state = finished.state
    return {"steps": finished.step, "minutes": state["spent"]["seconds"] / 60, **state["kept_metrics"]}


def _test_error(folder: Path, tokens: Path, device: torch.device, precision: torch.dtype) -> float:
    model, card, _ = load_classifier(folder)
    test = open_shard(tokens, "test")
    documents = [test.document(k) for k in range(len(test))]
    logits = predict_logits(model.to(device).eval(), documents, form_of(card), device, precision)
    np.save(_test_logits(folder), logits.numpy())  # to average over directions
    return float((logits.argmax(1).numpy() != test.labels).mean())


def _test_logits(model_folder: Path) -> Path:
    return model_folder.with_name(f"{model_folder.name}-test.npy")
