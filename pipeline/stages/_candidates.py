"""The candidates of `evaluate`: their probabilities for validation and test documents, and how to ship them.

Not a stage. Shapes: N documents, C classes.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch

from models.heads import Classifier
from pipeline.artifacts.links import read_link, tokens_at
from pipeline.artifacts.model_folder import load_classifier
from pipeline.artifacts.shipped import (
    Labelling,
    ShippedProbe,
    write_probe,
    write_tfidf,
)
from pipeline.corpus.document_files import read_texts
from pipeline.corpus.leakage import leaked_documents
from pipeline.corpus.settings import Normalise
from pipeline.corpus.tokenizer import Tokenizer
from pipeline.corpus.tokenizer_kinds import load_tokenizer, tokenizer_file_in
from pipeline.corpus.tokens import UNLABELLED, TokenShard, beginnings_of_words, open_shard, read_info
from pipeline.evaluation.attention_weights import attended, most_looked_at
from pipeline.evaluation.blend import Share, blended
from pipeline.evaluation.probe import ProbeClassifier, fit_probe
from pipeline.evaluation.tfidf import fit_tfidf
from pipeline.evaluation.with_tfidf import JointClassifier, fit_joint
from pipeline.figures.cost import Cost, Spent
from pipeline.figures.predictions import Attention, ExplainedText, WordWeight
from pipeline.project.headstarts import ResolvedHeadStart
from pipeline.settings.arm import TFIDF, Arm, Use
from pipeline.stages._frozen_encoder import frozen_encoder
from pipeline.training.cards import ModelCard, form_of
from pipeline.training.classifier import chosen_documents, predict_logits
from pipeline.training.frozen_features import FrozenFeatures

_LOOKED_AT, _SHOWN = 500, 6  # test documents whose attention is counted, and those of them that are shown
_LEAST_WEIGHT = 0.01  # a part of less is left out of a blend, for it costs as much as any other


# ---------------------------------------------------------------------------------------------- data


@dataclass(frozen=True)
class Labelled:
    """The labelled documents of a split."""

    split: str
    documents: np.ndarray  # indices into the split
    labels: np.ndarray

    @staticmethod
    def of(shard: TokenShard, split: str) -> Labelled:
        chosen = np.flatnonzero(shard.labels != UNLABELLED)
        return Labelled(split, chosen, shard.labels[chosen].astype(np.int64))

    def without(self, documents: np.ndarray) -> Labelled:
        kept = ~np.isin(self.documents, documents)
        return Labelled(self.split, self.documents[kept], self.labels[kept])


@dataclass(frozen=True)
class Data:
    """The documents to learn from, to choose by and to test on. All head starts have the same."""

    tokens: Path  # links, by head start
    documents: Path
    label_names: tuple[str, ...]
    num_texts: int  # of a document
    splits: Sequence[str]
    train: Labelled
    validation: Labelled
    test: Labelled
    leaked: np.ndarray  # test documents that were trained on
    num_leaked: int

    @staticmethod
    def of(
        tokens: Path,
        documents: Path,
        leaks: Path,
        head_start: str,
        *,
        max_labels: int | None,
        seed: int,
        drops_leaked: bool,
    ) -> Data:
        """Read the documents by the tokens of `head_start`, whichever it is.

        Args:
            max_labels: documents to learn from, of those with a label, drawn with `seed`; None: all.
            drops_leaked: whether test documents that were trained on are left out.

        Raises ValueError without labelled test documents.
        """
        first = tokens_at(tokens / head_start / "target.json")
        info = read_info(first)
        names = info.label_names
        train, test = open_shard(first, "train"), Labelled.of(open_shard(first, "test"), "test")
        leaked = leaked_documents(leaks)
        num_leaked = int(np.isin(test.documents, leaked).sum())
        if drops_leaked:
            test = test.without(leaked)
        if not len(test.documents) or names is None:
            raise ValueError(f"{first} has no labelled test documents; set corpus.target.split.test above 0")
        chosen = chosen_documents(train, max_labels, seed)
        return Data(
            tokens,
            documents,
            names,
            info.num_texts,
            [*info.splits],
            Labelled("train", chosen, train.labels[chosen].astype(np.int64)),
            Labelled.of(open_shard(first, "validation"), "validation"),
            test,
            leaked,
            num_leaked,
        )

    def texts(self) -> dict[str, list[str]]:
        """The documents' texts, by split."""
        by_split = {}
        for labelled in (self.train, *self.judged):
            texts = read_texts(self.documents, labelled.split)
            by_split[labelled.split] = [texts[k] for k in labelled.documents]
        return by_split

    def all_texts(self, split: str) -> Sequence[str]:
        """Return the texts of a split with and without labels; none if there is no such split."""
        return read_texts(self.documents, split) if split in self.splits else []

    @property
    def judged(self) -> tuple[Labelled, Labelled]:
        return self.validation, self.test

    def tokens_of(self, head_start: str) -> Path:
        return tokens_at(self.tokens / head_start / "target.json")

    def tokenizer_of(self, head_start: str) -> Path:
        return read_link(self.tokens / head_start / "target.json")["tokenizer"]


