"""`headstart export --format onnx`: writes a classifier as ONNX, and judges it beside the original."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from pipeline.artifacts.links import tokens_at
from pipeline.artifacts.model_folder import load_classifier
from pipeline.corpus.tokens import UNLABELLED, open_shard
from pipeline.execution.lr_find import stage_arguments
from pipeline.inference.onnx_network import load_onnx
from pipeline.inference.reference_sample import write_judged_and_reference
from pipeline.project.project import Project
from pipeline.report.sections.studies.exported_forms import Form, Forms, Int8Forms
from pipeline.report.study_files import SavedStudy, make_ready, write_study
from pipeline.training.cards import form_of
from pipeline.training.classifier import chosen_documents, predict_logits
from pipeline.training.precision import dtype_of
from pipeline.weights.onnx_export import write_onnx

_DOCUMENTS = Path("data/documents/target")
_MOST_JUDGED = 3_000  # test documents
_SECONDS = 3.0  # of each measurement of speed, at least


@dataclass(frozen=True)
class Exported:
    written: SavedStudy[Forms]
    difference: float  # of probabilities, of made-up documents


def export_onnx(project: Project, headstart: str, to: Path, *, int8: bool, out: Path) -> Exported:
    """Export the fine-tuned classifier of a head start, judge it, and write a study into `out`.

    Raises ValueError for an unknown head start, missing inputs, what `write_onnx` refuses, and if `out`
    cannot be made.
    """
    make_ready(out)
    settings, seed = project.head_start(headstart).finetune_classifier, project.params.run.seed
    given = stage_arguments(Path("dvc.yaml"), "finetune_classifier", headstart)
    folder = Path(given["out"])
    if not folder.exists():
        raise ValueError(
            f"{folder}: no such folder; run `dvc repro` with {headstart} in run.headstarts first"
        )
    tokens = tokens_at(Path(given["tokens"]))
    test = open_shard(tokens, "test")
    difference = write_onnx(folder, to, int8=int8)
    training = chosen_documents(open_shard(tokens, "train"), settings.max_labels, seed)
    write_judged_and_reference(to, tokens, _DOCUMENTS, training, seed)
    chosen = np.flatnonzero(test.labels != UNLABELLED)
    chosen = np.random.default_rng(0).permutation(chosen)[:_MOST_JUDGED]
    documents, labels = [test.document(int(k)) for k in chosen], test.labels[chosen]
    model, card, _ = load_classifier(folder)
    cpu = torch.device("cpu")

    def by_torch(dtype: torch.dtype) -> np.ndarray:
        logits = predict_logits(model, documents, form_of(card), cpu, dtype)
        probs: np.ndarray = logits.double().softmax(1).numpy()
        return probs

    ways: dict[str, tuple[Callable[[], np.ndarray], Path]] = {
        "torch, float32": (lambda: by_torch(torch.float32), folder / "tensors.safetensors")
    }
    if dtype_of("auto", cpu) != torch.float32:
        ways["torch, bfloat16"] = (lambda: by_torch(torch.bfloat16), folder / "tensors.safetensors")
    network = load_onnx(to)
    name = "ONNX, int8" if int8 else "ONNX, float32"
    ways[name] = (lambda: network.of_tokens(documents), to / "network.onnx")
    kind: type[Forms] = Int8Forms if int8 else Forms
    study = kind(
        headstart=headstart,
        stage=card.stage,
        key=card.key,
        num_judged=len(labels),
        rows=_judged(ways, labels),
    )
    return Exported(write_study(out, study), difference)


def _judged(
    ways: dict[str, tuple[Callable[[], np.ndarray], Path]], labels: Sequence[int] | np.ndarray
) -> list[Form]:
    first: np.ndarray | None = None
    forms = []
    for name, (predict, file) in ways.items():
        probs = predict()  # not timed: the first call makes what later ones find
        first = probs if first is None else first
        begun, rounds = time.perf_counter(), 0
        while time.perf_counter() - begun < _SECONDS:
            predict()
            rounds += 1
        forms.append(
            Form(
                name=name,
                error=float((probs.argmax(1) != labels).mean()),
                documents_per_second=rounds * len(labels) / (time.perf_counter() - begun),
                megabytes=file.stat().st_size / 1e6,
                largest_change=float(np.abs(probs - first).max()),
                labels_that_differ=float((probs.argmax(1) != first.argmax(1)).mean()),
            )
        )
    return forms
