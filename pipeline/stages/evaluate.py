"""Stage: candidates, on validation documents -> the one to ship, and all on test documents."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from models.heads import Classifier
from pipeline.artifacts.model_folder import ModelFolder, load_classifier
from pipeline.artifacts.reference import Reference, write_reference
from pipeline.artifacts.shipped import (
    FrozenEncoder,
    Labelling,
    ShippedProbe,
    ship,
    write_probe,
    write_tfidf,
)
from pipeline.corpus.document_files import read_texts
from pipeline.corpus.leakage import leaked_documents
from pipeline.corpus.text_parts import readable, texts_of
from pipeline.corpus.token_links import read_link, tokens_at
from pipeline.corpus.tokenizer import Tokenizer
from pipeline.corpus.tokens import UNLABELLED, TokenShard, beginnings_of_words, open_shard, read_info
from pipeline.evaluation import metrics as evaluation
from pipeline.evaluation import trust
from pipeline.evaluation.attention_weights import attended, most_looked_at
from pipeline.evaluation.blend import BLEND, Share, blended, choose, fit_blend
from pipeline.evaluation.drift import Sample
from pipeline.evaluation.feature_space import fit_space
from pipeline.evaluation.probe import ProbeClassifier, Reading, fit_probe
from pipeline.evaluation.tfidf import fit_tfidf
from pipeline.evaluation.with_tfidf import JointClassifier, fit_joint
from pipeline.evaluation.words import vocabulary
from pipeline.files.atomic import atomic_folder
from pipeline.files.tables import write_csv
from pipeline.inference.predict import Predictor
from pipeline.inference.seen import MEASURES, SAMPLE_SIZE
from pipeline.machine.cost import Cost
from pipeline.project.headstarts import resolve
from pipeline.project.params import PAIR, Params
from pipeline.project.stages import Stage
from pipeline.training.cards import ModelCard, form_of
from pipeline.training.checkpoint import tensors_under
from pipeline.training.classifier import chosen_documents, predict_logits
from pipeline.training.temperature import tempered

STAGE = Stage(
    place=9,
    kind="evaluates",
    needs_labels=True,
    sections=(
        "run.seed",
        "run.headstarts",
        "headstarts",
        "ensembles",
        "probe",
        "finetune_classifier",
        "evaluate",
        "corpus.target.normalise",
        "leakage.action",
    ),
    outputs=("out", "classifier"),
    registers="headstart-classifier",
)

TFIDF = "tfidf"
_LOOKED_AT, _SHOWN = 500, 6  # test documents whose attention is counted, and those of them that are shown
_MOST_DRAWN = 200  # points of a curve
_LEAST_WEIGHT = 0.01  # a part of less is left out of a blend, for it costs as much as any other


def run(
    params: Params,
    *,
    tokens: Path,
    documents: Path,
    classifiers: Path,
    features: Path,
    target_lm: Path,
    leaks: Path,
    out: Path,
    classifier: Path,
) -> dict[str, Any]:
    """Choose on validation documents, ship into `classifier`; write tables for plots into the folder `out`.

    Raises:
        ValueError: there is no test split, or a classifier does not match its tokens.
    """
    data = _Data.of(params, tokens, documents, leaks)
    candidates = [_network(params, name, data, classifiers) for name in params.run.headstarts]
    has_answers = data.num_texts > PAIR
    read_frozen = [*((name, [name]) for name in params.run.headstarts), *params.trained_ensembles().items()]
    if not has_answers:
        candidates += [_probe(params, *each, data, features, target_lm) for each in read_frozen]
    if params.evaluate.baseline_tfidf and not has_answers:
        candidates.append(_tfidf(params, data))
        candidates += [_with_tfidf(params, *each, data, features, target_lm) for each in read_frozen]
    found = {each.name: each for each in candidates}
    for name, members in params.trained_ensembles().items():
        found[name] = _mixture(name, {member: Share(1 / len(members)) for member in members}, found)
    settings, seed = params.evaluate, params.run.seed
    choice = choose(
        {name: each.validation for name, each in found.items()},
        data.validation.labels,
        settings,
        seed,
        blend_of=[each.name for each in candidates],
    )
    found[BLEND] = _mixture(BLEND, choice.shares, found)
    shipped = found[settings.ship or choice.name]
    temperature, validation = _calibrated(choice.judged[shipped.name], data.validation.labels, seed)
    uncalibrated, shipped = shipped, replace(shipped, test=tempered(shipped.test, temperature))
    found[shipped.name] = shipped
    judged = {each.name: each for each in choice.candidates}
    metrics: dict[str, Any] = {
        "num_documents": len(data.test.labels),
        "num_validation_documents": len(data.validation.labels),
        "shipped": shipped.name,
        "forced": settings.ship is not None,
        "parts": shipped.weights,
        "temperatures": {part: share.temperature for part, share in shipped.parts.items()},
        "temperature": temperature,
        "log_loss_without_temperature": evaluation.log_loss(data.test.labels, uncalibrated.test),
        **evaluation.classification_metrics(data.test.labels, shipped.test, settings, seed),
    }
    metrics["candidates"] = {
        name: {
            **evaluation.classification_metrics(data.test.labels, found[name].test, settings, seed),
            **found[name].cost,
            "head_starts": found[name].head_starts,
            "parts": found[name].weights,
            "is_frozen": found[name].is_frozen,
            "milliseconds_per_document": found[name].seconds / len(data.test.labels) * 1000,
            "validation": {key: value for key, value in asdict(judged[name]).items() if key != "name"},
        }
        for name in judged
    }
    metrics["trust"] = trust.figures(
        validation, shipped.test, data.test.labels, data.label_names,
        most_wrong=settings.most_wrong, coverages=settings.label_sets, certainty=settings.confidence,
    )  # fmt: skip
    metrics |= _baselines(metrics, found, shipped, data, params)
    metrics["warnings"] = _warnings(metrics["baselines"], shipped.name)
    if shipped.name == BLEND:
        metrics["blend_without"] = _blends_without(shipped, candidates, data, params)
    wrong = evaluation.confident_errors(data.test.labels, shipped.test, settings.confident_errors)
    errors = [_error(place, shipped, found, data) for place in wrong]
    with atomic_folder(out) as folder:
        labels, probs = data.test.labels, shipped.test
        write_csv(folder / "confusion.csv", evaluation.confusion(labels, probs, data.label_names))
        table = evaluation.calibration_table(labels, probs, settings.calibration_bins)
        write_csv(folder / "calibration.csv", table)
        write_csv(folder / "risk_coverage.csv", _risk_coverage(found, shipped.name, data))
        np.save(folder / "probabilities.npy", probs.astype(np.float32))
        (folder / "errors.json").write_text(json.dumps(errors, ensure_ascii=False), encoding="utf-8")
        attention = {each.name: each.looked_at() for each in candidates if each.looked_at is not None}
        (folder / "attention.json").write_text(json.dumps(attention, ensure_ascii=False), encoding="utf-8")
    write = {each.name: each.write for each in candidates}
    ship(
        classifier, shipped.name, shipped.parts, write, temperature, validation,
        further=lambda folder: write_reference(folder, _reference(folder, data, seed)),
    )  # fmt: skip
    return metrics


# ---------------------------------------------------------------------------------------------- data


@dataclass(frozen=True)
class _Labelled:
    """The labelled documents of a split."""

    split: str
    documents: np.ndarray  # indices into the split
    labels: np.ndarray

    @staticmethod
    def of(shard: TokenShard, split: str) -> _Labelled:
        chosen = np.flatnonzero(shard.labels != UNLABELLED)
        return _Labelled(split, chosen, shard.labels[chosen].astype(np.int64))

    def without(self, documents: np.ndarray) -> _Labelled:
        kept = ~np.isin(self.documents, documents)
        return _Labelled(self.split, self.documents[kept], self.labels[kept])


@dataclass(frozen=True)
class _Data:
    """The documents to learn from, to choose by and to test on. All head starts have the same."""

    tokens: Path  # links, by head start
    documents: Path
    label_names: tuple[str, ...]
    num_texts: int  # of a document
    splits: Sequence[str]
    train: _Labelled
    validation: _Labelled
    test: _Labelled
    leaked: np.ndarray  # test documents that were trained on
    num_leaked: int

    @staticmethod
    def of(params: Params, tokens: Path, documents: Path, leaks: Path) -> _Data:
        first = tokens_at(tokens / params.run.headstarts[0] / "target.json")
        info = read_info(first)
        names = info.label_names
        train, test = open_shard(first, "train"), _Labelled.of(open_shard(first, "test"), "test")
        leaked = leaked_documents(leaks)
        num_leaked = int(np.isin(test.documents, leaked).sum())
        if params.leakage.action == "drop":
            test = test.without(leaked)
        if not len(test.documents) or names is None:
            raise ValueError(f"{first} has no labelled test documents; set corpus.target.split.test above 0")
        chosen = chosen_documents(train, params.finetune_classifier.max_labels, params.run.seed)
        return _Data(
            tokens,
            documents,
            names,
            info.num_texts,
            [*info.splits],
            _Labelled("train", chosen, train.labels[chosen].astype(np.int64)),
            _Labelled.of(open_shard(first, "validation"), "validation"),
            test,
            leaked,
            num_leaked,
        )

    def texts(self) -> dict[str, list[str]]:
        """The documents' texts, by split."""
        found = {}
        for each in (self.train, *self.judged):
            texts = read_texts(self.documents, each.split)
            found[each.split] = [texts[k] for k in each.documents]
        return found

    def all_texts(self, split: str) -> Sequence[str]:
        """Return the texts of a split with and without labels; none if there is no such split."""
        return read_texts(self.documents, split) if split in self.splits else []

    @property
    def judged(self) -> tuple[_Labelled, _Labelled]:
        return self.validation, self.test

    def tokens_of(self, head_start: str) -> Path:
        return tokens_at(self.tokens / head_start / "target.json")

    def tokenizer_of(self, head_start: str) -> Path:
        return Path(read_link(self.tokens / head_start / "target.json").tokenizer)