# ---------------------------------------------------------------------------------------- candidates


@dataclass(frozen=True)
class Candidate:
    """Probabilities (N, C) for validation and test documents, and what they cost."""

    arm: Arm
    validation: np.ndarray
    test: np.ndarray
    seconds: float  # that the test documents took
    parts: dict[Arm, Share]  # single candidates
    head_starts: Sequence[str]
    cost: Spent | None = None  # of its fit, if it was fitted here
    is_frozen: bool = False  # its head starts were not fine-tuned as classifiers
    write: Callable[[Path], None] = lambda folder: None
    explain: Callable[[int, int], list[tuple[str, float]]] | None = None  # (test document, label)
    looked_at: Callable[[], Attention] | None = None  # by its attention pooling

    @property
    def weights(self) -> dict[Arm, float]:
        return {part: share.weight for part, share in self.parts.items()}


def mixture(arm: Arm, shares: Mapping[Arm, Share], found: Mapping[Arm, Candidate]) -> Candidate:
    """A weighted mean of single candidates, without those of next to no weight."""
    used = {part: share for part, share in shares.items() if share.weight > _LEAST_WEIGHT}
    total = sum(share.weight for share in used.values())
    parts = {part: replace(share, weight=share.weight / total) for part, share in used.items()}
    members = [found[part] for part in parts]
    return Candidate(
        arm,
        blended([member.validation for member in members], list(parts.values())),
        blended([member.test for member in members], list(parts.values())),
        seconds=sum(member.seconds for member in members),
        parts=parts,
        head_starts=list(dict.fromkeys(name for member in members for name in member.head_starts)),
        is_frozen=all(member.is_frozen for member in members),
    )


def network(name: str, data: Data, classifiers: Path, features: Path) -> Candidate:
    """A head start's fine-tuned classifier."""
    folder, tokens = classifiers / name, data.tokens_of(name)
    model, card, head = load_classifier(folder)
    if card.tokenizer_sha256 != read_info(tokens).tokenizer_sha256:
        raise ValueError(f"the classifier in {folder} was trained with another tokenizer than {tokens}")
    beside = None if head.beside is None else FrozenFeatures(head.beside, features / head.beside)
    validation, _ = _predicted(model, card, tokens, data.validation, beside)
    test, seconds = _predicted(model, card, tokens, data.test, beside)

    def explain(document: int, label: int) -> list[tuple[str, float]]:
        """Pieces of the text that the classifier read, each with how much it spoke for `label`."""
        from pipeline.evaluation.attribution import token_attributions

        rows = form_of(card).rows(open_shard(tokens, "test").document(document))
        shown = label if head.num_choices is not None else 0  # the answer; or the texts as they are given
        others = None if beside is None else beside.rows("test", [document])
        ids, moved = rows[shown], token_attributions(model.cpu(), rows, label, others)[shown]
        if card.direction == "backward":
            ids, moved = ids[::-1], moved[::-1]
        pieces = load_tokenizer(data.tokenizer_of(name)).pieces(ids)
        return [(piece, round(float(value), 4)) for piece, value in zip(pieces, moved, strict=True)]

    def write(aside: Path) -> None:
        shutil.copytree(folder, aside)

    def looked_at() -> Attention:
        return _looked_at(model, card, tokens, load_tokenizer(data.tokenizer_of(name)), data, test)

    return Candidate(
        Arm(name),
        validation,
        test,
        seconds,
        {Arm(name): Share(1.0)},
        [name] if head.beside is None else [name, head.beside],
        write=write,
        explain=explain,
        looked_at=None if model.attention is None else looked_at,
    )


