"""The points of a label curve: an arm, a number of labels, a seed; and what they keep of themselves.

Shapes: N test documents, C classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from pipeline.corpus.batches import stratified_subset
from pipeline.corpus.documents import read_texts
from pipeline.corpus.tokens import UNLABELLED, TokenShard, open_shard, read_info
from pipeline.cost import Cost, total
from pipeline.evaluation import tfidf_probabilities
from pipeline.launch import Session, device_of, fit, model_tensors
from pipeline.lease import Fence
from pipeline.params import Run
from pipeline.training.checkpoint import Checkpoint
from pipeline.training.export import build_classifier, build_encoder, export_model
from pipeline.training.jobs import ClassifierJob, LanguageModelJob, chosen_documents
from pipeline.training.objectives import predict_logits


@dataclass(frozen=True)
class ClassifierPoint:
    """A network trained on a subset of the labels, and its probabilities for the test documents."""

    name: str
    folder: str
    job: ClassifierJob
    settings: Run
    session: Session
    test_documents: int | None

    def run(self, fence: Fence) -> Checkpoint:
        done = fit(self.job, replace_workers(self.settings), replace(self.session, fence=fence))
        device = device_of(self.settings)
        cost = Cost(gpu=device.type == "cuda")
        card = self.job.card
        assert card.head is not None
        model = build_classifier(build_encoder(card)[0], card.head)
        model.load_state_dict(model_tensors(done))
        test = open_shard(self.job.tokens, "test")
        logits = predict_logits(
            model.to(device).eval(),
            [test.document(int(index)) for index in test_sample(test, self.test_documents)],
            card.head.max_tokens,
            card.direction,
            card.pad_id,
            device,
        )
        spent = total(done.state["spent"], cost.spent())
        return _outcome(done.step, logits.double().softmax(1), spent, done.state["kept_metrics"])


@dataclass(frozen=True)
class TfidfPoint:
    """TF-IDF with logistic regression on the same labels; all of them train, as it validates by folds."""

    name: str
    folder: str
    tokens: Path
    documents: Path
    num_labels: int
    seed: int
    test_documents: int | None

    def run(self, fence: Fence) -> Checkpoint:
        cost = Cost()
        train, test = open_shard(self.tokens, "train"), open_shard(self.tokens, "test")
        chosen = chosen_documents(train, self.num_labels, self.seed, "sample_efficiency.labels")
        train_texts, test_texts = read_texts(self.documents, "train"), read_texts(self.documents, "test")
        probs = tfidf_probabilities(
            [train_texts[index] for index in chosen],
            train.labels[chosen].astype(np.int64),
            [test_texts[index] for index in test_sample(test, self.test_documents)],
            len(read_info(self.tokens).label_names or ()),
            self.seed,
        )
        return _outcome(0, torch.from_numpy(probs), cost.spent(), {})


@dataclass(frozen=True)
class LanguageModelPoint:
    """A language model that an arm starts from: its weights are the outcome."""

    name: str
    folder: str
    job: LanguageModelJob
    settings: Run
    session: Session

    def run(self, fence: Fence) -> Checkpoint:
        done = fit(self.job, replace_workers(self.settings), replace(self.session, fence=fence))
        state = {"validation": done.state["kept_metrics"], **done.state["spent"]}
        return Checkpoint(done.step, model_tensors(done), state)

    def export(self, outcome: Checkpoint, folder: Path) -> None:
        export_model(folder, outcome.tensors, replace(self.job.card, key=self.session.key))


def replace_workers(run: Run) -> Run:
    """The same settings, for a loop in this process with the threads that it has."""
    return run.model_copy(update={"workers": 0, "threads_per_worker": torch.get_num_threads()})


def test_sample(shard: TokenShard, size: int | None) -> np.ndarray:
    """Indices of the labelled documents, or of a stratified sample of them: the same for all points."""
    labelled = np.flatnonzero(shard.labels != UNLABELLED)
    if size is None or size >= len(labelled):
        return labelled
    return labelled[stratified_subset(shard.labels[labelled], size, seed=0)]


def probabilities_of(outcomes: Sequence[Checkpoint]) -> np.ndarray:
    """Probabilities (N, C), averaged over the directions of a model."""
    return np.mean([outcome.tensors["probabilities"].double().numpy() for outcome in outcomes], axis=0)


def _outcome(
    steps: int, probs_NC: torch.Tensor, spent: dict[str, float], validation: dict[str, float]
) -> Checkpoint:
    return Checkpoint(steps, {"probabilities": probs_NC.float()}, {"validation": validation, **spent})
