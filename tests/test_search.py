"""Searches, and which Ray their processes ask. `test_on_ray` kills trials of one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.distributed.cluster import Cluster
from pipeline.distributed.search import Objective, TrialResult, Values, search
from pipeline.distributed.session import Session
from pipeline.distributed.settings import Range, Trials, Tune
from pipeline.storage.run_place import RunPlace
from pipeline.sweeps.sweep import SearchRuns
from pipeline.tracking import RecorderConfig, read_records
from pipeline.training.context import no_recorder
from pipeline.training.language_model import LanguageModelJob
from tests.killed import Killing
from tests.test_launch import run_of

LR = "finetune_lm.optimizer.lr"
RATES = [0.01, 0.02, 0.0001, 0.03]
KILLED = 0.02
ONE_AT_ONCE = Trials(cpus=1, gpus=0.0, at_once=1)
SETTINGS = Tune(
    headstart="ulmfit", stage="finetune_lm", num_trials=4, search="grid", seed=1, workers=1, labels=None,
    evaluations=10, grace=0.25, reduction=2, overrides={}, space={LR: Range(choices=[*RATES])},
)  # fmt: skip


@dataclass(frozen=True)
class Jobs:
    """Makes a trial's job and session from its values."""

    job: LanguageModelJob
    folder: str
    killing: Killing | None

    def make(self, values: Values) -> LanguageModelJob:
        settings = self.job.settings
        optimizer = settings.training.optimizer.model_copy(update={"lr": values[LR]})
        training = settings.training.model_copy(update={"optimizer": optimizer})
        return replace(self.job, settings=replace(settings, training=training))

    def session(self, values: Values) -> Session:
        recorder = self.killing.open if self.killing and values[LR] == KILLED else no_recorder
        return Session("key", f"{self.folder}/{values[LR]}", recorder)


class _Run:
    """Stands in for a trial's MLflow run."""

    run_id = None

    def recorder(self, path: Path) -> RecorderConfig:
        return RecorderConfig(uri="", run_id=None, path=path)

    def close(self, metrics: Mapping[str, Any], failure: str = "") -> None:
        pass


def run_search(
    job: LanguageModelJob,
    curves: Path,
    storage: str,
    cluster: Cluster,
    killing: Killing | None = None,
    retries: int = 0,
) -> list[TrialResult]:
    curves.mkdir(exist_ok=True)  # if it is missing, a recorder keeps its file elsewhere
    places = SimpleNamespace(
        retain=lambda keys: None,
        run_of=lambda name, key, values: _Run(),
        begin_run=lambda run: None,
        place_of=lambda key: RunPlace("", curves / key / "curve.jsonl"),
        of=lambda values: str(values[LR]),
    )
    jobs = Jobs(job, storage, killing)
    run = run_of(max_worker_failures=retries)
    objective = Objective(jobs.make, jobs.session, run, "validation/bits_per_byte", float)
    with SearchRuns(places, "value", places, lambda: None) as runs:  # type: ignore[arg-type]
        return search(objective, SETTINGS, ONE_AT_ONCE, cluster, f"{storage}/search", runs)


def rounded(trial: TrialResult) -> TrialResult:
    return replace(trial, value=trial.value and round(trial.value, 5))


def curves_in(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """The curve of each trial, as MLflow would get it."""
    return {
        path.parent.name: [
            (each.step, each.metrics["validation/bits_per_byte"]) for each in read_records(path)
        ]
        for path in sorted(folder.glob("*/curve.jsonl"))
    }


ANOTHER_RAY = """
import sys
import ray

ray.init(address="local", num_cpus=1, include_dashboard=False)
print("up", flush=True)
sys.stdin.read()
"""


@pytest.mark.ray
def test_processes_of_a_search_by_train_jobs_ask_their_own_ray_and_not_a_later_one(monkeypatch):
    """Who frees the resources of a trial that was cut off asks Ray about it, and has to ask the right one."""
    import ray

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with Cluster(dashboard=True) as joined:
        joined.nodes()

        @ray.remote
        def nodes_that_ray_reports():
            from ray.util.state import list_nodes

            return [node.node_id for node in list_nodes()], ray.get_runtime_context().get_node_id()

        beside = subprocess.Popen(
            [sys.executable, "-c", ANOTHER_RAY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        try:
            assert beside.stdout is not None
            assert beside.stdout.readline() == "up\n"
            reported, own = ray.get(nodes_that_ray_reports.remote(), timeout=300)
        finally:
            beside.communicate()
    assert reported == [own]