def _looked_at(
    model: Classifier, card: ModelCard, tokens: Path, tokenizer: Tokenizer, data: Data, probs: np.ndarray
) -> Attention:
    """The words that attention pooling looks at most, and some texts with the weights of their tokens."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    chosen = evenly(len(data.test.documents), _LOOKED_AT)
    shard = open_shard(tokens, "test")
    documents = [shard.document(int(data.test.documents[index])) for index in chosen]
    assert card.head is not None
    has_choices = card.head.num_choices is not None
    shown = [int(probs[index].argmax()) if has_choices else 0 for index in chosen]
    begins_V = beginnings_of_words(tokens)
    attention = attended(model, documents, form_of(card), shown, tokenizer, begins_V, device)
    names, labels = data.label_names, data.test.labels
    return Attention(
        num_documents=len(chosen),
        words=[WordWeight(**asdict(word)) for word in most_looked_at(attention)],
        texts=[
            ExplainedText(
                actual=names[labels[chosen[k]]],
                predicted=names[int(probs[chosen[k]].argmax())],
                tokens=[(token.text, round(token.weight, 4)) for token in attention[k]],
            )
            for k in evenly(len(chosen), _SHOWN)
        ],
    )


def evenly(size: int, most: int) -> np.ndarray:
    """Places of at most `most` things out of `size`, evenly spaced."""
    return np.unique(np.linspace(0, size - 1, most).round().astype(int))


def _predicted(
    model: Classifier, card: ModelCard, tokens: Path, labelled: Labelled, beside: FrozenFeatures | None
) -> tuple[np.ndarray, float]:
    """Probabilities (N, C), and the seconds that they took."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    shard, before = open_shard(tokens, labelled.split), time.monotonic()
    texts = [shard.document(int(k)) for k in labelled.documents]
    others = None if beside is None else beside.rows(labelled.split, labelled.documents)
    logits = predict_logits(model.to(device), texts, form_of(card), device, beside_NG=others)
    return logits.double().softmax(1).numpy(), time.monotonic() - before


@dataclass(frozen=True)
class LogisticFits:
    """Fits logistic regression on the labelled documents: on frozen features, on TF-IDF, and on both."""

    data: Data
    features: Path  # folder, by head start
    target_lm: Path  # folder, by head start
    head_starts: Mapping[str, ResolvedHeadStart]
    normalise: Normalise  # by which what ships reads a text
    seed: int

    def probe(self, name: str, members: Sequence[str]) -> Candidate:
        """Fit on the frozen features of a head start, or of several side by side."""
        pooled, labels = self._pooled(members), self.data.train.labels
        cost = Cost()
        fitted = fit_probe(pooled["train"], labels, len(self.data.label_names), self.seed)
        return _frozen(
            Arm(name, Use.PROBE),
            cost,
            lambda labelled: fitted.probabilities(pooled[labelled.split]),
            self.data,
            members,
            write=lambda aside: self._write(aside, fitted, members),
        )

    def with_tfidf(self, name: str, members: Sequence[str]) -> Candidate:
        """Fit on the frozen features of head starts and TF-IDF together."""
        texts, pooled, labels = self.data.texts(), self._pooled(members), self.data.train.labels
        cost = Cost()
        fitted = fit_joint(texts["train"], pooled["train"], labels, len(self.data.label_names), self.seed)
        return _frozen(
            Arm(name, Use.WITH_TFIDF),
            cost,
            lambda labelled: fitted.probabilities(texts[labelled.split], pooled[labelled.split]),
            self.data,
            members,
            write=lambda aside: self._write(aside, fitted, members),
        )

    def tfidf(self) -> Candidate:
        """Fit the baseline, on the same labelled documents as the classifiers."""
        texts, labels = self.data.texts(), self.data.train.labels
        cost = Cost()
        fitted = fit_tfidf(texts["train"], labels, len(self.data.label_names), self.seed)
        return _frozen(
            TFIDF,
            cost,
            lambda labelled: fitted.probabilities(texts[labelled.split]),
            self.data,
            [],
            write=lambda aside: write_tfidf(aside, fitted, self._labelling),
        )

    def _pooled(self, members: Sequence[str]) -> dict[str, list[np.ndarray]]:
        """The pooled features of the documents by each head start, by split."""
        return {
            labelled.split: [
                np.load(self.features / name / f"{labelled.split}.npy", mmap_mode="r")[labelled.documents]
                for name in members
            ]
            for labelled in (self.data.train, *self.data.judged)
        }

    def _write(self, aside: Path, fitted: ProbeClassifier | JointClassifier, members: Sequence[str]) -> None:
        encoders = {
            name: frozen_encoder(
                self.head_starts[name],
                self.data.tokens_of(name),
                self.features / name,
                self.target_lm / name,
            )
            for name in members
        }
        tokenizers = {name: tokenizer_file_in(self.data.tokenizer_of(name)) for name in members}
        write_probe(aside, ShippedProbe(encoders, fitted), self._labelling, tokenizers)

    @property
    def _labelling(self) -> Labelling:
        return Labelling(self.data.label_names, self.normalise.model_dump(), self.data.num_texts)


def _frozen(
    arm: Arm,
    cost: Cost,
    probabilities: Callable[[Labelled], np.ndarray],
    data: Data,
    head_starts: Sequence[str],
    write: Callable[[Path], None],
) -> Candidate:
    """A candidate whose fit, which `cost` has measured, is done."""
    spent = cost.spent()
    validation, before = probabilities(data.validation), time.monotonic()
    test = probabilities(data.test)
    seconds = time.monotonic() - before
    return Candidate(
        arm, validation, test, seconds, {arm: Share(1.0)}, head_starts, spent, is_frozen=True, write=write
    )