# ---------------------------------------------------------------------------------------- candidates


@dataclass(frozen=True)
class _Candidate:
    """Probabilities (N, C) for validation and test documents, and what they cost."""

    name: str
    validation: np.ndarray
    test: np.ndarray
    seconds: float  # that the test documents took
    parts: dict[str, Share]  # single candidates
    head_starts: Sequence[str]
    cost: dict[str, float]  # of its fit, where it was fitted here
    is_frozen: bool = False  # its head starts were not fine-tuned as classifiers
    write: Callable[[Path], None] = lambda folder: None
    explain: Callable[[int, int], list[tuple[str, float]]] | None = None  # (test document, label)
    looked_at: Callable[[], dict[str, Any]] | None = None  # by its attention pooling

    @property
    def weights(self) -> dict[str, float]:
        return {part: share.weight for part, share in self.parts.items()}


def _mixture(name: str, shares: Mapping[str, Share], found: Mapping[str, _Candidate]) -> _Candidate:
    """A weighted mean of single candidates, without those of next to no weight."""
    used = {part: share for part, share in shares.items() if share.weight > _LEAST_WEIGHT}
    total = sum(share.weight for share in used.values())
    parts = {part: replace(share, weight=share.weight / total) for part, share in used.items()}
    members = [found[part] for part in parts]
    return _Candidate(
        name,
        blended([each.validation for each in members], list(parts.values())),
        blended([each.test for each in members], list(parts.values())),
        seconds=sum(each.seconds for each in members),
        parts=parts,
        head_starts=list(dict.fromkeys(name for each in members for name in each.head_starts)),
        cost={},
        is_frozen=all(each.is_frozen for each in members),
    )


