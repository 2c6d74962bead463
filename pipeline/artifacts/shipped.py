"""The classifier that ships: its parts, each in a folder of its own, and their shares in its probabilities.

`classifier.json` names the parts, and the temperature of their mean. A part is an exported classifier (see
`model_folder`), a probe, TF-IDF, or these two together; `kind` in its `state.json` says which. A probe's
folder has one for each encoder that it reads. Beside them, `trust` says how validation documents were judged.
All are tensors and text: nothing is pickled.
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
from pipeline.evaluation.blend import Share
from pipeline.evaluation.probe import ProbeClassifier, Reading
from pipeline.evaluation.settings import Probe
from pipeline.evaluation.tfidf import Terms, TfidfClassifier
from pipeline.evaluation.trust import Judged
from pipeline.evaluation.with_tfidf import JointClassifier
from pipeline.files.atomic import atomic_folder, atomic_write_text
from pipeline.settings.loader import typed
from pipeline.training.cards import ModelCard
from pipeline.training.logistic import LinearClassifier

SHIPPED_FILE = "classifier.json"
NO_LABELS_FILE = "without_labels.txt"  # in place of a classifier
_TERMS_FILE = "terms.txt"
_TRUST = "trust"  # a folder beside the parts
_JUDGED = ("confidence_N", "right_N", "at_label_N")


@dataclass(frozen=True)
class Part:
    """A part's folder, and its share in the probabilities."""

    folder: Path
    share: Share


@dataclass(frozen=True)
class Contents:
    """The parts of a classifier, and the temperature of the weighted mean of their probabilities."""

    parts: list[Part]
    temperature: float = 1.0


@dataclass(frozen=True)
class Labelling:
    """The labels of a classifier of texts and the normalisation that it expects, whatever it is made of."""

    label_names: tuple[str, ...]
    normalise: dict[str, Any]  # the text normalisation settings of its training
    num_texts: int = 1  # of a document


@dataclass(frozen=True)
class FrozenEncoder:
    """An encoder as it was before any classifier, and what of it is read."""

    card: ModelCard
    tensors: dict[str, Tensor]
    idf_V: Tensor
    settings: Probe
    reading: Reading


@dataclass(frozen=True)
class ShippedProbe:
    """Logistic regression on the pooled features of frozen encoders, side by side, alone or beside TF-IDF."""

    encoders: Mapping[str, FrozenEncoder]  # by head start, in the order of the features
    classifier: ProbeClassifier | JointClassifier


def ship(
    folder: Path,
    name: str,
    parts: Mapping[str, Share],
    write: Mapping[str, Callable[[Path], None]],
    temperature: float = 1.0,
    judged: Judged | None = None,
    further: Callable[[Path], None] = lambda folder: None,
) -> None:
    """Write a classifier into `folder`: each part by its function in `write`, and their shares.

    Args:
        temperature: of the mean of the parts' probabilities.
        judged: validation documents, by probabilities at that temperature.
        further: adds what needs the whole classifier to its folder.
    """
    with atomic_folder(folder) as aside:
        folders = {part: part.replace("/", "-") for part in parts}
        for part in parts:
            write[part](aside / folders[part])
        shares = {folders[part]: asdict(share) for part, share in parts.items()}
        content = {"name": name, "temperature": temperature, "parts": shares}
        atomic_write_text(aside / SHIPPED_FILE, json.dumps(content, indent=2) + "\n")
        if judged is not None:
            write_judged(aside, judged)
        further(aside)


def write_judged(folder: Path, judged: Judged) -> None:
    """Write into a classifier's folder how it judged validation documents."""
    (folder / _TRUST).mkdir()
    tensors = {name: torch.from_numpy(getattr(judged, name)) for name in _JUDGED}
    write_folder(folder / _TRUST, tensors, {"kind": "trust"})


def read_judged(folder: Path) -> Judged | None:
    """Return how the validation documents were judged; None where the folder does not say.

    Raises ValueError if that is torn or altered.
    """
    if not (folder / _TRUST).is_dir():
        return None
    tensors, _ = read_folder(folder / _TRUST)
    try:
        return Judged(*(tensors[name].numpy() for name in _JUDGED))
    except KeyError as error:
        raise ValueError(
            f"{folder / _TRUST} has no tensor {error}; run the stage `evaluate` again"
        ) from error


