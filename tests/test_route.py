"""The whole route, as a user runs it: real DVC, real SQLite tracking, small corpora made here."""

from __future__ import annotations

import csv
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from pipeline.__main__ import main
from pipeline.machine.cost import Cost
from pipeline.project import headstarts, params
from pipeline.project.lock_file import LockFile
from tests.checkout import copy_checkout, held

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parent.parent
WORDS = {
    "sea": ["wave", "tide", "harbour", "sail", "anchor", "gull", "reef", "storm", "coast", "ship"],
    "kitchen": ["pan", "oven", "salt", "dough", "broth", "spoon", "onion", "pepper", "flour", "plate"],
    "garden": ["seed", "soil", "rose", "hedge", "spade", "root", "leaf", "bloom", "lawn", "bee"],
}
COMMON = ["the", "a", "of", "and", "near", "with", "old", "small", "bright", "under", "over", "quiet"]

LOG_STEPS = 5
ALL = ["ulmfit", "ulmfit_backward", "vectors"]
ARMS = ["ulmfit", "ulmfit:general_lm", "ulmfit:target_lm_alone", "ulmfit:scratch", "bidirectional",
        "vectors:probe", "tfidf"]  # fmt: skip
TINY = """
run: {workers: 0, log_steps: 5, checkpoint_minutes: 0.001, headstarts: [ulmfit]}
corpus:
  general:
    source:
      {kind: files, format: ndjson, train: [in/general.ndjson], validation: [], test: [], unlabelled: [],
       text_column: text, label_column: null, label_names: null, encoding_errors: refuse}
    split: {validation: 0.1, test: 0.0}
  target:
    source:
      {kind: files, format: csv, train: [in/target.csv], validation: [], test: [], unlabelled: [],
       text_column: body, label_column: topic, label_names: null, encoding_errors: refuse}
    split: {validation: 0.1, test: 0.2}
tokenizers:
  pieces: {vocab_size: 340}
headstarts:
  ulmfit: {config: {embedding_dim: 16, hidden_dim: 24}}
  ulmfit_backward: {config: {embedding_dim: 16, hidden_dim: 24}}
  vectors: {config: {embedding_dim: 16}, pretrain_lm: {epochs: 1.0}, finetune_lm: {epochs: 1.0}}
pretrain_lm: {epochs: 2.0, batch_rows: 8, bptt: 20}
finetune_lm: {epochs: 2.0, batch_rows: 8, bptt: 20}
finetune_classifier:
  {epochs: 20.0, batch_rows: 16, epochs_per_unfreezing: 0.5, dropout: 0.1, optimizer: {lr: 0.02}}
evaluate: {bootstrap_samples: 50, confident_errors: 2}
sample_efficiency:
  arms:
    [ulmfit, "ulmfit:general_lm", "ulmfit:target_lm_alone", "ulmfit:scratch", bidirectional, "vectors:probe",
     tfidf]
  labels: [30, 120]
  seeds: [1, 2]
  min_steps: 20
  evaluations: 4
  classifier: {batch_rows: 16}
  bootstrap_samples: 50
tune: {overrides: {finetune_classifier: {max_labels: 120}}}
"""


def sentence(rng: random.Random, topic: str, num_words: int) -> str:
    return " ".join(rng.choice(WORDS[topic] if rng.random() < 0.4 else COMMON) for _ in range(num_words))


