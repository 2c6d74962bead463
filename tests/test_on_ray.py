"""Trainings, trials and a search on one real Ray, some of which are killed: each ends as in one process."""

from __future__ import annotations

import dataclasses
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl
import polars.selectors as cs
import pytest
import torch

from pipeline.distributed.cluster import Cluster
from pipeline.distributed.failures import TrialLostError, WorkersError
from pipeline.distributed.launch import fit
from pipeline.distributed.ray_data import spread
from pipeline.distributed.session import Session
from pipeline.execution.label_on_ray import label_on_ray
from pipeline.inference.bulk import label_files
from pipeline.inference.bulk_input import Request
from pipeline.inference.predict import Predictor
from pipeline.inference.summary import read_summary
from pipeline.stages._trials import ModelPoint
from pipeline.tracking import RecorderConfig, read_records
from tests.conftest import s3_variables
from tests.killed import Killing
from tests.test_drift import shipped_with_reference
from tests.test_launch import assert_near, make_job, run_of, session_of
from tests.test_search import RATES, curves_in, rounded, run_search
from tests.test_trained_embedding import params_with, pretrain, write_tokens
from tests.test_trials import Square, Trial, assert_each_ends_once, outcome, run_all, run_squares

pytestmark = [pytest.mark.ray, pytest.mark.slow]


@pytest.fixture(scope="module")
def cluster(s3_server) -> Iterator[Cluster]:
    """One Ray for all of them, as starting one takes longer than most. Its processes find tests by name."""
    with pytest.MonkeyPatch.context() as environment:
        for name, value in s3_variables(s3_server).items():
            environment.setenv(name, value)
        for folder in (Path(__file__).parent.parent, Path(__file__).parent):
            environment.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
        environment.delenv("RAY_ADDRESS", raising=False)
        with Cluster() as joined:
            yield joined


def on(cluster: Cluster, session: Session) -> Session:
    return dataclasses.replace(session, cluster=cluster)


# --------------------------------------------------------------------------------- labelling in bulk


def test_files_are_labelled_by_its_workers_as_in_this_process(tmp_path, cluster):
    model = shipped_with_reference(tmp_path)
    texts = [None if number % 7 == 0 else f"a b {'c d ' * (number % 5)}" for number in range(40)]
    pl.DataFrame({"text": texts[:30]}).write_parquet(tmp_path / "one.parquet")
    pl.DataFrame({"text": texts[30:]}).write_csv(tmp_path / "two.csv")
    files = [str(tmp_path / name) for name in ("one.parquet", "two.csv")]
    request = Request(files, ("text",), (model,), precision="fp32", summary=tmp_path / "here.json")
    predictor = Predictor.load(model, precision="fp32")
    sizes: list[int] = []
    label_files(request, tmp_path / "here.parquet", predictor)
    tally = label_on_ray(
        dataclasses.replace(request, summary=tmp_path / "there.json"),
        tmp_path / "there.parquet",
        cluster,
        1,
        lambda tally: sizes.append(tally.num_documents),
    )
    assert tally.num_documents == sizes[-1] == 40
    here, there = (pl.read_parquet(tmp_path / f"{name}.parquet") for name in ("here", "there"))
    assert here.drop(cs.float()).equals(there.drop(cs.float()))
    for name in here.select(cs.float()).columns:
        np.testing.assert_allclose(there[name].to_numpy(), here[name].to_numpy(), rtol=1e-5)
    assert not (tmp_path / "there.parquet.parts").exists()
    summaries = [read_summary(tmp_path / f"{name}.json") for name in ("here", "there")]
    assert summaries[0].labels == summaries[1].labels
    rows = [np.array(sorted(each.rows)) for each in summaries]
    np.testing.assert_allclose(rows[1], rows[0], rtol=1e-4)


