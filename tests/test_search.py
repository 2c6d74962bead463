"""A search whose trials are lost on the way: it comes to what an undisturbed one comes to."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.cluster import Cluster
from pipeline.launch import Session
from pipeline.params import Range, Trials, Tune
from pipeline.search import Objective, Tried, Values, search
from pipeline.sweep import SearchRuns
from pipeline.tracking import RecorderConfig, read_records
from pipeline.training.context import no_recorder
from pipeline.training.jobs import LanguageModelJob
from pipeline.trials import TrialLostError
from tests.killed import Killing
from tests.test_launch import make_job, run_of
from tests.test_trials import workers_find_tests  # noqa: F401  a fixture

LR = "finetune_lm.optimizer.lr"
RATES = [0.01, 0.02, 0.0001, 0.03]
KILLED = 0.02
ONE_AT_ONCE = Trials(cpus=1, gpus=0.0, at_once=1)
SETTINGS = Tune(
    stage="finetune_lm", num_trials=4, search="grid", seed=1, workers=1, labels=None, grace=0.25,
    reduction=2, overrides={}, space={LR: Range(choices=[*RATES])},
)  # fmt: skip


@dataclass(frozen=True)
class Jobs:
    """A trial's training, from its values."""

    job: LanguageModelJob
    folder: str
    killing: Killing | None

    def make(self, values: Values) -> LanguageModelJob:
        optimizer = self.job.settings.optimizer.model_copy(update={"lr": values[LR]})
        return replace(self.job, settings=self.job.settings.model_copy(update={"optimizer": optimizer}))

    def session(self, values: Values) -> Session:
        recorder = self.killing.open if self.killing and values[LR] == KILLED else no_recorder
        return Session("key", f"{self.folder}/{values[LR]}", recorder)


class _Run:
    """A trial's run, without MLflow."""

    run_id = None

    def recorder(self, path: Path) -> RecorderConfig:
        return RecorderConfig(uri="", run_id=None, path=path)

    def close(self, metrics: Mapping[str, Any], failure: str = "") -> None:
        pass


def run_search(
    job: LanguageModelJob, curves: Path, storage: str, killing: Killing | None = None, retries: int = 0
) -> list[Tried]:
    curves.mkdir(exist_ok=True)  # without it a recorder keeps its file elsewhere
    places = SimpleNamespace(
        note=lambda keys: None,
        open_run=lambda name, key, values: _Run(),
        places=lambda key: ("", curves / key / "curve.jsonl"),
        of=lambda values: str(values[LR]),
    )
    runs = SearchRuns(places, "value", places, lambda: None)  # type: ignore[arg-type]
    jobs = Jobs(job, storage, killing)
    run = run_of(max_worker_failures=retries)
    objective = Objective(jobs.make, jobs.session, run, "validation/bits_per_byte", float)
    try:
        return search(objective, SETTINGS, ONE_AT_ONCE, Cluster(), f"{storage}/search", runs)
    finally:
        runs.close()


def rounded(trial: Tried) -> Tried:
    return replace(trial, value=trial.value and round(trial.value, 5))


def told(curves: Path) -> dict[str, list[tuple[int, float]]]:
    """The curve of each trial, as it would be in MLflow."""
    return {
        path.parent.name: [
            (each.step, each.metrics["validation/bits_per_byte"]) for each in read_records(path)
        ]
        for path in sorted(curves.glob("*/curve.jsonl"))
    }


@pytest.mark.ray
@pytest.mark.slow
def test_a_trial_that_is_killed_changes_nothing(tmp_path, bucket, workers_find_tests):  # noqa: F811
    """Killed three times after its first rung, with one attempt more each time that the search is begun."""
    job, whole, killed = make_job(tmp_path), tmp_path / "whole", tmp_path / "killed"
    wanted = run_search(job, whole, str(tmp_path / "runs"))
    # Of a scheduler that forgot the trials before, the third would be the first to reach each rung.
    assert [trial.state for trial in wanted] == ["finished", "finished", "stopped early", "finished"]
    records = RecorderConfig(uri="", run_id=None, path=tmp_path / "curve.jsonl")
    killing = Killing(records, tmp_path / "marks", step=12, kills=3)
    with pytest.raises(
        TrialLostError, match=r"trial \w+ was lost, and run\.max_worker_failures: 1 leaves no"
    ):
        run_search(job, killed, bucket, killing, retries=1)
    assert killing.starts() == [-1, 11]
    found = run_search(job, killed, bucket, killing, retries=1)
    assert killing.starts() == [-1, 11, 11, 11]
    assert [rounded(trial) for trial in found] == [rounded(trial) for trial in wanted]
    curves = told(whole)
    assert [len(curves[str(rate)]) for rate in RATES] == [4, 4, 1, 4]
    assert told(killed) == curves


ANOTHER_RAY = """
import sys
import ray

ray.init(address="local", num_cpus=1, include_dashboard=False)
print("up", flush=True)
sys.stdin.read()
"""


@pytest.mark.ray
def test_processes_of_a_search_by_train_jobs_ask_their_own_ray_where_a_later_one_is_beside_it(monkeypatch):
    """What holds a trial's workers is given back by who finds out, of the right Ray, that it was cut off."""
    import ray

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with Cluster(dashboard=True) as joined:
        joined.nodes()

        @ray.remote
        def nodes_as_it_is_told():
            from ray.util.state import list_nodes

            return [node.node_id for node in list_nodes()], ray.get_runtime_context().get_node_id()

        beside = subprocess.Popen(
            [sys.executable, "-c", ANOTHER_RAY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        try:
            assert beside.stdout is not None
            assert beside.stdout.readline() == "up\n"
            told, own = ray.get(nodes_as_it_is_told.remote(), timeout=60)
        finally:
            beside.communicate()
    assert told == [own]