def _network(params: Params, name: str, data: _Data, classifiers: Path) -> _Candidate:
    """A head start's fine-tuned classifier."""
    folder, tokens = classifiers / name, data.tokens_of(name)
    model, card, head = load_classifier(folder)
    if card.tokenizer_sha256 != read_info(tokens).tokenizer_sha256:
        raise ValueError(f"the classifier in {folder} was trained with another tokenizer than {tokens}")
    validation, _ = _predicted(model, card, tokens, data.validation)
    test, seconds = _predicted(model, card, tokens, data.test)

    def explain(document: int, label: int) -> list[tuple[str, float]]:
        """Pieces of the text that the classifier read, each with how much it spoke for `label`."""
        from pipeline.evaluation.attribution import token_attributions

        rows = form_of(card).rows(open_shard(tokens, "test").document(document))
        shown = label if head.num_choices is not None else 0  # the answer; or the texts as they are given
        ids, moved = rows[shown], token_attributions(model.cpu(), rows, label)[shown]
        if card.direction == "backward":
            ids, moved = ids[::-1], moved[::-1]
        pieces = Tokenizer.load(data.tokenizer_of(name)).pieces(ids)
        return [(piece, round(float(value), 4)) for piece, value in zip(pieces, moved, strict=True)]

    def write(aside: Path) -> None:
        shutil.copytree(folder, aside)

    def looked_at() -> dict[str, Any]:
        return _looked_at(model, card, tokens, Tokenizer.load(data.tokenizer_of(name)), data, test)

    return _Candidate(
        name,
        validation,
        test,
        seconds,
        {name: Share(1.0)},
        [name],
        {},
        write=write,
        explain=explain,
        looked_at=None if model.attention is None else looked_at,
    )


