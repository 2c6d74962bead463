"""The whole route on documents of several texts: pairs, and texts with answers to choose from."""

from __future__ import annotations

import csv
import json
import random
from pathlib import Path

import pytest

from tests.route import WORDS, command, make_project, metrics, sentence

pytestmark = [pytest.mark.slow, pytest.mark.long]

TRANSFORMER = "{embedding_dim: 32, feedforward_dim: 64, num_layers: 2, num_heads: 4, context: 64}"
LEARNING = "{epochs: 30.0, optimizer: {lr: 0.003}, bptt: 64, max_tokens: 64}"
PAIRS = f"""
run: {{headstarts: [ulmfit, bert]}}
corpus: {{target: {{source: {{text_column: premise, label_column: label, text_pair_column: hypothesis}}}}}}
headstarts:
  bert:
    config: {TRANSFORMER}
    pretrain_lm: {{epochs: 4.0, row_tokens: 40}}
    finetune_lm: {{epochs: 4.0, row_tokens: 40}}
    finetune_classifier: {LEARNING}
    few_labels: {{epochs: 10.0}}
sample_efficiency: {{arms: [ulmfit, "bert/probe", "bert/with_tfidf", bert, tfidf], labels: [60], seeds: [1]}}
"""
CHOICES = f"""
run: {{headstarts: [gpt, gpt_half]}}
corpus:
  target:
    source: {{text_column: question, label_column: label, choice_columns: [first, second]}}
headstarts:
  gpt:
    config: {TRANSFORMER}
    pretrain_lm: {{epochs: 4.0, bptt: 40}}
    finetune_lm: {{epochs: 4.0, bptt: 40}}
    finetune_classifier: {LEARNING}
    few_labels: {{epochs: 10.0}}
  gpt_half:
    family: gpt
    tokenizer: pieces
    weights: null
    embedding_from: null
    teacher: gpt
    config: {TRANSFORMER.replace("num_layers: 2", "num_layers: 1")}
    pretrain_lm: {{epochs: 4.0, bptt: 40}}
    finetune_lm: {{epochs: 4.0, bptt: 40}}
    finetune_classifier: {LEARNING.replace("epochs: 30.0", "epochs: 4.0")}
    few_labels: {{epochs: 10.0}}
    scratch: {{}}
    probe: {{}}
distil_classifier: {{student: gpt_half, classifier: {{epochs: 10.0}}}}
sample_efficiency: {{arms: [gpt, gpt_half, "gpt/probe", "gpt/scratch", tfidf], labels: [60], seeds: [1]}}
"""


def write_rows(file: Path, columns: list[str], rows: list[list[str]]) -> None:
    with file.open("w", newline="", encoding="utf-8") as opened:
        writer = csv.writer(opened)
        writer.writerow(columns)
        writer.writerows(rows)


def of_one_topic(rng: random.Random, same: bool) -> tuple[str, str]:
    first, other = rng.sample(sorted(WORDS), 2)
    return sentence(rng, first, 8), sentence(rng, first if same else other, 8)


def test_pairs_go_the_whole_route(tmp_path):
    project, rng = make_project(tmp_path), random.Random(3)
    rows = [[*of_one_topic(rng, k % 2 == 0), ("other", "same")[k % 2 == 0]] for k in range(600)]
    write_rows(project / "in/target.csv", ["premise", "hypothesis", "label"], [*rows, ["alone", "", "same"]])
    (project / "pairs.yaml").write_text(PAIRS, encoding="utf-8")
    command(project, "headstart", "use", "pairs.yaml")
    command(project, "headstart", "doctor")
    done = command(project, "dvc", "repro")
    assert "1 null further text" in done.stdout + done.stderr
    evaluation = metrics(project, "evaluate")
    assert {"ulmfit", "bert", "bert/probe", "bert/with_tfidf", "tfidf", "blend"} <= evaluation[
        "candidates"
    ].keys()
    curve = metrics(project, "sample_efficiency")
    assert curve["failed"] == {}
    assert set(curve["curve"]) == {"ulmfit", "bert/probe", "bert/with_tfidf", "bert", "tfidf"}
    asked = [of_one_topic(rng, k % 2 == 0) for k in range(40)]
    said = command(project, "headstart", "predict", input="\n".join("\t".join(pair) for pair in asked)).stdout
    assert len([json.loads(line)["label"] for line in said.splitlines()]) == 40
    refused = command(project, "headstart", "predict", "only one text", check=False)
    assert refused.returncode == 2
    assert "the classifier reads 2 of each, with a tab between them" in refused.stderr
    assert "Traceback" not in refused.stderr
    (project / "vectors.yaml").write_text("run: {headstarts: [vectors]}", encoding="utf-8")
    refused = command(project, "headstart", "use", "vectors.yaml", check=False)
    assert "headstarts.vectors.finetune_classifier: documents" in refused.stderr
    assert "take this head start out of run.headstarts" in refused.stderr