@dataclasses.dataclass
class Fragile:
    """Squares numbers; at the number 3 its process dies, once."""

    folder: Path

    def __call__(self, number: str) -> bytes:
        if number == "3" and not (self.folder / "died").exists():
            (self.folder / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return str(int(number) ** 2).encode()


@dataclasses.dataclass
class Refuses:
    reason: str

    def __call__(self, number: str) -> bytes:
        raise ValueError(f"{number}: {self.reason}")


def refuses_at_once(reason: str) -> Refuses:
    raise ValueError(reason)


def test_an_item_whose_worker_is_killed_is_done_again(tmp_path, cluster):
    found = spread(cluster, "012345", Fragile, tmp_path)
    assert sorted(found) == [(str(number), str(number**2).encode()) for number in range(6)]
    assert (tmp_path / "died").exists()


@pytest.mark.parametrize("make", [Refuses, refuses_at_once])
def test_what_a_worker_refuses_is_told_in_its_own_words(cluster, make):
    with pytest.raises(ValueError, match="no such file there") as told:
        list(spread(cluster, "01", make, "no such file there"))
    assert "Traceback" not in str(told.value)
    assert len(str(told.value)) < 100


# ----------------------------------------------------------------------------------------- trainings


def test_workers_0_1_and_2_train_the_same_model(tmp_path, cluster):
    """One family covers what Ray has to carry: all are trained by several processes in test_loop."""
    job = make_job(tmp_path)
    done = {
        workers: fit(job, run_of(workers=workers), on(cluster, session_of(tmp_path, f"workers-{workers}")))
        for workers in (0, 1, 2)
    }
    assert len(done[0].state["evaluations"]) == 5
    for workers in (1, 2):
        assert_near(done[workers], done[0], 1e-4)
        curves = [read_records(tmp_path / f"workers-{each}" / "curve.jsonl") for each in (0, workers)]
        assert [record.step for record in curves[1]] == [record.step for record in curves[0]]


@pytest.mark.long
def test_workers_with_a_shard_each_train_the_same_model(tmp_path, cluster):
    job = make_job(tmp_path, "bert")
    whole = fit(job, run_of(workers=0), session_of(tmp_path, "whole"))
    sharded = fit(job, run_of(workers=2, sharding="full"), on(cluster, session_of(tmp_path, "sharded")))
    assert_near(sharded, whole, 1e-4)


def test_word_vectors_and_the_network_that_begins_with_them_train_in_turn(tmp_path, cluster):
    tokens = write_tokens(tmp_path / "tokens")
    here, there = params_with({}), params_with({"run": {"workers": 1, "threads_per_worker": 1}})
    _, wanted = pretrain(tmp_path / "here", tokens, here)
    _, tensors = pretrain(tmp_path, tokens, there, cluster=cluster)
    for name, weight in wanted.items():
        torch.testing.assert_close(tensors[name], weight, msg=name)


@pytest.mark.parametrize(
    ("title", "kills", "message"),
    [
        (None, 2, r"a worker was lost, and run\.max_worker_failures: 1 leaves no"),
        ("TrainController", 1, r"controller was lost: .* repeat the command"),
    ],
    ids=["worker", "controller"],
)
def test_a_killed_training_resumes_and_ends_with_the_same_weights(tmp_path, cluster, title, kills, message):
    """A worker is retried once; then, and where the controller is lost, repeating the command resumes."""
    job = make_job(tmp_path)
    whole = fit(job, run_of(workers=0), session_of(tmp_path, "whole"))
    kill_at = whole.step // 2
    records = RecorderConfig(uri="", run_id=None, path=tmp_path / "killed" / "curve.jsonl")
    killing = Killing(records, tmp_path / "starts", kill_at, kills, title)
    session = on(cluster, dataclasses.replace(session_of(tmp_path, "killed"), open_recorder=killing.open))
    run = run_of(workers=1, max_worker_failures=1)
    with pytest.raises(WorkersError, match=message):
        fit(job, run, session)
    assert len(killing.starts()) == kills
    done = fit(job, run, session)
    fresh, *resumed = killing.starts()
    assert fresh == -1
    if title is None:
        assert resumed == [kill_at - 1, kill_at - 1]  # from the checkpoint before the kill
    else:  # without their controller, workers train on for a moment
        assert kill_at - 1 <= resumed[0] < whole.step
    assert_near(done, whole, 1e-6)
    steps = [record.step for record in read_records(records.path)]
    assert steps == list(range(whole.step + 1))


# -------------------------------------------------------------------------------------------- trials


def test_each_trial_ends_once_and_a_failing_one_alone(tmp_path, cluster):
    assert_each_ends_once(tmp_path, cluster)


def test_a_trial_that_lost_its_storage_is_retried(tmp_path, cluster):
    _, ended = run_squares(tmp_path, [2, 13], cluster, retries=1)
    assert ended == {"square 2": "", "square 13": ""}
    assert (tmp_path / "square13.runs").read_text() == "xx"


def test_a_killed_trial_resumes_and_has_the_same_outcome(tmp_path, cluster):
    """It is killed more often than it is retried: the stage stops, and succeeds when it is repeated."""
    job, run = make_job(tmp_path), run_of(workers=1, max_worker_failures=1)
    whole = ModelPoint("whole", str(tmp_path / "whole"), job, run, session_of(tmp_path, "whole"))
    assert run_all([whole], run_of(), tmp_path) == {"whole": ""}
    records = RecorderConfig(uri="", run_id=None, path=tmp_path / "killed" / "curve.jsonl")
    killing = Killing(records, tmp_path / "marks", step=12, kills=3)
    session = dataclasses.replace(session_of(tmp_path, "killed"), open_recorder=killing.open)
    trials: list[Trial] = [
        Square("square 3", str(tmp_path / "square3"), 3),
        ModelPoint("killed", str(tmp_path / "killed"), job, run, session),
    ]
    with pytest.raises(TrialLostError, match=r"killed was lost, and run\.max_worker_failures: 1 leaves"):
        run_all(trials, run, tmp_path / "sweep", cluster)
    assert killing.starts() == [-1, 11]
    assert run_all(trials, run, tmp_path / "sweep", cluster)["killed"] == ""
    assert killing.starts() == [-1, 11, 11, 11]
    found, wanted = outcome(trials[1]), outcome(whole)
    assert found
    assert wanted
    assert found.state["validation"] == pytest.approx(wanted.state["validation"], rel=1e-6)
    for name, tensor in wanted.tensors.items():
        assert torch.allclose(found.tensors[name], tensor, rtol=1e-5, atol=1e-6), name
    assert [record.step for record in read_records(records.path)] == list(range(found.step + 1))
    assert (tmp_path / "square3.runs").read_text() == "x"


# -------------------------------------------------------------------------------------------- search


def test_a_trial_of_a_search_that_is_killed_changes_nothing(tmp_path, bucket, cluster):
    """Killed three times after its first rung; each start of the search allows one retry."""
    job, whole, killed = make_job(tmp_path), tmp_path / "whole", tmp_path / "killed"
    wanted = run_search(job, whole, str(tmp_path / "runs"), cluster)
    # If the scheduler forgot earlier trials, the third would be the first to reach each rung.
    assert [trial.state for trial in wanted] == ["finished", "finished", "stopped early", "finished"]
    records = RecorderConfig(uri="", run_id=None, path=tmp_path / "curve.jsonl")
    killing = Killing(records, tmp_path / "marks", step=12, kills=3)
    with pytest.raises(
        TrialLostError, match=r"trial \w+ was lost, and run\.max_worker_failures: 1 leaves no"
    ):
        run_search(job, killed, bucket, cluster, killing, retries=1)
    assert killing.starts() == [-1, 11]
    found = run_search(job, killed, bucket, cluster, killing, retries=1)
    assert killing.starts() == [-1, 11, 11, 11]
    assert [rounded(trial) for trial in found] == [rounded(trial) for trial in wanted]
    curves = curves_in(whole)
    assert [len(curves[str(rate)]) for rate in RATES] == [4, 4, 1, 4]
    assert curves_in(killed) == curves
