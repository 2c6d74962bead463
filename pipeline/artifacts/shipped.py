"""The classifier that ships: its parts, each in a folder of its own, and the weights of their probabilities.

`classifier.json` names the parts. A part is an exported classifier (see `model_folder`), a probe, or TF-IDF;
`kind` in its `state.json` says which. All are tensors and text: nothing is pickled.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pipeline.artifacts.tensor_folder import read_folder, write_folder
from pipeline.evaluation.logistic import LinearClassifier
from pipeline.evaluation.probe import ProbeClassifier, Reading
from pipeline.evaluation.settings import Probe
from pipeline.evaluation.tfidf import TfidfClassifier
from pipeline.files.atomic import atomic_folder, atomic_write_text
from pipeline.settings.loader import typed
from pipeline.training.cards import ModelCard

SHIPPED_FILE = "classifier.json"
_TERMS_FILE = "terms.txt"


@dataclass(frozen=True)
class Part:
    """A part's folder, and the weight of its probabilities."""

    folder: Path
    weight: float


@dataclass(frozen=True)
class Labelling:
    """What a classifier of texts needs, whatever it is made of."""

    label_names: tuple[str, ...]
    normalise: dict[str, Any]  # the text normalisation settings of its training


@dataclass(frozen=True)
class ShippedProbe:
    """A frozen encoder with logistic regression on its pooled features."""

    card: ModelCard
    encoder: dict[str, Tensor]
    idf_V: Tensor
    settings: Probe
    reading: Reading
    classifier: ProbeClassifier


def ship(
    folder: Path, name: str, parts: Mapping[str, float], write: Mapping[str, Callable[[Path], None]]
) -> None:
    """Write a classifier into `folder`: each part by its function in `write`, and their weights."""
    with atomic_folder(folder) as aside:
        folders = {part: part.replace(":", "-") for part in parts}
        for part in parts:
            write[part](aside / folders[part])
        content = {"name": name, "parts": {folders[part]: weight for part, weight in parts.items()}}
        atomic_write_text(aside / SHIPPED_FILE, json.dumps(content, indent=2) + "\n")


def parts_of(folder: Path) -> list[Part]:
    """The parts of a shipped classifier; a folder that is none is a single exported one.

    Raises ValueError if `classifier.json` is damaged.
    """
    file = folder / SHIPPED_FILE
    if not file.exists():
        return [Part(folder, 1.0)]
    try:
        found = json.loads(file.read_text(encoding="utf-8"))["parts"]
        parts = [Part(folder / Path(name).name, float(weight)) for name, weight in found.items()]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{file} is damaged ({error}); run the stage `evaluate` again") from error
    if not parts:
        raise ValueError(f"{file} is damaged (it has no parts); run the stage `evaluate` again")
    return parts


def write_tfidf(folder: Path, classifier: TfidfClassifier, labelling: Labelling) -> None:
    folder.mkdir()
    tensors = {"idf": torch.from_numpy(classifier.idf_F), **_linear_tensors(classifier.linear)}
    terms = "".join(f"{term}\n" for term in classifier.terms)
    write_folder(folder, tensors, {"kind": "tfidf", **asdict(labelling)}, {_TERMS_FILE: terms.encode()})


def read_tfidf(folder: Path) -> tuple[TfidfClassifier, Labelling]:
    """Raises ValueError if the folder is missing, torn or altered."""
    tensors, state = read_folder(folder)
    terms = (folder / _TERMS_FILE).read_text(encoding="utf-8").splitlines()
    linear = _linear(tensors)
    if not len(terms) == len(tensors["idf"]) == linear.weight_CF.shape[1]:
        raise ValueError(f"{folder}: {_TERMS_FILE} and the tensors differ in length; evaluate again")
    return TfidfClassifier(terms, tensors["idf"].numpy(), linear), _labelling(state)


def write_probe(folder: Path, probe: ShippedProbe, labelling: Labelling, tokenizer: Path) -> None:
    folder.mkdir()
    tensors = {f"encoder.{name}": tensor for name, tensor in probe.encoder.items()}
    tensors |= {"idf": probe.idf_V, **_linear_tensors(probe.classifier.linear)}
    reading = asdict(probe.reading) | {"special_ids": sorted(probe.reading.special_ids)}
    state = {
        "kind": "probe",
        "card": asdict(probe.card),
        "probe": probe.settings.model_dump(),
        "reading": reading,
        **asdict(labelling),
    }
    write_folder(folder, tensors, state, {tokenizer.name: tokenizer.read_bytes()})


def read_probe(folder: Path) -> tuple[ShippedProbe, Labelling]:
    """Raises ValueError if the folder is missing, torn or altered."""
    tensors, state = read_folder(folder)
    try:
        reading = state["reading"]
        probe = ShippedProbe(
            card=typed(ModelCard, state["card"] | {"head": None}, where=str(folder), prefix="card."),
            encoder={
                name.removeprefix("encoder."): tensor
                for name, tensor in tensors.items()
                if name.startswith("encoder.")
            },
            idf_V=tensors["idf"],
            settings=typed(Probe, state["probe"], where=str(folder), prefix="probe."),
            reading=Reading(**(reading | {"special_ids": frozenset(reading["special_ids"])})),
            classifier=ProbeClassifier(_linear(tensors)),
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"{folder} holds no probe ({error}); run the stage `evaluate` again") from error
    return probe, _labelling(state)


def _linear_tensors(linear: LinearClassifier) -> dict[str, Tensor]:
    return {"weight": torch.from_numpy(linear.weight_CF), "bias": torch.from_numpy(linear.bias_C)}


def _linear(tensors: Mapping[str, Tensor]) -> LinearClassifier:
    return LinearClassifier(tensors["weight"].numpy(), tensors["bias"].numpy())


def _labelling(state: Mapping[str, Any]) -> Labelling:
    names: Sequence[str] = state["label_names"]
    return Labelling(tuple(names), dict(state["normalise"]))