def _looked_at(
    model: Classifier, card: ModelCard, tokens: Path, tokenizer: Tokenizer, data: _Data, probs: np.ndarray
) -> dict[str, Any]:
    """The words that attention pooling looks at most, and some texts with the weights of their tokens."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    places = _evenly(len(data.test.documents), _LOOKED_AT)
    shard = open_shard(tokens, "test")
    documents = [shard.document(int(data.test.documents[place])) for place in places]
    assert card.head is not None
    has_choices = card.head.num_choices is not None
    shown = [int(probs[place].argmax()) if has_choices else 0 for place in places]
    begins_V = beginnings_of_words(tokens)
    found = attended(model, documents, form_of(card), shown, tokenizer, begins_V, device)
    names, labels = data.label_names, data.test.labels
    return {
        "num_documents": len(places),
        "words": [asdict(each) for each in most_looked_at(found)],
        "texts": [
            {
                "actual": names[labels[places[k]]],
                "predicted": names[int(probs[places[k]].argmax())],
                "tokens": [(token.text, round(token.weight, 4)) for token in found[k]],
            }
            for k in _evenly(len(places), _SHOWN)
        ],
    }


def _evenly(size: int, most: int) -> np.ndarray:
    """Places of at most `most` things out of `size`, evenly spaced."""
    return np.unique(np.linspace(0, size - 1, most).round().astype(int))


def _predicted(
    model: Classifier, card: ModelCard, tokens: Path, labelled: _Labelled
) -> tuple[np.ndarray, float]:
    """Probabilities (N, C), and the seconds that they took."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    shard, before = open_shard(tokens, labelled.split), time.monotonic()
    texts = [shard.document(int(k)) for k in labelled.documents]
    logits = predict_logits(model.to(device), texts, form_of(card), device)
    return logits.double().softmax(1).numpy(), time.monotonic() - before


def _probe(
    params: Params, name: str, members: Sequence[str], data: _Data, features: Path, target_lm: Path
) -> _Candidate:
    """Logistic regression on the frozen features of a head start, or of several side by side."""
    pooled = _pooled(features, members, data)
    classes = len(data.label_names)
    cost = Cost()
    fitted = fit_probe(pooled["train"], data.train.labels, classes, params.run.seed)
    return _frozen(
        f"{name}:probe",
        cost,
        lambda labelled: fitted.probabilities(pooled[labelled.split]),
        data,
        members,
        write=lambda aside: _write_probe(aside, fitted, params, members, data, features, target_lm),
    )


def _with_tfidf(
    params: Params, name: str, members: Sequence[str], data: _Data, features: Path, target_lm: Path
) -> _Candidate:
    """Logistic regression on the frozen features of head starts and TF-IDF together."""
    texts, pooled = data.texts(), _pooled(features, members, data)
    classes = len(data.label_names)
    cost = Cost()
    fitted = fit_joint(texts["train"], pooled["train"], data.train.labels, classes, params.run.seed)
    return _frozen(
        f"{name}:with_tfidf",
        cost,
        lambda labelled: fitted.probabilities(texts[labelled.split], pooled[labelled.split]),
        data,
        members,
        write=lambda aside: _write_probe(aside, fitted, params, members, data, features, target_lm),
    )


def _tfidf(params: Params, data: _Data) -> _Candidate:
    """The baseline, trained on the same labelled documents as the classifiers."""
    texts, classes = data.texts(), len(data.label_names)
    cost = Cost()
    fitted = fit_tfidf(texts["train"], data.train.labels, classes, params.run.seed)
    return _frozen(
        TFIDF,
        cost,
        lambda labelled: fitted.probabilities(texts[labelled.split]),
        data,
        [],
        write=lambda aside: write_tfidf(aside, fitted, _labelling(params, data)),
    )


