"""Head starts of other families go the whole route together: one that somebody adds, and a translator."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import pytest

from tests.checkout import ROOT
from tests.route import WORDS, command, make_project, metrics, sentence

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.ray]

TRANSLATOR = """
corpus:
  translation: {source: {kind: aligned, sources: [in/source.txt], translations: [in/turned.txt]}}
tokenizers: {translation: {vocab_size: 300}}
headstarts:
  cove:
    config: {embedding_dim: 24, hidden_dim: 16, num_layers: 1}
    pretrain_lm: {epochs: 6.0, optimizer: {lr: 0.01}}
    finetune_classifier: {epochs: 4.0, pooling: attention, beside: vectors}
evaluate: {ship: "cove_and_vectors/with_tfidf"}
"""
BAG = """
run: {headstarts: [bag, vectors, cove]}
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
sample_efficiency:
  arms: [bag, "bag/probe", "bag/with_tfidf", "bag/scratch", both, cove, "cove_and_vectors/probe", tfidf]
  labels: [60]
  seeds: [1]
tune: {headstart: bag, stage: finetune_lm, num_trials: 2, search: random, grace: null}
ablate: {headstart: bag}
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Path:
    """A project in which the route has run, with a family of its own and a translator on aligned files."""
    folder, rng = make_project(tmp_path_factory.mktemp("route")), random.Random(3)
    texts = [sentence(rng, rng.choice(sorted(WORDS)), 5) for _ in range(600)]
    turned = [" ".join(word[::-1] for word in text.split()) for text in texts]
    (folder / "in/source.txt").write_text("\n".join(texts), encoding="utf-8")
    (folder / "in/turned.txt").write_text("\n".join(turned), encoding="utf-8")
    shutil.copy(ROOT / "tests/bag.py", folder / "models/bag.py")
    command(folder, "headstart", "use", "cove")
    for name, settings in (("translator.yaml", TRANSLATOR), ("bag.yaml", BAG)):
        (folder / name).write_text(settings, encoding="utf-8")
        in_own_code(folder, "headstart", "use", name)
    assert "bag" in in_own_code(folder, "headstart", "doctor").stdout
    in_own_code(folder, "dvc", "repro")
    return folder


def in_own_code(folder: Path, *words: str, **keywords):
    """Run a command with the project's own code, which has a family that the installed one lacks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder))
        return command(folder, *words, **keywords)


def test_a_family_that_somebody_adds_needs_no_change_outside_its_file(project):
    for stage in ("pretrain_lm", "finetune_lm"):
        figures = metrics(project, f"{stage}-bag")
        assert [each["name"] for each in figures["measures"]] == ["surprise"]
        assert figures["after"]["surprise"] < figures["before"]["surprise"]
    search = metrics(project, "tune")
    assert search["states"] == {"finished": 2, "stopped early": 0, "failed": 0}
    assert search["best"]["settings"].keys() == {"finetune_lm.optimizer.lr"}
    curve = metrics(project, "sample_efficiency")
    assert curve["failed"] == {}
    learned = ("bag", "bag/probe", "bag/with_tfidf", "both")
    assert all(curve["curve"][arm]["60"]["error"]["value"] < 0.6 for arm in learned)
    assert {*learned, "tfidf", "blend"} < metrics(project, "evaluate")["candidates"].keys()
    page = (project / "reports/index.html").read_text(encoding="utf-8")
    assert "surprise, nats a word" in page
    assert "bits per byte" not in page
    assert_it_predicts(project, ["--model", "data/classifiers/bag"])


def test_a_translator_serves_a_classifier(project):
    assert metrics(project, "prepare-translation")["origins"] == {"in/source.txt": 600}
    pretrained = metrics(project, "pretrain_lm-cove")
    assert pretrained["after"]["loss"] < 0.8 * pretrained["before"]["loss"]
    assert metrics(project, "finetune_lm-cove")["measures"] == []
    evaluation = metrics(project, "evaluate")
    shipped = evaluation["candidates"]["cove_and_vectors/probe"]
    assert shipped["head_starts"] == ["cove", "vectors"]
    assert evaluation["shipped"] == "cove_and_vectors/with_tfidf"
    assert evaluation["candidates"]["cove"]["head_starts"] == ["cove", "vectors"]  # whose features it reads
    assert metrics(project, "finetune_classifier-cove")["beside"] == "vectors"
    assert metrics(project, "sample_efficiency")["beside"] == {"cove": ["vectors"]}
    said = in_own_code(project, "headstart", "align", "cove", "--pairs", "2").stdout
    assert said.count("became") == 2
    of_the_page = (project / "reports/studies/alignment-cove.json").read_bytes()
    assert "became" in in_own_code(project, "headstart", "align", "cove", "--text", "the reef").stdout
    assert (project / "reports/studies/alignment-cove.json").read_bytes() == of_the_page
    refused = in_own_code(project, "headstart", "align", "vectors", check=False)
    assert refused.returncode == 2
    assert "which does not translate" in refused.stderr
    in_own_code(project, "dvc", "repro")
    page = (project / "reports/index.html").read_text(encoding="utf-8")
    assert "Translations, and where the attention looked" in page
    assert "What the attention looked at" in page
    assert_it_predicts(project, [])
    assert_it_predicts(project, ["--model", "data/classifiers/cove"])


def test_nothing_is_left_to_run(project):
    assert "didn't change" in in_own_code(project, "dvc", "repro").stdout


def assert_it_predicts(project: Path, model: list[str]) -> None:
    rng = random.Random(5)
    topics = sorted(WORDS) * 5
    texts = "\n".join(sentence(rng, topic, 15) for topic in topics)
    said = in_own_code(project, "headstart", "predict", *model, input=texts).stdout
    found = [json.loads(line)["label"] for line in said.splitlines()]
    assert sum(label == topic for label, topic in zip(found, topics, strict=True)) > len(topics) / 2
