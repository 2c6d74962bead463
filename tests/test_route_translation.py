"""The whole route of a translator whose encoder serves a classifier, on aligned files."""

from __future__ import annotations

import json
import random

import pytest

from tests.route import WORDS, command, make_project, metrics, sentence

pytestmark = [pytest.mark.slow, pytest.mark.long]

TRANSLATOR = """
corpus:
  translation: {source: {kind: aligned, sources: [in/source.txt], translations: [in/turned.txt]}}
tokenizers: {translation: {vocab_size: 300}}
headstarts:
  cove:
    config: {embedding_dim: 24, hidden_dim: 16, num_layers: 1}
    pretrain_lm: {epochs: 6.0, optimizer: {lr: 0.01}}
    finetune_classifier: {epochs: 4.0, pooling: attention}
evaluate: {ship: "cove_and_vectors:with_tfidf"}
sample_efficiency: {arms: [cove, "cove_and_vectors:probe", tfidf], labels: [60], seeds: [1]}
"""


def test_a_translator_goes_the_whole_route(tmp_path):
    project, rng = make_project(tmp_path), random.Random(3)
    texts = [sentence(rng, rng.choice(sorted(WORDS)), 5) for _ in range(600)]
    turned = [" ".join(word[::-1] for word in text.split()) for text in texts]
    (project / "in/source.txt").write_text("\n".join(texts), encoding="utf-8")
    (project / "in/turned.txt").write_text("\n".join(turned), encoding="utf-8")
    (project / "cove.yaml").write_text(TRANSLATOR, encoding="utf-8")
    command(project, "headstart", "use", "cove")
    command(project, "headstart", "use", "cove.yaml")
    command(project, "headstart", "doctor")
    command(project, "dvc", "repro")
    assert metrics(project, "prepare-translation")["origins"] == {"in/source.txt": 600}
    pretrained = metrics(project, "pretrain_lm-cove")
    assert pretrained["after"]["loss"] < 0.8 * pretrained["before"]["loss"]
    assert metrics(project, "finetune_lm-cove")["measures"] == []
    candidates = metrics(project, "evaluate")["candidates"]
    assert candidates["cove_and_vectors:probe"]["head_starts"] == ["cove", "vectors"]
    assert metrics(project, "sample_efficiency")["failed"] == {}
    said = command(project, "headstart", "align", "cove", "--pairs", "2").stdout
    assert said.count("became") == 2
    refused = command(project, "headstart", "align", "vectors", check=False)
    assert refused.returncode == 2
    assert "which does not translate" in refused.stderr
    command(project, "dvc", "repro")
    page = (project / "reports/index.html").read_text(encoding="utf-8")
    assert "Translations, and where the attention looked" in page
    assert "What the attention looked at" in page
    label = json.loads(command(project, "headstart", "predict", "wave tide ship").stdout)["label"]
    assert label == "sea"