def _frozen(
    name: str,
    cost: Cost,
    probabilities: Callable[[_Labelled], np.ndarray],
    data: _Data,
    head_starts: Sequence[str],
    write: Callable[[Path], None],
) -> _Candidate:
    """A candidate whose fit, which `cost` has measured, is done."""
    spent = dict(cost.spent())
    validation, before = probabilities(data.validation), time.monotonic()
    test = probabilities(data.test)
    seconds = time.monotonic() - before
    return _Candidate(
        name, validation, test, seconds, {name: Share(1.0)}, head_starts, spent, is_frozen=True, write=write
    )


def _pooled(features: Path, members: Sequence[str], data: _Data) -> dict[str, list[np.ndarray]]:
    """The pooled features of the documents by each head start, by split."""
    return {
        each.split: [
            np.load(features / name / f"{each.split}.npy", mmap_mode="r")[each.documents] for name in members
        ]
        for each in (data.train, *data.judged)
    }


def _write_probe(
    aside: Path,
    fitted: ProbeClassifier | JointClassifier,
    params: Params,
    members: Sequence[str],
    data: _Data,
    features: Path,
    target_lm: Path,
) -> None:
    encoders = {name: _frozen_encoder(params, name, data, features, target_lm) for name in members}
    tokenizers = {name: Tokenizer.file_in(data.tokenizer_of(name)) for name in members}
    write_probe(aside, ShippedProbe(encoders, fitted), _labelling(params, data), tokenizers)


def _frozen_encoder(params: Params, name: str, data: _Data, features: Path, target_lm: Path) -> FrozenEncoder:
    settings = resolve(params, name)
    start, info = ModelFolder.at(target_lm / name), read_info(data.tokens_of(name))
    card, classifier = start.card(), settings.finetune_classifier
    return FrozenEncoder(
        card=card,
        tensors=tensors_under(start.tensors(), "encoder."),
        idf_V=torch.from_numpy(np.load(features / name / "idf.npy")),
        settings=settings.probe,
        reading=Reading.of(classifier.max_tokens, classifier.bptt, card, info),
    )


def _labelling(params: Params, data: _Data) -> Labelling:
    return Labelling(data.label_names, params.corpus.target.normalise.model_dump(), data.num_texts)


# ----------------------------------------------------------------------------------------- reference


def _reference(classifier: Path, data: _Data, seed: int) -> Reference:
    """What the classifier, which is whole but for this, knows of training and validation documents."""
    predictor, rng = Predictor.load(classifier), np.random.default_rng(seed)
    texts = data.texts()

    def some(labelled: _Labelled) -> tuple[list[tuple[str, ...]], np.ndarray]:
        chosen = rng.permutation(len(labelled.labels))[:SAMPLE_SIZE]
        return [tuple(texts_of(texts[labelled.split][k])) for k in chosen], labelled.labels[chosen]

    training, labels = some(data.train)
    features = predictor.features(training)
    space = None if features is None else fit_space(features, labels)
    words = vocabulary(text for split in ("train", "unlabelled") for text in data.all_texts(split))
    known = Reference(words, space, Sample({}, {}))
    validation, _ = some(data.validation)
    probs = predictor.probabilities(validation)
    measures = predictor.measures(validation, probs, known)
    counts = np.bincount(probs.argmax(1), minlength=len(data.label_names))
    sample = Sample(
        dict(zip(MEASURES, measures.T, strict=True)),
        dict(zip(data.label_names, map(int, counts), strict=True)),
    )
    return replace(known, sample=sample)


# ------------------------------------------------------------------------------------------- figures


def _calibrated(probs: np.ndarray, labels: np.ndarray, seed: int) -> tuple[float, trust.Judged]:
    """The temperature for probabilities (N, C) of validation documents, and these documents by it."""
    temperature = trust.useful_temperature(probs, labels, seed)
    return temperature, trust.Judged.of(tempered(probs, temperature), labels)