def contents_of(folder: Path) -> Contents:
    """The contents of a shipped classifier; a folder that is none is a single exported one.

    Raises ValueError if there is no such folder, or `classifier.json` is damaged.
    """
    if not folder.is_dir():
        raise ValueError(
            f"{folder}: no classifier is there; run `dvc repro` in a headstart project, as `headstart init` "
            "makes one, or name a classifier with --model"
        )
    file = folder / SHIPPED_FILE
    if (folder / NO_LABELS_FILE).exists():
        raise ValueError(f"{folder} holds no classifier, as the target corpus had no labels to train it on")
    if not file.exists():
        return Contents([Part(folder, Share(1.0))])
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        parts = [
            Part(folder / Path(name).name, Share(float(share["weight"]), float(share["temperature"])))
            for name, share in content["parts"].items()
        ]
        temperature = float(content["temperature"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{file} is damaged ({error}); run the stage `evaluate` again") from error
    if not parts:
        raise ValueError(f"{file} is damaged (it has no parts); run the stage `evaluate` again")
    return Contents(parts, temperature)


def write_tfidf(folder: Path, classifier: TfidfClassifier, labelling: Labelling) -> None:
    folder.mkdir()
    tensors = _term_tensors(classifier.terms) | _linear_tensors(classifier.linear)
    state = {"kind": "tfidf", **asdict(labelling)}
    write_folder(folder, tensors, state, {_TERMS_FILE: _terms_text(classifier.terms)})


def read_tfidf(folder: Path) -> tuple[TfidfClassifier, Labelling]:
    """Raises ValueError if the folder is missing, torn or altered."""
    tensors, state = read_folder(folder)
    try:
        terms, linear = _terms(folder, tensors), _linear(tensors)
    except KeyError as error:
        raise ValueError(f"{folder} has no tensor {error}; run the stage `evaluate` again") from error
    if len(terms.names) != linear.weight_CF.shape[1]:
        raise ValueError(f"{folder}: {_TERMS_FILE} and the tensors differ in length; evaluate again")
    return TfidfClassifier(terms, linear), _labelling(state)


def write_probe(
    folder: Path, probe: ShippedProbe, labelling: Labelling, tokenizers: Mapping[str, Path]
) -> None:
    """Write a probe: its regression, and in a folder for each head start the encoder and its tokenizer."""
    folder.mkdir()
    classifier = probe.classifier
    tensors, files = _linear_tensors(classifier.linear), {}
    if isinstance(classifier, JointClassifier):
        tensors |= _term_tensors(classifier.terms)
        files[_TERMS_FILE] = _terms_text(classifier.terms)
    state = {
        "kind": "with_tfidf" if isinstance(classifier, JointClassifier) else "probe",
        "encoders": list(probe.encoders),
        **asdict(labelling),
    }
    write_folder(folder, tensors, state, files)
    for name, encoder in probe.encoders.items():
        write_encoder(folder / name, encoder, tokenizers[name])


def write_encoder(folder: Path, encoder: FrozenEncoder, tokenizer: Path) -> None:
    """Write an encoder and its tokenizer into a new folder."""
    folder.mkdir()
    tensors = {f"encoder.{name}": tensor for name, tensor in encoder.tensors.items()}
    state = {
        "card": asdict(encoder.card),
        "probe": encoder.settings.model_dump(),
        "reading": asdict(encoder.reading) | {"special_ids": sorted(encoder.reading.special_ids)},
    }
    files = {tokenizer.name: tokenizer.read_bytes()}
    write_folder(folder, tensors | {"idf": encoder.idf_V}, state, files)


def read_probe(folder: Path) -> tuple[ShippedProbe, Labelling]:
    """Raises ValueError if the folder is missing, torn or altered."""
    tensors, state = read_folder(folder)
    try:
        linear = _linear(tensors)
        classifier = (
            JointClassifier(_terms(folder, tensors), linear)
            if state["kind"] == "with_tfidf"
            else ProbeClassifier(linear)
        )
        encoders = {name: read_encoder(encoder_folder(folder, name)) for name in state["encoders"]}
    except (KeyError, TypeError) as error:
        raise ValueError(f"{folder} holds no probe ({error}); run the stage `evaluate` again") from error
    return ShippedProbe(encoders, classifier), _labelling(state)


def encoder_folder(folder: Path, name: str) -> Path:
    """The folder of one of a probe's encoders, and of its tokenizer."""
    return folder / Path(name).name


def read_encoder(folder: Path) -> FrozenEncoder:
    """Raises one of several errors if the folder is missing, torn, altered, or holds something else."""
    tensors, state = read_folder(folder)
    reading = state["reading"]
    return FrozenEncoder(
        card=typed(ModelCard, state["card"] | {"head": None}, where=str(folder), prefix="card."),
        tensors={
            name.removeprefix("encoder."): tensor
            for name, tensor in tensors.items()
            if name.startswith("encoder.")
        },
        idf_V=tensors["idf"],
        settings=typed(Probe, state["probe"], where=str(folder), prefix="probe."),
        reading=Reading(**(reading | {"special_ids": frozenset(reading["special_ids"])})),
    )


def _term_tensors(terms: Terms) -> dict[str, Tensor]:
    return {"term_idf": torch.from_numpy(terms.idf_F)}


def _terms_text(terms: Terms) -> bytes:
    return "".join(f"{name}\n" for name in terms.names).encode()


def _terms(folder: Path, tensors: Mapping[str, Tensor]) -> Terms:
    names = (folder / _TERMS_FILE).read_text(encoding="utf-8").splitlines()
    if len(names) != len(tensors["term_idf"]):
        raise ValueError(f"{folder}: {_TERMS_FILE} and the tensors differ in length; evaluate again")
    return Terms(names, tensors["term_idf"].numpy())


def _linear_tensors(linear: LinearClassifier) -> dict[str, Tensor]:
    return {"weight": torch.from_numpy(linear.weight_CF), "bias": torch.from_numpy(linear.bias_C)}


def _linear(tensors: Mapping[str, Tensor]) -> LinearClassifier:
    return LinearClassifier(tensors["weight"].numpy(), tensors["bias"].numpy())


def _labelling(state: Mapping[str, Any]) -> Labelling:
    names: Sequence[str] = state["label_names"]
    return Labelling(tuple(names), dict(state["normalise"]), int(state["num_texts"]))