def test_answers_go_the_whole_route(tmp_path):
    project, rng = make_project(tmp_path), random.Random(3)
    rows = []
    for number in range(600):
        first, other = rng.sample(sorted(WORDS), 2)
        answers = [sentence(rng, first, 6), sentence(rng, other, 6)]
        right = number % 2
        rows.append([sentence(rng, first, 8), *(answers[::-1] if right else answers), str(right)])
    write_rows(project / "in/target.csv", ["question", "first", "second", "label"], rows)
    (project / "choices.yaml").write_text(CHOICES, encoding="utf-8")
    command(project, "headstart", "use", "choices.yaml")
    command(project, "dvc", "repro")
    evaluation = metrics(project, "evaluate")
    assert evaluation["candidates"].keys() == {"gpt", "gpt_half", "blend"}
    assert metrics(project, "sample_efficiency")["curve"].keys() == {"gpt", "gpt_half", "gpt/scratch"}
    summary = (project / "reports/summary.md").read_text(encoding="utf-8")
    assert "second" in summary
    said = command(project, "headstart", "predict", "oven pan salt\twave tide ship\tdough onion flour").stdout
    assert json.loads(said)["label"] in ("first", "second")
    refused = command(project, "headstart", "layers", "gpt", check=False)
    assert refused.returncode == 2
    assert "answers to choose from, of which a probe makes nothing" in refused.stderr
    assert_it_was_taught(project)


def assert_it_was_taught(project: Path) -> None:
    """A student of half the layers, and a classifier distilled into it."""
    pretrained = metrics(project, "pretrain_lm-gpt_half")
    assert pretrained["teacher"] == {"headstart": "gpt", "begun_share": 1.0}
    drawn = metrics(project, "pretrain_lm-gpt")["before"]["loss"]
    assert pretrained["before"]["loss"] < drawn - 0.1  # it began as layers that were trained
    found = metrics(project, "distil_classifier")
    assert found["student"] == "gpt_half"
    assert found["num_taught"] == found["num_labels"]  # all have labels
    assert found["agreement"] > 0.6
    assert found["distilled"]["num_bytes"] < found["teacher"]["num_bytes"]
    page = (project / "reports/index.html").read_text(encoding="utf-8")
    assert "gpt_half, taught by it" in page
    assert "The language models of gpt_half learned from those of gpt; 100% of its numbers" in page
    said = command(
        project, "headstart", "predict", "--model", "data/distilled", "oven salt\twave ship\tdough flour"
    ).stdout
    assert json.loads(said)["label"] in ("first", "second")
    assert_an_earlier_teacher_is_refused(project)


def assert_an_earlier_teacher_is_refused(project: Path) -> None:
    """DVC does not know that a student needs its teacher, so the stage has to see to it."""
    alone = ("dvc", "repro", "-f", "-s", "pretrain_lm@gpt_half")
    command(project, *alone)
    (project / "longer.yaml").write_text("headstarts: {gpt: {pretrain_lm: {epochs: 5.0}}}", encoding="utf-8")
    command(project, "headstart", "use", "longer.yaml")
    refused = command(project, *alone, check=False)
    assert refused.returncode != 0
    said = " ".join((refused.stdout + refused.stderr).split())
    assert "gpt_half learns from gpt, whose model data/general_lm/gpt is of earlier settings" in said
    assert "Traceback" not in said