def _risk_coverage(found: Mapping[str, _Candidate], shipped: str, data: _Data) -> list[dict[str, Any]]:
    """Error by share of the test documents that are labelled, the most confident first; of TF-IDF, too."""
    rows = []
    for name in dict.fromkeys((shipped, *([TFIDF] if TFIDF in found else []))):
        judged = trust.Judged.of(found[name].test, data.test.labels)
        coverage, error = trust.risk_coverage(judged)
        rows += [
            {"classifier": name, "coverage": coverage[k], "error": error[k]}
            for k in _evenly(len(coverage), _MOST_DRAWN)
        ]
    return rows


def _baselines(
    metrics: Mapping[str, Any],
    found: Mapping[str, _Candidate],
    shipped: _Candidate,
    data: _Data,
    params: Params,
) -> dict[str, Any]:
    """Figures of the largest class and TF-IDF, each candidate against TF-IDF, and those without leaks."""
    settings, seed, labels = params.evaluate, params.run.seed, data.test.labels
    counts = np.bincount(data.train.labels, minlength=len(data.label_names))
    largest = np.tile(np.eye(len(counts))[counts.argmax()], (len(labels), 1))
    majority: dict[str, float] = {
        "error": float((labels != counts.argmax()).mean()),
        **evaluation.error_above(labels, largest, shipped.test, settings, seed),
    }
    baselines: dict[str, Any] = {"majority_class": majority}
    leakage: dict[str, Any] = {"num_leaked": data.num_leaked, "action": params.leakage.action}
    unseen = ~np.isin(data.test.documents, data.leaked)
    leaks_matter = bool(unseen.any() and not unseen.all())
    if leaks_matter:
        leakage["error_without"] = float((shipped.test.argmax(1) != labels)[unseen].mean())
    if TFIDF in found:
        tfidf = found[TFIDF].test
        for name, each in metrics["candidates"].items():
            each["tfidf_above"] = evaluation.error_above(labels, tfidf, found[name].test, settings, seed)
        above = metrics["candidates"][shipped.name]["tfidf_above"]
        baselines[TFIDF] = {**metrics["candidates"][TFIDF], **above}
        if leaks_matter:
            leakage["tfidf_error_without"] = float((tfidf.argmax(1) != labels)[unseen].mean())
    return {"baselines": baselines, "leakage": leakage}


def _warnings(baselines: Mapping[str, Mapping[str, float]], shipped: str) -> list[str]:
    """Reasons not to use what ships; empty without any."""
    others = {
        "majority_class": "always answering the largest class",
        TFIDF: "TF-IDF with logistic regression",
    }
    return [
        f"what ships is not clearly better than {name}, which gets {baselines[key]['error']:.1%} wrong"
        for key, name in others.items()
        if key in baselines and key != shipped and baselines[key]["above_low"] <= 0
    ]


def _blends_without(
    blend: _Candidate, candidates: Sequence[_Candidate], data: _Data, params: Params
) -> dict[str, dict[str, float]]:
    """For each head start in the blend: the error of a blend fitted without it, and the difference."""
    labels, found = data.test.labels, {}
    for name in blend.head_starts:
        others = [each for each in candidates if name not in each.head_starts]
        if not others:
            continue
        shares = fit_blend(np.stack([each.validation for each in others]), data.validation.labels)
        test = blended([each.test for each in others], shares)
        above = evaluation.error_above(labels, test, blend.test, params.evaluate, params.run.seed)
        found[name] = {"error": float((test.argmax(1) != labels).mean()), **above}
    return found


def _error(place: int, shipped: _Candidate, found: Mapping[str, _Candidate], data: _Data) -> dict[str, Any]:
    """A wrong prediction with its text, explained by the part of most weight that can be."""
    document, probs = int(data.test.documents[place]), shipped.test[place]
    label = int(probs.argmax())
    parts = sorted(shipped.parts, key=lambda name: -shipped.parts[name].weight)
    explain = next((found[name].explain for name in parts if found[name].explain is not None), None)
    return {
        "actual": data.label_names[data.test.labels[place]],
        "predicted": data.label_names[label],
        "confidence": float(probs[label]),
        "leaked": bool(np.isin(document, data.leaked)),
        "tokens": explain(document, label) if explain else _text(data, document),
    }


def _text(data: _Data, document: int) -> list[tuple[str, float]]:
    """The whole text, unexplained."""
    return [(readable(read_texts(data.documents, "test")[document]), 0.0)]
