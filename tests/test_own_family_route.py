"""A family that somebody adds as one file goes the whole way: stages, search, report, doctor, predict."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import pytest

from tests.checkout import ROOT, copy_checkout
from tests.route import TINY, WORDS, command, metrics, sentence, write_corpora

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.ray]

BAG = """
run: {headstarts: [bag, vectors]}
headstarts:
  bag:
    family: bag
    tokenizer: words
    weights: null
    embedding_from: null
    teacher: null
    config: {width: 16}
    pretrain_lm: {documents: 16}
    finetune_lm: {documents: 16}
    finetune_classifier: {}
    few_labels: {}
    scratch: {}
    probe: {}
ensembles: {both: [bag, vectors]}
evaluate: {ship: both}
sample_efficiency:
  arms: [bag, "bag:probe", "bag:with_tfidf", "bag:scratch", both, tfidf]
  labels: [60]
  seeds: [1]
tune: {headstart: bag, stage: finetune_lm, num_trials: 2, search: random, grace: null}
ablate: {headstart: bag}
"""


def test_it_goes_the_whole_way_without_a_change_outside_its_file(tmp_path, monkeypatch):
    project = copy_checkout(tmp_path / "project")
    monkeypatch.setenv("PYTHONPATH", str(project))
    shutil.copy(ROOT / "tests/bag.py", project / "models/bag.py")
    write_corpora(project / "in", seed=1)
    for name, settings in (("tiny.yaml", TINY), ("bag.yaml", BAG)):
        (project / name).write_text(settings, encoding="utf-8")
        command(project, "headstart", "use", name)
    assert "bag" in command(project, "headstart", "doctor").stdout
    command(project, "dvc", "repro")
    for stage in ("pretrain_lm", "finetune_lm"):
        figures = metrics(project, f"{stage}-bag")
        assert [each["name"] for each in figures["measures"]] == ["surprise"]
        assert figures["after"]["surprise"] < figures["before"]["surprise"]
    search = metrics(project, "tune")
    assert search["states"] == {"finished": 2, "stopped early": 0, "failed": 0}
    assert search["best"]["settings"].keys() == {"finetune_lm.optimizer.lr"}
    curve = metrics(project, "sample_efficiency")
    assert curve["failed"] == {}
    learned = ("bag", "bag:probe", "bag:with_tfidf", "both")
    assert all(curve["curve"][arm]["60"]["error"] < 0.6 for arm in learned)
    evaluation = metrics(project, "evaluate")
    assert {*learned, "tfidf", "blend"} < evaluation["candidates"].keys()
    assert evaluation["shipped"] == "both"
    assert evaluation["parts"] == {"bag": 0.5, "vectors": 0.5}
    page = (project / "reports/index.html").read_text(encoding="utf-8")
    assert "surprise, nats a word" in page
    assert "bits per byte" not in page
    for model in ([], ["--model", "data/classifiers/bag"]):  # what ships, and the family's own
        assert_it_predicts(project, model)
    assert "didn't change" in command(project, "dvc", "repro").stdout


def assert_it_predicts(project: Path, model: list[str]) -> None:
    rng = random.Random(5)
    topics = sorted(WORDS) * 5
    texts = "\n".join(sentence(rng, topic, 15) for topic in topics)
    said = command(project, "headstart", "predict", *model, input=texts).stdout
    found = [json.loads(line)["label"] for line in said.splitlines()]
    assert sum(label == topic for label, topic in zip(found, topics, strict=True)) > len(topics) / 2
