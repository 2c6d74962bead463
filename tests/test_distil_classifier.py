"""A student of the classifier that ships learns from the right documents and labels, by the right loss."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from models.distillation import soft_loss
from pipeline.corpus.tokens import ShardWriter, SplitInfo, TokensInfo, open_shard, read_info, write_info
from pipeline.figures.files import dumped
from pipeline.figures.sweeps import NoTrials
from pipeline.inference.predict import Predictor
from pipeline.project.checked_params import checked
from pipeline.project.checks import check
from pipeline.project.project import Project
from pipeline.project.student import student_training
from pipeline.settings.loader import overlay, read_yaml
from pipeline.stages import distil_classifier
from pipeline.training.classifier import TAUGHT_FILE
from pipeline.training.context import Context
from tests.training.test_loop import classifier_job, taught_classifier, write_tokens

ROOT = Path(__file__).resolve().parent.parent
TEXTS = {
    "train": ["sea one", "garden two", "sea three", "garden four"],
    "unlabelled": ["sea five", "garden six"],
    "validation": ["sea seven"],
}
LABELS: dict[str, list[int | None]] = {
    "train": [1, 0, None, 1],
    "unlabelled": [None, None],
    "validation": [1],
}  # sea: 1, garden: 0


class FakePredictor:
    """Says nine in ten for what a text begins with."""

    label_names, num_texts = ("garden", "sea"), 1

    def probabilities(self, texts: Any) -> np.ndarray:
        sea_N = np.array([0.9 if text.startswith("sea") else 0.1 for (text,) in texts])
        return np.stack([1 - sea_N, sea_N], axis=1)


@pytest.fixture
def tokens(tmp_path) -> Path:
    folder = tmp_path / "tokens"
    folder.mkdir()
    splits = {}
    for split, texts in TEXTS.items():
        with ShardWriter(folder, split, 50) as writer:
            ids = [np.array([1, 10 + place, len(text), 2]) for place, text in enumerate(texts)]
            writer.append(ids, LABELS[split])
        splits[split] = writer.info(2 * len(texts), 10 * len(texts))
    specials = {"unk_id": 3, "bos_id": 1, "eos_id": 2, "pad_id": 0}
    write_info(folder, TokensInfo(50, "abc", **specials, label_names=("garden", "sea"), splits=splits))
    return folder


def test_all_text_is_taught_and_only_chosen_labels_are_kept(tokens, tmp_path, monkeypatch):
    monkeypatch.setattr(Predictor, "load", lambda folder: FakePredictor())
    monkeypatch.setattr(distil_classifier, "read_texts", lambda folder, split: TEXTS[split])
    out = tmp_path / "taught"
    labelled = np.array([0, 3])  # the label of document 1 was not to be used, document 2 has none
    lesson = distil_classifier._Lesson.give(out, tokens, tmp_path, tmp_path, labelled)
    assert lesson.num_documents == 6
    train = open_shard(out, "train")
    # Documents 0 and 3 as labelled, although the teacher says otherwise of the last; others as it says.
    assert train.labels.tolist() == [1, 0, 1, 1, 1, 0]
    whole = [*TEXTS["train"], *TEXTS["unlabelled"]]
    assert [int(train.document(k)[2]) for k in range(6)] == [len(text) for text in whole]
    assert read_info(out).splits["train"] == SplitInfo(6, 24, 12, 60)
    log_probs = np.load(out / TAUGHT_FILE)
    assert np.exp(log_probs[:, 1]) == pytest.approx([0.9, 0.1, 0.9, 0.1, 0.9, 0.1])
    assert open_shard(out, "validation").labels.tolist() == [1]


def test_the_loss_is_the_weighted_sum_of_that_of_labels_and_the_divergence_from_the_teacher(tmp_path):
    job = taught_classifier(
        classifier_job(write_tokens(tmp_path / "tokens"), label_smoothing=0.0), tmp_path / "lesson"
    )
    objective: Any = job.task(Context()).objective
    batch = objective.batches.at(0, 0, 1)
    logits = objective.model(batch.ids_BT, batch.mask_BT)
    # Without dropout and batch statistics, which the training step has: the features decide both alike.
    objective.model.scored = lambda pooled, whole, beside: logits
    found = objective.loss(0, (), Context())
    taught = torch.from_numpy(np.load(tmp_path / "lesson" / TAUGHT_FILE)[batch.documents_D])
    wanted = 0.5 * F.cross_entropy(logits, batch.labels_D) + soft_loss(logits, taught, 2.0) / len(logits)
    torch.testing.assert_close(found.objective, wanted)
    torch.testing.assert_close(found.nats, F.cross_entropy(logits, batch.labels_D, reduction="sum"))


def params_with(top: dict[str, Any]) -> Any:
    return checked(overlay(read_yaml(ROOT / "params.yaml"), top), where="params.yaml")


def test_a_student_that_is_not_trained_or_an_unknown_key_is_refused():
    with pytest.raises(
        ValueError, match=r"distil_classifier\.student is gpt, which run\.headstarts does not train; name"
    ):
        params_with({"distil_classifier": {"student": "gpt"}})
    nothing = {"distil_classifier": {"student": "vectors", "soft": 0.0, "hard": 0.0}}
    with pytest.raises(ValueError, match=r"distil_classifier has no weight above 0"):
        params_with(nothing)
    top = {"distil_classifier": {"student": "vectors", "classifier": {"epoch": 2.0}}}
    with pytest.raises(ValueError, match=r"`distil_classifier\.classifier\.epoch`; did you mean `epochs`"):
        params_with(top)


def test_a_student_reads_all_text_however_few_labels_it_has_and_learns_from_no_pairs():
    few = {"finetune_classifier": {"max_labels": 500}, "distil_classifier": {"student": "vectors"}}
    params = params_with(few)
    student = Project(params).head_starts["vectors"]
    trained = student_training(params.distil_classifier, student.finetune_classifier)
    assert trained.max_labels is None
    normalise = params.corpus.target.normalise
    identity = distil_classifier._identity(params.distil_classifier, student, trained, normalise, seed=1)
    assert identity["labels"] == 500
    contrastive = overlay(few, {"finetune_classifier": {"method": "contrastive"}})
    with pytest.raises(ValueError, match=r"finetune_classifier\.method of vectors is contrastive, which"):
        check(Project(params_with(contrastive)))
    plain = {"distil_classifier": {"classifier": {"method": "plain"}}}
    check(Project(params_with(overlay(contrastive, plain))))
    with pytest.raises(ValueError, match=r"classifier\.max_labels has no effect, .* headstarts\.vectors\."):
        check(Project(params_with(overlay(few, {"distil_classifier": {"classifier": {"max_labels": 9}}}))))


def test_nothing_is_distilled_unless_asked_for(tmp_path):
    out = tmp_path / "distilled"
    paths = dict.fromkeys(
        ("tokens", "documents", "classifier", "general_lm", "target_lm", "leaks"), tmp_path / "absent"
    )
    sweep: Any = SimpleNamespace(key="k")
    found = distil_classifier.run(Project(params_with({})), **paths, out=out, sweep=sweep)
    assert found == NoTrials(key="k")
    assert dumped(found) == {"key": "k", "num_trials": 0}
    assert (out / "nothing.txt").exists()
