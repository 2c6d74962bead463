"""The whole route, as a user runs it: real DVC, real SQLite tracking, small corpora made here."""

from __future__ import annotations

import json
import random
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from pipeline.__main__ import main
from pipeline.figures.files import VERSION
from pipeline.project.lock_file import LockFile
from pipeline.project.project import Project
from pipeline.settings.loader import overlay as overlay_settings
from pipeline.settings.loader import read_yaml
from tests.route import (
    ALL,
    ARMS,
    COMMON,
    WORDS,
    command,
    make_project,
    metrics,
    outcomes,
    sentence,
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Path:
    """A project in which the whole route has run, in both directions and with word vectors."""
    folder = make_project(tmp_path_factory.mktemp("route"), f"run: {{headstarts: [{', '.join(ALL)}]}}")
    done = command(folder, "dvc", "repro")
    (folder / "repro.log").write_text(done.stdout + done.stderr, encoding="utf-8")
    return folder


def test_no_library_warns_on_the_terminal(project):
    said = (project / "repro.log").read_text(encoding="utf-8")
    assert "evaluate: ships" in said
    assert "warning" not in said.lower()


def test_layers_are_compared_and_dissected_on_what_the_route_left(project):
    done = command(project, "headstart", "layers", "ulmfit", "--labels", "40")
    assert "headstarts.ulmfit.probe: {layers: [" in " ".join(done.stdout.split())
    table = json.loads((project / "reports/studies/layers-ulmfit.json").read_text(encoding="utf-8"))
    assert table["key"] == metrics(project, "finetune_lm-ulmfit")["key"]
    assert 'id="chart-layers-ulmfit"' not in (project / "reports/index.html").read_text(encoding="utf-8")
    done = command(project, "headstart", "anatomy", "ulmfit", "--documents", "400")
    found = json.loads((project / "reports/studies/anatomy-ulmfit.json").read_text(encoding="utf-8"))
    assert f"{found['measured']['num_sentences']:,} sentences" in " ".join(done.stdout.split())
    assert found["key"] == metrics(project, "finetune_lm-ulmfit")["key"]
    assert len(found["measured"]["layers"]) == 2
    assert all(0 < layer["self_similarity"] < 1 for layer in found["measured"]["layers"])
    command(project, "headstart", "anatomy", "vectors", "--documents", "400", "--word", "harbour")
    of_words = json.loads((project / "reports/studies/anatomy-vectors.json").read_text(encoding="utf-8"))
    (layer,), (example,) = of_words["measured"]["layers"], of_words["measured"]["examples"]
    assert layer["self_similarity"] == pytest.approx(1)
    assert (example["word"], example["between"]) == ("harbour", None)
    refused = command(project, "headstart", "anatomy", "vectors", "--word", "zyx", check=False)
    assert "'zyx' is not one word that the tokenizer knows; take another one" in refused.stderr
    assert "Traceback" not in refused.stderr
    for name in ("layers", "anatomy"):
        refused = command(project, "headstart", name, "vectors", "--out", "params.yaml", check=False)
        assert refused.returncode == 2
        assert "no folder for the figures can be made at params.yaml" in refused.stderr
    assert "Running stage 'report'" in command(project, "dvc", "repro").stdout
    page = (project / "reports/index.html").read_text(encoding="utf-8")
    assert 'id="chart-layers-ulmfit"' in page
    assert 'id="chart-anatomy-ulmfit"' in page
    assert 'id="chart-anatomy-vectors-1"' in page


def test_a_language_model_continues_a_text(project):
    words = ["headstart", "generate", "ulmfit", "the old harbour", "--samples", "3", "--tokens", "12"]
    done, again = (command(project, *words, "--seed", "4").stdout for _ in range(2))
    assert done == again
    texts = done.splitlines()
    assert len(set(texts)) == 3
    assert all(text.startswith("the old harbour ") for text in texts)
    known = {*(word for topic in WORDS.values() for word in topic), *COMMON}
    added = [word for text in texts for word in text.split()[3:]]
    assert sum(word in known for word in added) > len(added) / 2
    for name, reason in (
        ("vectors", "not trained to predict"),
        ("ulmfit_backward", "reads a text from its end"),
    ):
        refused = command(project, "headstart", "generate", name, "the", check=False)
        assert refused.returncode == 2
        assert reason in refused.stderr


def test_a_language_model_is_asked_for_a_class(project, monkeypatch):
    from pipeline.execution.zero_shot import ask

    settings = Project.load(project / "params.yaml")
    text = "wave tide the harbour reef"
    with pytest.raises(ValueError, match="the text is empty; give some words to classify"):
        ask(settings, "ulmfit", "target_lm", " ", None, 0, seed=1)
    said = command(project, "headstart", "zero-shot", "ulmfit", text, "--examples", "6").stdout
    monkeypatch.chdir(project)

    def asked(name="ulmfit", template=None, num_examples=0):
        return ask(settings, name, "target_lm", text, template, num_examples, seed=1)

    shown = asked(num_examples=6)
    assert [line.split() for line in said.splitlines()] == [[f"{share:.1%}", name] for name, share in shown]
    answers = [shown, asked(), asked(template="{text} of {label}")]
    assert len({tuple(found) for found in answers}) == 3
    for found in answers:
        assert {name for name, _ in found} == {*WORDS}
        chances = [chance for _, chance in found]
        assert chances == sorted(chances, reverse=True)
        assert sum(chances) == pytest.approx(1)
    refused: list[tuple[dict[str, Any], str]] = [
        ({"name": "vectors"}, "not trained to predict"),
        ({"name": "ulmfit_backward"}, "reads a text from its end"),
        ({"num_examples": 9999}, "--examples is 9,999, but there are"),
        ({"template": "{text}"}, "to end with one blank and"),
    ]
    for changes, reason in refused:
        with pytest.raises(ValueError, match=reason):
            asked(**changes)


def test_every_stage_leaves_sound_figures(project):
    for name in ALL:
        for training in (metrics(project, f"pretrain_lm-{name}"), metrics(project, f"finetune_lm-{name}")):
            measure = training["measures"][0]["name"]
            assert measure == ("loss" if name == "vectors" else "bits_per_byte")
            assert training["after"][measure] < training["before"][measure]
    evaluation = metrics(project, "evaluate")
    read_frozen = [f"{name}/{way}" for name in (*ALL, "bidirectional") for way in ("probe", "with_tfidf")]
    single = [*ALL, *read_frozen, "tfidf"]
    assert set(evaluation["candidates"]) == {*single, "bidirectional", "blend"}
    assert evaluation["shipped"] in evaluation["candidates"]
    assert evaluation["version"] == VERSION
    scores = evaluation["scores"]
    assert scores == evaluation["candidates"][evaluation["shipped"]]["scores"]
    for candidate in evaluation["candidates"].values():
        assert candidate["parts"].keys() <= set(single)
        assert sum(candidate["parts"].values()) == pytest.approx(1)
    error = scores["error"]
    assert scores["accuracy"]["value"] + error["value"] == pytest.approx(1)
    assert error["low"] <= error["value"] <= error["high"]
    # Topics are told by their words: better than the majority class, or nothing was learnt.
    assert error["value"] < evaluation["baselines"]["majority_class"]["error"] - 0.2
    assert sum(metrics(project, "prepare-target")["skipped"].values()) == 1  # the row without text
    assert "Language models" in (project / "reports/summary.md").read_text(encoding="utf-8")


def test_a_second_repro_does_nothing(project):
    assert "Data and pipelines are up to date" in command(project, "dvc", "repro").stdout


def test_dvc_shows_metrics_and_plots(project):
    done = command(project, "dvc", "metrics", "show", "--json")
    (files,) = (each["data"] for each in json.loads(done.stdout).values())
    assert files.keys() == {"reports/headline.json"}
    headline = files["reports/headline.json"]["data"]
    assert headline["test_error"] == pytest.approx(
        metrics(project, "evaluate")["scores"]["error"]["value"], abs=1e-4
    )
    assert len(headline) <= 16
    assert "failed" not in done.stderr
    page = command(project, "dvc", "plots", "show", "--json").stdout
    assert "finetune_lm-ulmfit.csv" in page
    assert "confusion.csv" in page


def test_the_execution_is_one_parent_run_with_a_finished_child_for_each_stage(project):
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{project}/.headstart/mlflow.db")
    (experiment,) = [e for e in client.search_experiments() if e.name == "headstart"]
    runs = client.search_runs([experiment.experiment_id], max_results=1000)
    parents = [run for run in runs if "mlflow.parentRunId" not in run.data.tags]
    assert {run.info.status for run in runs} == {"FINISHED"}
    first = min(parents, key=lambda run: run.info.start_time)
    children = [run for run in runs if run.data.tags.get("mlflow.parentRunId") == first.info.run_id]
    # 2 prepare, 2 tokenizers, 4 encode, 3 trainings and features of 3, leaks, evaluate, 5 sweeps, report
    assert len(children) == 2 + 2 + 4 + 4 * 3 + 8
    (pretraining,) = [run for run in children if run.info.run_name == "pretrain_lm@ulmfit"]
    history = client.get_metric_history(pretraining.info.run_id, "train/loss")
    steps = [metric.step for metric in history]
    assert steps == sorted(set(steps))
    assert steps[-1] == metrics(project, "pretrain_lm-ulmfit")["steps"]
    key = pretraining.data.tags["headstart.key"]
    assert (project / ".headstart/runs" / key / "curve.jsonl").exists()
    lock = LockFile(project).records()  # what DVC kept is what these runs made
    for name in (
        "recipes",
        "choose_tokens",
        "choose_features",
    ):  # they only write files for DVC, and have no run
        del lock[name]
    assert {run.info.run_name: run.data.tags["headstart.record"] for run in children} == lock
    assert client.get_model_version_by_alias("headstart-classifier", "current").version


def test_the_label_curve_holds_every_point_and_the_mlflow_run_draws_it(project):
    from mlflow import MlflowClient

    figures = metrics(project, "sample_efficiency")
    assert figures["arms"] == ARMS
    assert figures["failed"] == {}
    for arm in ARMS:
        assert figures["curve"][arm].keys() == {"30", "120"}
        assert figures["curve"][arm]["30"]["num_seeds"] == 2
        assert figures["curve"][arm]["120"]["error"]["value"] < 0.5
    assert {arm: row.keys() for arm, row in figures["labels_needed"].items()} == {
        arm: {*ARMS} - {arm} for arm in ARMS
    }
    assert figures["began_anew"] == {}  # finetune_classifier.restarts is 0
    # ulmfit is shared by its arm and bidirectional, and the arm of the target text has a model of its own.
    # The arm that is asked has one trial without examples, and one a seed with three.
    assert len(outcomes(project)) == 8 * 2 * 2 + 1 + 3
    asked = figures["in_context"]
    assert asked["curve"].keys() == {"ulmfit/in_context"}
    assert asked["curve"]["ulmfit/in_context"].keys() == {"0", "3"}
    assert asked["labels_needed"]["tfidf"]["ulmfit/in_context"]["0"]
    num_labels = metrics(project, "prepare-target")["splits"]["train"]["num_documents"]
    assert asked["left_out"] == {"ulmfit/in_context": {"9999": f"there are {num_labels} labels"}}
    assert asked["curve"]["ulmfit/in_context"]["0"]["num_seeds"] == 1  # as nothing is drawn
    drawn = (project / "reports/summary.md").read_text(encoding="utf-8")
    assert "\n### Without training\n" in drawn
    client = MlflowClient(f"sqlite:///{project}/.headstart/mlflow.db")
    everywhere = [experiment.experiment_id for experiment in client.search_experiments()]
    (stage,) = client.search_runs(everywhere, "tags.`headstart.stage` = 'sample_efficiency'")
    steps = [point.step for point in client.get_metric_history(stage.info.run_id, "error/ulmfit scratch")]
    assert steps == [30, 120]
    trials = client.search_runs(everywhere, f"tags.`mlflow.parentRunId` = '{stage.info.run_id}'")
    assert len(trials) == 36
    assert {run.info.status for run in trials} == {"FINISHED"}
    (scratch,) = [run for run in trials if run.info.run_name == "ulmfit scratch 120 labels, seed 1"]
    history = [point.step for point in client.get_metric_history(scratch.info.run_id, "train/loss")]
    assert len(history) > 2
    assert history == sorted(set(history))


def test_an_evaluation_loads_each_classifier_once(project, tmp_path, monkeypatch):
    """Also where it explains answers; here all are right, so two of these are explained."""
    from pipeline.stages import _candidates, evaluate

    loaded: list[str] = []
    load = _candidates.load_classifier

    def noted(folder):
        loaded.append(folder.name)
        return load(folder)

    monkeypatch.chdir(project)
    monkeypatch.setattr(_candidates, "load_classifier", noted)
    monkeypatch.setattr(evaluate.evaluation, "confident_errors", lambda *arguments: [0, 1])
    data, settings = project / "data", Project.load(project / "params.yaml").params
    quick = settings.evaluate.model_copy(update={"baseline_tfidf": False})
    evaluate.run(
        Project(settings.model_copy(update={"evaluate": quick})),
        tokens=data / "inputs",
        documents=data / "documents/target",
        classifiers=data / "classifiers",
        features=data / "features",
        target_lm=data / "target_lm",
        leaks=data / "leaks",
        out=tmp_path / "evaluation",
        classifier=tmp_path / "classifier",
    )
    assert loaded == ALL
    assert len(json.loads((tmp_path / "evaluation/errors.json").read_text(encoding="utf-8"))) == 2


def test_a_longer_label_curve_trains_only_what_is_new(project):
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{project}/.headstart/mlflow.db")
    everywhere = [experiment.experiment_id for experiment in client.search_experiments()]
    trials = client.search_runs(everywhere, "tags.`headstart.sweep` = 'sample_efficiency'")
    # As when the stage is killed between the end of a trial and saying so.
    client.set_terminated(trials[0].info.run_id, "FAILED")
    before = outcomes(project)
    wanted = "sample_efficiency: {labels: [2, 30, 60, 120, 9999]}\n"
    (project / "more.yaml").write_text(wanted, encoding="utf-8")
    command(project, "headstart", "use", "more.yaml")
    summary = project / "reports/summary.md"
    assert summary.read_text(encoding="utf-8").startswith("**Stale: sample_efficiency.labels changed since")
    command(project, "dvc", "repro", "--single-item", "sample_efficiency")
    after = outcomes(project)
    assert {path: after[path] for path in before} == before
    assert len(after) == len(before) + 8 * 2
    curve = metrics(project, "sample_efficiency")
    assert curve["curve"]["tfidf"].keys() == {"30", "60", "120"}
    num_labels = metrics(project, "prepare-target")["splits"]["train"]["num_documents"]
    assert curve["left_out"] == {"9999": f"there are {num_labels}", "2": "there are 3 classes"}
    trials = client.search_runs(everywhere, "tags.`headstart.sweep` = 'sample_efficiency'")
    assert len(trials) == len(after)
    assert {run.info.status for run in trials} == {"FINISHED"}
    # That a stage has run stands from now on, as an undo of the settings would not undo it.
    assert summary.read_text(encoding="utf-8").startswith("**Stale: `sample_efficiency` has run since")
    command(project, "dvc", "repro")
    assert "Stale" not in summary.read_text(encoding="utf-8")
    lines = summary.read_text(encoding="utf-8").splitlines()
    assert any("9,999" in line and f"there are {num_labels}" in line for line in lines)


@pytest.mark.parametrize(
    ("overlay", "stage", "message"),
    [
        ("ablate: {seeds: [1], labels: 2}", "ablate", "ablate.labels is 2, fewer than the 3 classes"),
        ("ablate: {classifier: {epoch: 2}}", "ablate", "ablate.classifier.epoch`; did you mean `epochs`"),
        ("ablate: {pretrain_lm: {epoch: 2}}", "ablate", "ablate.pretrain_lm.epoch`; did you mean `epochs`"),
        ("trials: {gpus: 1.5}", "ablate", "`trials.gpus` is 1.5"),
        ("tune: {num_trials: 2, labels: 2}", "tune", "tune.labels is 2, fewer than the 3 classes"),
        ("tune: {num_trials: 2, search: grid}", "tune", "points, but tune.num_trials is 2"),
        ("tune: {overrides: {finetune_classifier: {epoch: 2}}}", "tune",
         "tune.overrides.finetune_classifier.epoch`; did you mean `epochs`"),
        ("tune: {space: {run.seed: {low: 1, high: 2}}}", "tune", "`run.seed`, which is no setting of ulmfit"),
        ("sample_efficiency: {seeds: []}", "sample_efficiency", "`sample_efficiency.seeds` is []"),
        ("sample_efficiency: {classifier: {epoch: 2}}", "sample_efficiency",
         "sample_efficiency.classifier.epoch`; did you mean `epochs`"),
        ("tune: {num_trials: 2, space: {finetune_classifier.optimizer.rl: {low: 0.1, high: 0.2}}}", "tune",
         "did you mean `finetune_classifier.optimizer.lr`"),
        ("tune: {space: {finetune_classifier.dropout: {low: 0.3, high: 0.3}}}", "tune",
         "the range from 0.3 to 0.3 is empty"),
    ],
)  # fmt: skip
def test_a_curve_or_search_that_cannot_be_is_refused_before_any_training(
    project, overlay, stage, message, monkeypatch, capsys
):
    """In this process, which saves loading everything anew for each case."""
    from ruamel.yaml import YAML

    settings = overlay_settings(read_yaml(project / "params.yaml"), YAML(typ="safe").load(overlay))
    YAML(typ="safe").dump(settings, project / "bad.yaml")
    before = outcomes(project)
    monkeypatch.chdir(project)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    words = command_of(project, stage)
    at = words.index("--recipe")  # by hand there is none; before DVC runs a stage, `recipes` has refused
    monkeypatch.setattr(sys, "argv", [*words[:at], *words[at + 2 :], "--params", "bad.yaml"])
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert message in told
    assert "Traceback" not in told
    assert outcomes(project) == before


def command_of(project: Path, stage: str) -> list[str]:
    """As dvc.yaml runs it."""
    words: list[str] = read_yaml(project / "dvc.yaml")["stages"][stage]["cmd"].split()
    return words


def test_predict_needs_the_exported_folder_alone(project, tmp_path):
    for name in ("ulmfit", "ulmfit_backward"):
        shutil.copytree(project / "data/classifiers" / name, tmp_path / name)
    shutil.copytree(project / "data/classifier", tmp_path / "shipped")
    rng = random.Random(5)
    texts = [sentence(rng, topic, 15) for topic in sorted(WORDS) for _ in range(5)]
    found = command(
        tmp_path,
        "headstart",
        "predict",
        "--model",
        "ulmfit",
        "--model",
        "ulmfit_backward",
        "--with-text",
        input="\n".join(texts),
    )
    of_shipped = command(
        tmp_path, "headstart", "predict", "--with-text", "--model", "shipped", input="\n".join(texts)
    ).stdout
    for said in (found.stdout, of_shipped):
        rows = [json.loads(line) for line in said.splitlines()]
        assert [row["text"] for row in rows] == texts
        assert all(sum(row["probabilities"].values()) == pytest.approx(1) for row in rows)
        right = sum(row["label"] == sorted(WORDS)[k // 5] for k, row in enumerate(rows))
        assert right > len(rows) / 2
    (tmp_path / "texts.txt").write_text("\n".join(texts), encoding="utf-8")
    from_file = command(
        tmp_path,
        "headstart",
        "predict",
        "--model",
        "ulmfit",
        "--model",
        "ulmfit_backward",
        "--with-text",
        "--file",
        "texts.txt",
    )
    assert from_file.stdout == found.stdout


def test_predict_refuses_an_altered_model_in_one_line(project, tmp_path):
    shutil.copytree(project / "data/classifiers/ulmfit", tmp_path / "model")
    file = tmp_path / "model/tensors.safetensors"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(bytes(data))
    done = command(tmp_path, "headstart", "predict", "--model", "model", "text", check=False)
    assert done.returncode == 2
    assert "was altered" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_failing_stage_overwrites_nothing(project):
    before = (project / "data/documents/target/documents.json").read_bytes()
    figures = metrics(project, "prepare-target")
    bad = project / "bad.yaml"
    shutil.copy(project / "params.yaml", bad)
    bad.write_text(bad.read_text(encoding="utf-8").replace("topic", "topics"), encoding="utf-8")
    done = command(
        project, "headstart", "prepare", "--corpus", "target", "--out", "data/documents/target",
        "--metrics", "reports/metrics/prepare-target.json", "--params", "bad.yaml", check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "topics" in done.stderr
    assert "Traceback" not in done.stderr
    assert (project / "data/documents/target/documents.json").read_bytes() == before
    assert metrics(project, "prepare-target") == figures