def write_corpora(folder: Path, seed: int, num_target: int = 400) -> None:
    folder.mkdir(exist_ok=True)
    rng = random.Random(seed)
    topics = sorted(WORDS)
    with (folder / "general.ndjson").open("w", encoding="utf-8") as file:
        for _ in range(600):
            file.write(json.dumps({"text": sentence(rng, rng.choice(topics), 20).capitalize() + "."}) + "\n")
    with (folder / "target.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["body", "topic"])
        for row in range(num_target):
            topic = topics[row % 3]
            writer.writerow([sentence(rng, topic, 15), topic])
        writer.writerow(["", "sea"])  # to be counted as skipped


def command(folder: Path, *words: str, check: bool = True, **keywords) -> subprocess.CompletedProcess[str]:
    binaries = Path(sys.executable).parent
    environment = {k: v for k, v in os.environ.items() if k not in ("MLFLOW_TRACKING_URI", "RAY_ADDRESS")}
    environment |= {
        "PATH": f"{binaries}:{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
        "DVC_NO_ANALYTICS": "1",
    }
    done = subprocess.run(
        [str(binaries / words[0]), *words[1:]],
        cwd=folder,
        env=environment,
        text=True,
        capture_output=True,
        timeout=1800,
        **keywords,
    )
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Path:
    """A copy of this checkout in which the whole route has run, in both directions and with word vectors."""
    folder = tmp_path_factory.mktemp("route")
    copy_checkout(folder)
    write_corpora(folder / "in", seed=1)
    (folder / "tiny.yaml").write_text(TINY + "\n", encoding="utf-8")
    command(folder, "headstart", "use", "tiny.yaml")
    (folder / "all.yaml").write_text(f"run: {{headstarts: [{', '.join(ALL)}]}}\n", encoding="utf-8")
    command(folder, "headstart", "use", "all.yaml")
    command(folder, "dvc", "repro")
    return folder


def metrics(folder: Path, name: str) -> dict:
    return json.loads((folder / "reports/metrics" / f"{name}.json").read_text(encoding="utf-8"))


def test_every_stage_leaves_sound_figures(project):
    for name in ALL:
        for training in (metrics(project, f"pretrain_lm-{name}"), metrics(project, f"finetune_lm-{name}")):
            measure = training["measures"][0]["name"]
            assert measure == ("loss" if name == "vectors" else "bits_per_byte")
            assert training["after"][measure] < training["before"][measure]
    evaluation = metrics(project, "evaluate")
    single = [*ALL, *(f"{name}:probe" for name in ALL), "tfidf"]
    assert set(evaluation["candidates"]) == {*single, "bidirectional", "blend"}
    assert evaluation["shipped"] in evaluation["candidates"]
    assert evaluation["error"] == evaluation["candidates"][evaluation["shipped"]]["error"]
    for candidate in evaluation["candidates"].values():
        assert candidate["parts"].keys() <= set(single)
        assert sum(candidate["parts"].values()) == pytest.approx(1)
    assert evaluation["accuracy"] + evaluation["error"] == pytest.approx(1)
    assert evaluation["error_low"] <= evaluation["error"] <= evaluation["error_high"]
    # Topics are told by their words: better than the majority class, or nothing was learnt.
    assert evaluation["error"] < evaluation["baselines"]["majority_class"]["error"] - 0.2
    assert sum(metrics(project, "prepare-target")["skipped"].values()) == 1  # the row without text
    assert "Language models" in (project / "reports/summary.md").read_text(encoding="utf-8")


def test_a_second_repro_does_nothing(project):
    assert "Data and pipelines are up to date" in command(project, "dvc", "repro").stdout


def test_dvc_shows_metrics_and_plots(project):
    shown = json.loads(command(project, "dvc", "metrics", "show", "--json").stdout)
    files = next(iter(shown.values()))["data"]
    assert (
        files["reports/metrics/evaluate.json"]["data"]["accuracy"] == metrics(project, "evaluate")["accuracy"]
    )
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
    # 2 prepare, 2 tokenizers, 4 encode, 3 trainings and features of 3, leaks, evaluate, 3 sweeps, report
    assert len(children) == 2 + 2 + 4 + 4 * 3 + 6
    (pretraining,) = [run for run in children if run.info.run_name == "pretrain_lm@ulmfit"]
    history = client.get_metric_history(pretraining.info.run_id, "train/loss")
    steps = [metric.step for metric in history]
    assert steps == sorted(set(steps))
    assert steps[-1] == metrics(project, "pretrain_lm-ulmfit")["steps"]
    key = pretraining.data.tags["headstart.key"]
    assert (project / ".headstart/runs" / key / "curve.jsonl").exists()
    lock = LockFile(project).recipes()  # what DVC kept is what these runs made
    for name in ("fingerprint", "choose_tokens"):  # they only write files for DVC, and have no run
        del lock[name]
    assert {run.info.run_name: run.data.tags["headstart.recipe"] for run in children} == lock
    assert client.get_model_version_by_alias("headstart-classifier", "current").version


def outcomes(project: Path) -> dict[Path, float]:
    """When each trial's outcome was written."""
    found = (project / ".headstart/runs").glob("*/outcome/step-*/state.json")
    return {path: path.stat().st_mtime for path in found}


def test_the_label_curve_holds_every_point_and_the_mlflow_run_draws_it(project):
    from mlflow import MlflowClient

    figures = metrics(project, "sample_efficiency")
    assert figures["arms"] == ARMS
    assert figures["failed"] == {}
    for arm in ARMS:
        assert figures["curve"][arm].keys() == {"30", "120"}
        assert figures["curve"][arm]["30"]["num_seeds"] == 2
        assert figures["curve"][arm]["120"]["error"] < 0.5
    assert figures["labels_needed"].keys() == set(ARMS[1:])
    # ulmfit is shared by its arm and bidirectional, and the arm of the target text has a model of its own.
    assert len(outcomes(project)) == 7 * 2 * 2 + 1
    client = MlflowClient(f"sqlite:///{project}/.headstart/mlflow.db")
    everywhere = [experiment.experiment_id for experiment in client.search_experiments()]
    (stage,) = client.search_runs(everywhere, "tags.`headstart.stage` = 'sample_efficiency'")
    steps = [point.step for point in client.get_metric_history(stage.info.run_id, "error/ulmfit:scratch")]
    assert steps == [30, 120]
    trials = client.search_runs(everywhere, f"tags.`mlflow.parentRunId` = '{stage.info.run_id}'")
    assert len(trials) == 29
    assert {run.info.status for run in trials} == {"FINISHED"}
    (scratch,) = [run for run in trials if run.info.run_name == "ulmfit scratch 120 labels, seed 1"]
    history = [point.step for point in client.get_metric_history(scratch.info.run_id, "train/loss")]
    assert len(history) > 2
    assert history == sorted(set(history))


def test_an_evaluation_loads_each_classifier_once(project, tmp_path, monkeypatch):
    """Also where it explains answers; here all are right, so two of these are explained."""
    from pipeline.stages import evaluate

    loaded: list[str] = []
    load = evaluate.load_classifier

    def noted(folder):
        loaded.append(folder.name)
        return load(folder)

    monkeypatch.chdir(project)
    monkeypatch.setattr(evaluate, "load_classifier", noted)
    monkeypatch.setattr(evaluate.evaluation, "confident_errors", lambda *arguments: [0, 1])
    data, settings = project / "data", params.load(project / "params.yaml")
    quick = settings.evaluate.model_copy(update={"baseline_tfidf": False})
    evaluate.run(
        settings.model_copy(update={"evaluate": quick}),
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
    (project / "more.yaml").write_text("sample_efficiency: {labels: [30, 60, 120]}\n", encoding="utf-8")
    command(project, "headstart", "use", "more.yaml")
    command(project, "dvc", "repro", "--single-item", "sample_efficiency")
    after = outcomes(project)
    assert {path: after[path] for path in before} == before
    assert len(after) == len(before) + 7 * 2
    assert metrics(project, "sample_efficiency")["curve"]["tfidf"].keys() == {"30", "60", "120"}
    trials = client.search_runs(everywhere, "tags.`headstart.sweep` = 'sample_efficiency'")
    assert len(trials) == len(after)
    assert {run.info.status for run in trials} == {"FINISHED"}
    command(project, "dvc", "repro")


@pytest.mark.parametrize(
    ("overlay", "stage", "message"),
    [
        ("sample_efficiency: {labels: [30, 9999]}", "sample_efficiency", "sample_efficiency.labels is 9,999"),
        ("sample_efficiency: {labels: [2]}", "sample_efficiency",
         "sample_efficiency.labels is 2, fewer than the 3 classes"),
        ("sample_efficiency: {labels: [3], arms: ['ulmfit:target_lm_alone', 'ulmfit:scratch']}",
         "sample_efficiency", "sample_efficiency.labels is 3: 2 remain to train on beside those held out"),
        ("ablate: {seeds: [1], labels: 9999}", "ablate", "ablate.labels is 9,999"),
        ("ablate: {classifier: {epoch: 2}}", "ablate", "ablate.classifier.epoch`; did you mean `epochs`"),
        ("ablate: {pretrain_lm: {epoch: 2}}", "ablate", "ablate.pretrain_lm.epoch`; did you mean `epochs`"),
        ("trials: {gpus: 1.5}", "ablate", "`trials.gpus` is 1.5"),
        ("tune: {num_trials: 2, labels: 9999}", "tune", "tune.labels is 9,999"),
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

    settings = params.overlay(params.read_yaml(project / "params.yaml"), YAML(typ="safe").load(overlay))
    YAML(typ="safe").dump(settings, project / "bad.yaml")
    before = outcomes(project)
    monkeypatch.chdir(project)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setattr(sys, "argv", [*command_of(project, stage), "--params", "bad.yaml"])
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
    words: list[str] = params.read_yaml(project / "dvc.yaml")["stages"][stage]["cmd"].split()
    return words


@pytest.mark.ray
def test_a_search_that_is_killed_goes_on_with_what_is_unfinished(project, tmp_path):
    from mlflow import MlflowClient

    (project / "search.yaml").write_text(
        "tune:\n  {num_trials: 4, grace: null, overrides:\n"
        "    {finetune_classifier: {max_labels: 120, epochs: 40.0, batch_rows: 16}}}\n",
        encoding="utf-8",
    )
    command(project, "headstart", "use", "search.yaml")
    known = set((project / ".headstart/runs").iterdir())
    binaries = Path(sys.executable).parent
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PATH": f"{binaries}:{os.environ['PATH']}"}
    process = subprocess.Popen(
        [str(binaries / "dvc"), "repro", "--single-item", "tune"],
        cwd=project, env=held(environment, "checkpoint", tmp_path / "hold"), start_new_session=True,
    )  # fmt: skip
    wait_for_checkpoint(project, known, process)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert not (project / "data/search/best.yaml").exists()
    command(project, "dvc", "repro", "--single-item", "tune")
    figures = metrics(project, "tune")
    assert figures["states"] == {"finished": 4, "stopped early": 0, "failed": 0}
    best = min(figures["trials"], key=lambda trial: trial["value"])
    assert figures["best"]["value"] == best["value"]
    shown = command(project, "headstart", "use", "--dry-run", "data/search/best.yaml").stdout
    assert "finetune_classifier.optimizer.lr" in shown
    client = MlflowClient(f"sqlite:///{project}/.headstart/mlflow.db")
    everywhere = [experiment.experiment_id for experiment in client.search_experiments()]
    trials = client.search_runs(everywhere, "tags.`headstart.sweep` = 'tune'")
    ended = [run for run in trials if run.info.status == "FINISHED"]
    assert len(ended) == 4
    for run in ended:
        steps = [point.step for point in client.get_metric_history(run.info.run_id, "validation/accuracy")]
        assert steps == sorted(set(steps))
        assert steps[-1] == 100


@pytest.mark.ray
def test_a_trial_that_fails_is_told_and_the_rest_goes_on_and_the_best_is_taken_over(project):
    from mlflow import MlflowClient

    before = (project / "params.yaml").read_bytes()
    settings = params.load(project / "params.yaml")
    space: dict[str, Any] = dict.fromkeys(
        headstarts.space_of(settings.tune, headstarts.resolve(settings, "ulmfit"))
    )
    space["finetune_lm.optimizer.lr"] = {"choices": [0.001, 1e30]}
    (project / "search.yaml").write_text(
        json.dumps({
            "tune": {"stage": "finetune_lm", "search": "grid", "num_trials": 2, "space": space,
                     "overrides": {"finetune_lm": {"epochs": 1.0}}},
            "finetune_lm": {"optimizer": {"clip_norm": None}},
        }),
        encoding="utf-8",
    )  # fmt: skip
    try:
        command(project, "headstart", "use", "search.yaml")
        command(project, "headstart", "tune")
        figures = metrics(project, "tune")
        command(project, "headstart", "report")
        page = (project / "reports/index.html").read_text(encoding="utf-8")
        known = set((project / ".headstart/runs").iterdir())
        command(project, "headstart", "use", "data/search/best.yaml")
        command(project, "headstart", "tune")
        again = metrics(project, "tune")
        new = set((project / ".headstart/runs").iterdir()) - known
    finally:
        (project / "params.yaml").write_bytes(before)
    assert figures["states"] == {"finished": 1, "stopped early": 0, "failed": 1}
    assert figures["best"]["settings"] == {"finetune_lm.optimizer.lr": 0.001}
    (failed,) = [trial for trial in figures["trials"] if trial["failure"]]
    assert failed["value"] is None
    assert "optimizer.lr" in failed["failure"]
    assert "Trials that failed" in page
    client = MlflowClient(f"sqlite:///{project}/.headstart/mlflow.db")
    everywhere = [experiment.experiment_id for experiment in client.search_experiments()]
    told = client.search_runs(everywhere, "tags.`headstart.sweep` = 'tune' and attributes.status = 'FAILED'")
    assert failed["failure"] in [run.data.tags["headstart.error"] for run in told]
    # Its best settings are among those that it searched: there is nothing to try again.
    assert again["best"] == figures["best"]
    assert not [folder for folder in new if (folder / "checkpoints").exists()]


@pytest.mark.ray
@pytest.mark.long
def test_a_trial_may_be_a_ray_train_job_and_gives_back_what_it_held(project):
    """Were a worker's place not given back, the next trial would wait for it, and fail."""
    before = (project / "params.yaml").read_bytes()
    settings = params.load(project / "params.yaml")
    space: dict[str, Any] = dict.fromkeys(
        headstarts.space_of(settings.tune, headstarts.resolve(settings, "ulmfit"))
    )
    space["finetune_lm.optimizer.lr"] = {"choices": [1e30, 0.1, 0.003, 0.001]}
    (project / "search.yaml").write_text(
        json.dumps({
            "tune": {"stage": "finetune_lm", "search": "grid", "num_trials": 4, "workers": 2,
                     "grace": 0.25, "space": space,
                     "overrides": {"finetune_lm": {"epochs": 2.0, "evaluations_per_epoch": 4}}},
            "finetune_lm": {"optimizer": {"clip_norm": None}},
        }),
        encoding="utf-8",
    )  # fmt: skip
    try:
        command(project, "headstart", "use", "search.yaml")
        command(project, "headstart", "tune")
        figures = metrics(project, "tune")
    finally:
        (project / "params.yaml").write_bytes(before)
    trials = {trial["settings"]["finetune_lm.optimizer.lr"]: trial for trial in figures["trials"]}
    assert trials[1e30]["state"] == "failed"
    assert "the training loss is nan" in trials[1e30]["failure"]
    assert trials[0.1]["state"] == "finished"
    # After a quarter they are a tenth of a bit behind it, and so stopped.
    assert trials[0.003]["state"] == "stopped early"
    assert trials[0.001]["state"] == "stopped early"


@pytest.mark.ray
@pytest.mark.parametrize(("start", "section"), [("target_lm", "few_labels"), ("scratch", "scratch")])
def test_a_search_for_the_label_curve_finds_settings_of_its_arms(project, start, section, monkeypatch):
    from pipeline.stages._points import classifier_settings
    from pipeline.stages._search_jobs import Jobs
    from pipeline.training.classifier import ClassifierJob

    (project / "search.yaml").write_text(
        f"finetune_classifier: {{start: {start}}}\n"
        "headstarts: {ulmfit: {few_labels: {dropout: 0.7}, scratch: {optimizer: {lr: 0.017}}}}\n"
        "tune: {num_trials: 2, labels: 30, search: random}\n",
        encoding="utf-8",
    )
    before = (project / "params.yaml").read_bytes()
    try:
        command(project, "headstart", "use", "search.yaml")
        command(project, "headstart", "tune")
        settings = params.load(project / "params.yaml")
    finally:
        (project / "params.yaml").write_bytes(before)
    figures = metrics(project, "tune")
    assert figures["labels"] == 30
    best = params.read_yaml(project / "data/search/best.yaml")
    assert best.keys() == {"headstarts"}
    assert best["headstarts"].keys() == {"ulmfit"}
    assert best["headstarts"]["ulmfit"].keys() == {"config", section}
    found = figures["best"]["settings"]
    assert best["headstarts"]["ulmfit"][section] == {
        "dropout": found["finetune_classifier.dropout"],
        "optimizer": {
            "lr": found["finetune_classifier.optimizer.lr"],
            "discriminative_factor": found["finetune_classifier.optimizer.discriminative_factor"],
        },
        "schedule": {
            "cut_frac": found["finetune_classifier.schedule.cut_frac"],
            "ratio": found["finetune_classifier.schedule.ratio"],
        },
    }
    monkeypatch.chdir(project)
    data = project / "data"
    job = Jobs(settings, data / "inputs", data / "general_lm", data / "target_lm").make({})
    # As a point of the curve is trained.
    wanted = classifier_settings(headstarts.resolve(settings, "ulmfit"), start)
    assert isinstance(job, ClassifierJob)
    assert job.settings.model_copy(update={"start": wanted.start}) == wanted
    # The validation documents of the corpus judge, of which there are more than labels held out.
    curve = [trial["value"] for trial in figures["trials"]]
    num_validation = metrics(project, "prepare-target")["splits"]["validation"]["num_documents"]
    assert all((value * num_validation) == pytest.approx(round(value * num_validation)) for value in curve)


def test_the_ledger_holds_each_trick_and_the_report_shows_it(project):
    from pipeline.stages._ablations import TRICKS

    assert metrics(project, "ablate")["num_trials"] == 0  # nobody asked for it in params.yaml
    assert "What each trick is worth" not in (project / "reports/index.html").read_text(encoding="utf-8")

    (project / "ledger.yaml").write_text(
        "ablate: {seeds: [1], labels: 30, pretrain_lm: {epochs: 0.3},\n"
        "  classifier: {optimizer: {discriminative_factor: 1.0}}}\n",
        encoding="utf-8",
    )
    command(project, "headstart", "use", "ledger.yaml")
    command(project, "headstart", "ablate")  # with the flags that dvc.yaml has
    rows = metrics(project, "ablate")["rows"]
    assert [row["trick"] for row in rows] == [trick.name for trick in TRICKS]
    # With a factor of 1 there is nothing to switch off.
    unused = {row["trick"] for row in rows if row["failure"]}
    assert unused == {"discriminative rates"}
    for row in rows:
        if row["trick"] in unused:
            assert row["failure"] == "not measured: these settings do not use it"
            assert row["difference"] is None
        else:
            assert row["difference"] == pytest.approx(row["without"] - row["with"])
    by_trick = {row["trick"]: row for row in rows}
    # A trick that is switched off changes the training, whatever it is worth.
    assert by_trick["weight dropout"]["difference"] != 0
    assert by_trick["variable BPTT"]["difference"] != 0
    command(project, "headstart", "report")
    assert "What each trick is worth" in (project / "reports/index.html").read_text(encoding="utf-8")


def wait_for_checkpoint(project: Path, known: set[Path], process: subprocess.Popen[bytes]) -> Path:
    """The folder of a new run, once it has a checkpoint behind the first records of its curve."""
    while True:
        for path in list_of_new_checkpoints(project, known):
            if int(path.name.removeprefix("step-").partition(".")[0]) > LOG_STEPS:  # step-<step>.<lease>
                return path.parent.parent
        assert process.poll() is None, "the training ended before it was to be killed"
        time.sleep(0.02)


def assert_it_went_on(run: Path, killed_at: float) -> None:
    """From a checkpoint: what begins anew writes all records anew."""
    records = [json.loads(line) for line in (run / "curve.jsonl").read_text().splitlines()]
    steps = [record["step"] for record in records]
    assert steps == sorted(set(steps))
    times = {record["step"]: record["time_ms"] / 1000 for record in records}
    assert times[LOG_STEPS] < killed_at < times[steps[-1]]


def without_times(figures: dict) -> dict:
    return {name: value for name, value in figures.items() if name not in Cost().spent()}


def list_of_new_checkpoints(project: Path, known: set[Path]) -> list[Path]:
    new = set((project / ".headstart/runs").iterdir()) - known
    return [path for run in new for path in run.glob("checkpoints/step-*")]


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
        input="\n".join(texts),
    )
    of_shipped = command(
        tmp_path, "headstart", "predict", "--model", "shipped", input="\n".join(texts)
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


def test_lr_find_draws_and_suggests(project):
    out = command(project, "headstart", "lr-find", "finetune_lm", "--steps", "60").stdout
    assert "suggested headstarts.ulmfit.finetune_lm.optimizer.lr" in out
    assert (project / "reports/lr_find/finetune_lm-ulmfit.png").stat().st_size > 5000
    rows = (project / "reports/lr_find/finetune_lm-ulmfit.csv").read_text(encoding="utf-8").splitlines()
    rates = [float(row.split(",")[0]) for row in rows[1:]]
    assert rates == sorted(rates)


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


def test_killed_and_started_again_a_training_ends_with_the_same_weights(project, tmp_path):
    def pretrain(out: str) -> list[str]:
        return [
            str(Path(sys.executable).parent / "headstart"), "pretrain_lm", "--tokens",
            "data/tokens/general/pieces", "--headstart", "ulmfit", "--out", out, "--metrics",
            f"{out}.json", "--curve", f"{out}.csv", "--params", "long.yaml",
        ]  # fmt: skip

    settings = (project / "params.yaml").read_text(encoding="utf-8")
    (project / "long.yaml").write_text(
        settings.replace("seed: 42", "seed: 43").replace("epochs: 2.0", "epochs: 6.0")
    )
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    known = set((project / ".headstart/runs").iterdir())
    process = subprocess.Popen(
        pretrain("out/killed"), cwd=project, start_new_session=True,
        env=held(environment, "checkpoint", tmp_path / "hold"),
    )  # fmt: skip
    run = wait_for_checkpoint(project, known, process)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    killed_at = time.time()
    assert not (project / "out/killed").exists()
    subprocess.run(pretrain("out/killed"), cwd=project, env=environment, check=True)
    assert_it_went_on(run, killed_at)
    shutil.rmtree(run)
    undisturbed = subprocess.Popen(
        pretrain("out/undisturbed"), cwd=project, env=held(environment, "checkpoint", tmp_path / "hold")
    )
    while not (run / "curve.jsonl").exists():
        assert undisturbed.poll() is None
        time.sleep(0.02)
    beside = subprocess.run(
        pretrain("out/beside"), cwd=project, env=environment, capture_output=True, text=True
    )
    assert beside.returncode == 2
    assert f"is being trained by process {undisturbed.pid} of" in beside.stderr
    assert "Traceback" not in beside.stderr
    assert not (project / "out/beside").exists()
    (tmp_path / "hold").unlink()
    assert undisturbed.wait() == 0
    weights = [
        (project / "out" / name / "tensors.safetensors").read_bytes() for name in ("killed", "undisturbed")
    ]
    assert weights[0] == weights[1]
    figures = [
        without_times(json.loads((project / "out" / f"{name}.json").read_text()))
        for name in ("killed", "undisturbed")
    ]
    assert figures[0] == figures[1]
    assert [path.name for path in (run / "lease").iterdir() if path.suffix == ".beat"] == []


@dataclass(frozen=True)
class Followed:
    said: str
    below: list[psutil.Process]  # of the dvc that was killed
    run: Path  # of the training
    killed_at: float


@pytest.fixture(scope="module")
def followed(project, tmp_path_factory) -> Followed:
    """`dvc repro` alone was killed by `kill -9`, which leaves its stage at work; then it was typed again."""
    overlay = project / "orphan.yaml"
    overlay.write_text("run: {seed: 44}\npretrain_lm: {epochs: 8.0}\n", encoding="utf-8")
    command(project, "headstart", "use", "orphan.yaml")
    stage = "pretrain_lm@ulmfit"
    command(project, "dvc", "repro", "choose_tokens")  # the seed is of those before it, too
    known = set((project / ".headstart/runs").iterdir())
    binaries = Path(sys.executable).parent
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PATH": f"{binaries}:{os.environ['PATH']}"}
    dvc = subprocess.Popen(
        [str(binaries / "dvc"), "repro", "--single-item", stage], cwd=project, start_new_session=True,
        env=held(environment, "checkpoint", tmp_path_factory.mktemp("held") / "hold"),
    )  # fmt: skip
    run = wait_for_checkpoint(project, known, dvc)
    below = psutil.Process(dvc.pid).children(recursive=True)
    dvc.kill()
    dvc.wait()
    assert any(process.is_running() for process in below)
    killed_at = time.time()
    again = command(project, "dvc", "repro", "--single-item", stage)
    return Followed(again.stdout + again.stderr, below, run, killed_at)


def test_a_stage_whose_dvc_was_killed_is_ended_and_followed(project, followed):
    from mlflow import MlflowClient

    assert "whose parent is gone; ending it, taking over" in followed.said
    assert not [process for process in followed.below if process.is_running()]
    client = MlflowClient(f"sqlite:///{project}/.headstart/mlflow.db")
    everywhere = [experiment.experiment_id for experiment in client.search_experiments()]
    key = json.loads((project / "data/general_lm/ulmfit/state.json").read_text())["key"]
    assert followed.run.name == key
    assert_it_went_on(followed.run, followed.killed_at)
    (run,) = client.search_runs(everywhere, f"tags.`headstart.key` = '{key}'")
    assert run.info.status == "FINISHED"
    steps = [point.step for point in client.get_metric_history(run.info.run_id, "train/loss")]
    assert steps == sorted(set(steps))
    assert steps[-1] == metrics(project, "pretrain_lm-ulmfit")["steps"]


def test_trained_again_by_force_and_undisturbed_it_ends_with_the_same_weights_and_figures(project, followed):
    weights = project / "data/general_lm/ulmfit/tensors.safetensors"
    curve = followed.run / "curve.jsonl"
    before, trained_at = weights.read_bytes(), curve.read_text()
    figures = metrics(project, "pretrain_lm-ulmfit")
    command(project, "dvc", "repro", "--force", "--single-item", "pretrain_lm@ulmfit")
    assert weights.read_bytes() == before
    assert without_times(metrics(project, "pretrain_lm-ulmfit")) == without_times(figures)
    assert curve.read_text() != trained_at  # other times of day


def test_a_new_target_changes_neither_the_tokenizer_of_general_text_nor_pretraining(project):
    """DVC cannot make a tokenizer depend on the corpora that it learns from alone: it is made anew, alike."""
    tokenizer = project / "data/tokenizers/pieces/tokenizer.model"
    before = tokenizer.read_bytes()
    write_corpora(project / "new", seed=2, num_target=300)
    overlay = project / "new.yaml"
    overlay.write_text("corpus: {target: {source: {train: [new/target.csv]}}}\n", encoding="utf-8")
    command(project, "headstart", "use", "new.yaml")
    out = command(project, "dvc", "repro", "finetune_lm@ulmfit").stdout
    assert tokenizer.read_bytes() == before
    for stage in ("encode@general-pieces", "pretrain_lm@ulmfit"):
        assert f"Stage '{stage}' didn't change, skipping" in out
    for stage in ("prepare@target", "encode@target-pieces", "finetune_lm@ulmfit"):
        assert f"Running stage '{stage}'" in out


def test_an_output_that_was_removed_is_exported_again_without_training(project, followed):
    """Its cached copies too, or DVC would take one of these."""
    weights = project / "data/general_lm/ulmfit/tensors.safetensors"
    curve = followed.run / "curve.jsonl"
    before, trained_at = weights.read_bytes(), curve.read_text()
    shutil.rmtree(weights.parent)
    shutil.rmtree(project / ".dvc/cache")
    command(project, "dvc", "repro", "--single-item", "pretrain_lm@ulmfit")
    assert weights.read_bytes() == before
    assert curve.read_text() == trained_at
