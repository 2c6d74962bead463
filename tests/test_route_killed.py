"""Trainings that are killed, forced or removed, in a project whose language models are trained."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.checkout import held
from tests.route import (
    LOG_STEPS,
    command,
    make_project,
    metrics,
    wait_for_checkpoint,
    without_times,
    write_corpora,
)

pytestmark = [pytest.mark.slow, pytest.mark.long]


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Path:
    """A project in which one head start has its language models."""
    folder = make_project(tmp_path_factory.mktemp("route"))
    command(folder, "dvc", "repro", "finetune_lm@ulmfit")
    return folder


def assert_it_went_on(run: Path, killed_at: float) -> None:
    """From a checkpoint: what begins anew writes all records anew."""
    records = [json.loads(line) for line in (run / "curve.jsonl").read_text().splitlines()]
    steps = [record["step"] for record in records]
    assert steps == sorted(set(steps))
    times = {record["step"]: record["time_ms"] / 1000 for record in records}
    assert times[LOG_STEPS] < killed_at < times[steps[-1]]


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
