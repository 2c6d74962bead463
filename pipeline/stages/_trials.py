"""The trials of a label curve, one for each arm, number of labels and seed, and the outcome each one stores.

Shapes: N test documents, C classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import numpy as np
import torch

from models.heads import LanguageModel
from pipeline.artifacts.model_folder import ModelFolder, export_model
from pipeline.corpus.classifier_batches import stratified_subset
from pipeline.corpus.document_files import read_texts
from pipeline.corpus.tokens import UNLABELLED, TokenShard, open_shard, read_info
from pipeline.distributed.launch import fit
from pipeline.distributed.session import Session
from pipeline.distributed.settings import Run
from pipeline.distributed.worker import device_of
from pipeline.evaluation.acquisition import Strategy
from pipeline.evaluation.in_context import InContext, Prompt
from pipeline.evaluation.probe import fit_probe
from pipeline.evaluation.rounds import chosen_in_rounds
from pipeline.evaluation.tfidf import fit_tfidf
from pipeline.evaluation.with_tfidf import fit_joint
from pipeline.figures.cost import Cost, Spent
from pipeline.storage.lease import Fence
from pipeline.training.cards import build_classifier, build_encoder, build_language_model, form_of
from pipeline.training.checkpoint import Checkpoint, model_tensors
from pipeline.training.classifier import ClassifierJob, chosen_documents, predict_logits
from pipeline.training.language_model import LanguageModelJob

_POOL = 10_000  # documents to choose from, or as many as are chosen; all, where there are fewer


@dataclass(frozen=True)
class ClassifierPoint:
    """A network trained on a subset of the labels, and its probabilities for the test documents."""

    name: str
    folder: str
    job: ClassifierJob
    settings: Run
    session: Session
    test_documents: int | None

    def recorded(self, session: Session) -> ClassifierPoint:
        return replace(self, session=session)

    def run(self, fence: Fence) -> Checkpoint:
        done = fit(self.job, replace_workers(self.settings), replace(self.session, fence=fence))
        device = device_of(self.settings)
        cost = Cost(gpu=device.type == "cuda")
        card = self.job.card
        assert card.head is not None
        model = build_classifier(build_encoder(card)[0], card.head)
        model.load_state_dict(model_tensors(done))
        test = open_shard(self.job.tokens, "test")
        tested, beside = test_sample(test, self.test_documents), self.job.beside
        logits = predict_logits(
            model.to(device).eval(),
            [test.document(int(index)) for index in tested],
            form_of(card),
            device,
            beside_NG=None if beside is None else beside.rows("test", tested),
        )
        spent = Spent(**done.state["spent"]) + cost.spent()
        outcome = _outcome(done.step, logits.double().softmax(1), spent, done.state["kept_metrics"])
        outcome.state.update({name: done.state[name] for name in ("restarts", "took_off")})
        return outcome


@dataclass(frozen=True)
class Rounds:
    """How the documents that have labels are chosen: the first at random, the others in rounds."""

    strategy: Strategy
    first: int
    per_round: int


@dataclass(frozen=True)
class LogisticPoint:
    """Logistic regression on frozen features, on TF-IDF, or on both: on what it is given.

    It validates by folds, so all labels train.
    """

    name: str
    folder: str
    tokens: Path
    num_labels: int
    seed: int
    test_documents: int | None
    features: Sequence[Path] = ()  # a head start's folder, by split
    documents: Path | None = None  # for TF-IDF
    rounds: Rounds | None = None  # None: all documents are drawn at random

    def __post_init__(self) -> None:
        assert self.features or (self.documents and not self.rounds)

    def recorded(self, session: Session) -> LogisticPoint:
        return self  # it has no curve

    def run(self, fence: Fence) -> Checkpoint:
        cost = Cost()
        train, test = open_shard(self.tokens, "train"), open_shard(self.tokens, "test")
        chosen = self._chosen(train)
        tested = test_sample(test, self.test_documents)
        fitted_on = (
            train.labels[chosen].astype(np.int64),
            len(read_info(self.tokens).label_names or ()),
            self.seed,
        )
        if self.documents is None:
            probe = fit_probe(self._features("train", chosen), *fitted_on)
            probs = probe.probabilities(self._features("test", tested))
        elif not self.features:
            tfidf = fit_tfidf(self._texts("train", chosen), *fitted_on)
            probs = tfidf.probabilities(self._texts("test", tested))
        else:
            joint = fit_joint(self._texts("train", chosen), self._features("train", chosen), *fitted_on)
            probs = joint.probabilities(self._texts("test", tested), self._features("test", tested))
        return _outcome(0, torch.from_numpy(probs), cost.spent(), {})

    def _chosen(self, train: TokenShard) -> np.ndarray:
        def drawn_at_random(count: int) -> np.ndarray:
            return chosen_documents(train, count, self.seed, "sample_efficiency.labels")

        labelled = np.flatnonzero(train.labels != UNLABELLED)
        if self.rounds is None or self.num_labels in (self.rounds.first, len(labelled)):
            return drawn_at_random(self.num_labels)
        drawn = drawn_at_random(self.rounds.first)
        others = np.random.default_rng((self.seed, 2)).permutation(np.setdiff1d(labelled, drawn))
        pool = np.concatenate([drawn, others[: max(_POOL, self.num_labels) - len(drawn)]])
        chosen = chosen_in_rounds(
            self.rounds.strategy, self.num_labels, self.rounds.per_round, np.arange(len(drawn)),
            self._features("train", pool), train.labels[pool].astype(np.int64),
            len(read_info(self.tokens).label_names or ()), self.seed,
        )  # fmt: skip
        return np.sort(pool[chosen])

    def _features(self, split: str, chosen: np.ndarray) -> list[np.ndarray]:
        return [np.load(each / f"{split}.npy", mmap_mode="r")[chosen] for each in self.features]

    def _texts(self, split: str, chosen: np.ndarray) -> list[str]:
        assert self.documents is not None
        texts = read_texts(self.documents, split)
        return [texts[index] for index in chosen]


@dataclass(frozen=True)
class InContextPoint:
    """A language model that is asked for the class of each test document, behind labelled examples."""

    name: str
    folder: str
    start: ModelFolder
    tokens: Path
    num_labels: int  # that are shown
    seed: int
    test_documents: int | None
    prompt: Prompt
    free_of_content: Sequence[Sequence[int]]  # to calibrate by; none: it is not calibrated
    example_tokens: int
    text_tokens: int
    settings: Run

    def recorded(self, session: Session) -> InContextPoint:
        return self  # it has no curve

    def run(self, fence: Fence) -> Checkpoint:
        device = device_of(self.settings)
        cost = Cost(gpu=device.type == "cuda")
        model = self._language_model().to(device).eval()
        train, test = open_shard(self.tokens, "train"), open_shard(self.tokens, "test")
        limits = self.example_tokens, self.text_tokens
        asked = InContext.behind_examples(model, self.prompt, train, self.num_labels, *limits, self.seed)
        texts = [test.document(int(index))[1:-1].tolist() for index in test_sample(test, self.test_documents)]
        probs = asked.probabilities(texts, self.free_of_content, device)
        return _outcome(0, torch.from_numpy(probs), cost.spent(), {})

    def _language_model(self) -> LanguageModel:
        card = self.start.card()
        model = build_language_model(build_encoder(card)[0], card)
        model.load_state_dict(self.start.tensors())
        return cast(LanguageModel, model)


@dataclass(frozen=True)
class ModelPoint:
    """A model that is wanted itself; its outcome is its weights."""

    name: str
    folder: str
    job: LanguageModelJob | ClassifierJob
    settings: Run
    session: Session

    def recorded(self, session: Session) -> ModelPoint:
        return replace(self, session=session)

    def run(self, fence: Fence) -> Checkpoint:
        done = fit(self.job, replace_workers(self.settings), replace(self.session, fence=fence))
        state = {"validation": done.state["kept_metrics"], "spent": done.state["spent"]}
        return Checkpoint(done.step, model_tensors(done), state)

    def export(self, outcome: Checkpoint, folder: Path, more: Sequence[Path] = ()) -> None:
        export_model(folder, outcome.tensors, replace(self.job.card, key=self.session.key), more)


def replace_workers(run: Run) -> Run:
    """The same settings, but for a loop in this process, with this process's threads."""
    return run.model_copy(update={"workers": 0, "threads_per_worker": torch.get_num_threads()})


def test_sample(shard: TokenShard, size: int | None) -> np.ndarray:
    """Indices of the labelled documents, or of a stratified sample; all points use the same."""
    labelled = np.flatnonzero(shard.labels != UNLABELLED)
    if size is None or size >= len(labelled):
        return labelled
    return labelled[stratified_subset(shard.labels[labelled], size, seed=0)]


def probabilities_of(outcomes: Sequence[Checkpoint]) -> np.ndarray:
    """Probabilities (N, C), averaged over the members of an ensemble."""
    return np.mean([outcome.tensors["probabilities"].double().numpy() for outcome in outcomes], axis=0)


def _outcome(steps: int, probs_NC: torch.Tensor, spent: Spent, validation: dict[str, float]) -> Checkpoint:
    state = {"validation": validation, "spent": spent.model_dump()}
    return Checkpoint(steps, {"probabilities": probs_NC.float()}, state)


def cost_of(outcome: Checkpoint) -> Spent:
    """The cost of a trial."""
    return Spent(**outcome.state["spent"])
