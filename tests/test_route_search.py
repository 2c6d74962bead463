"""Searches and the ledger, as a user runs them in a project whose route has run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pipeline.project import headstarts
from pipeline.project.project import Project
from pipeline.settings.loader import read_yaml
from tests.checkout import held
from tests.route import (
    command,
    make_project,
    metrics,
    outcomes,
    wait_for_checkpoint,
)

pytestmark = [pytest.mark.slow, pytest.mark.long]


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Path:
    """A project in which the route has run with one head start."""
    few = "sample_efficiency: {arms: [ulmfit, tfidf], labels: [30], seeds: [1]}"
    folder = make_project(tmp_path_factory.mktemp("route"), few)
    command(folder, "dvc", "repro")
    return folder


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
    settings = Project.load(project / "params.yaml").params
    space: dict[str, Any] = dict.fromkeys(
        headstarts.space_of(settings.tune, Project(settings).head_starts["ulmfit"])
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
    settings = Project.load(project / "params.yaml").params
    space: dict[str, Any] = dict.fromkeys(
        headstarts.space_of(settings.tune, Project(settings).head_starts["ulmfit"])
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
    from pipeline.artifacts.links import tokens_at
    from pipeline.settings.arm import Use
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
        settings = Project.load(project / "params.yaml").params
    finally:
        (project / "params.yaml").write_bytes(before)
    figures = metrics(project, "tune")
    assert figures["labels"] == 30
    best = read_yaml(project / "data/search/best.yaml")
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
    data, head_start = project / "data", Project(settings).head_starts["ulmfit"]
    job = Jobs(
        settings.tune, head_start, partial(Project(settings).varied, "ulmfit"),
        settings.corpus.target.normalise, settings.run.seed,
        tokens=tokens_at(data / "inputs/ulmfit/target.json"), general_lm=data / "general_lm/ulmfit",
        target_lm=data / "target_lm/ulmfit", features=data / "features",
    ).make({})  # fmt: skip
    # As a point of the curve is trained.
    wanted = classifier_settings(head_start, Use.SCRATCH if start == "scratch" else Use.NETWORK)
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
    tricks = [
        trick.name for trick in TRICKS if trick.name != "features of another head start"
    ]  # it reads none
    assert [row["trick"] for row in rows] == tricks
    # With a factor of 1 there is nothing to switch off.
    unused = {row["trick"] for row in rows if row["failure"]}
    assert unused == {"discriminative rates"}
    for row in rows:
        if row["trick"] in unused:
            assert row["failure"] == "not measured: these settings do not use it"
            assert row["difference"] is None
        else:
            assert row["difference"] == pytest.approx(row["without"] - row["with_it"])
    by_trick = {row["trick"]: row for row in rows}
    # A trick that is switched off changes the training, whatever it is worth.
    assert by_trick["weight dropout"]["difference"] != 0
    assert by_trick["variable BPTT"]["difference"] != 0
    command(project, "headstart", "report")
    assert "What each trick is worth" in (project / "reports/index.html").read_text(encoding="utf-8")


def test_a_law_is_fitted_checked_and_asked_for_a_plan(project):
    refused = command(project, "headstart", "plan", "--hours", "1", "--cores", "2", check=False)
    assert refused.returncode == 2
    assert (
        "there is no scaling law here, as scaling.sizes was empty; run `headstart use scaling`"
        in refused.stderr
    )
    widths = {f"of_{width}": width for width in (8, 12, 16)}
    settings = {
        "headstart": "ulmfit",
        "sizes": {name: {"config": {"embedding_dim": width}} for name, width in widths.items()},
        "tokens": [8000, 16000, 32000],
        "check": {"config": {"embedding_dim": 24}, "tokens": 120000},
        "bootstrap_samples": 20,
    }
    (project / "scaling.yaml").write_text(json.dumps({"scaling": settings}), encoding="utf-8")
    command(project, "headstart", "use", "scaling.yaml")
    before = outcomes(project)
    command(project, "dvc", "repro", "--single-item", "scaling")
    made = outcomes(project).keys() - before.keys()
    assert len(made) == 3 * 3 + 1
    found = metrics(project, "scaling")
    assert [(run["size"], run["tokens"]) for run in found["runs"]] == [
        (size, tokens) for size in widths for tokens in (8000, 16000, 32000)
    ]
    for run in found["runs"]:
        more = [
            each for each in found["runs"] if each["size"] == run["size"] and each["tokens"] > run["tokens"]
        ]
        assert all(each["bits_per_byte"] < run["bits_per_byte"] for each in more)
    check = found["check"]
    assert check["times_the_compute"] >= 4
    assert check["expected"]["low"] <= check["expected"]["high"]
    assert check["run"]["bits_per_byte"] < min(run["bits_per_byte"] for run in found["runs"])
    planned = command(project, "headstart", "plan", "--hours", "0.1", "--cores", "2").stdout
    assert "ulmfit, 0.2 core hours" in planned
    refused = command(project, "headstart", "plan", "--hours", "1", "--gpus", "2", check=False)
    assert (
        "the speed of a GPU is not known; say what one reaches in training, with --teraflops"
        in refused.stderr
    )
    words = ["--hours", "1", "--gpus", "2", "--teraflops", "1e-3", "--price", "2.5"]
    asked = command(project, "headstart", "plan", *words).stdout
    assert all(figure in asked for figure in ("2 GPU hours", "1 billion FLOP", "5.00"))
    command(project, "headstart", "report")
    assert "What more compute would buy" in (project / "reports/index.html").read_text(encoding="utf-8")


def test_lr_find_draws_and_suggests(project):
    out = command(project, "headstart", "lr-find", "finetune_lm", "--steps", "60").stdout
    assert "suggested headstarts.ulmfit.finetune_lm.optimizer.lr" in out
    assert (project / "reports/lr_find/finetune_lm-ulmfit.png").stat().st_size > 5000
    rows = (project / "reports/lr_find/finetune_lm-ulmfit.csv").read_text(encoding="utf-8").splitlines()
    rates = [float(row.split(",")[0]) for row in rows[1:]]
    assert rates == sorted(rates)
