"""`gc` removes what nothing refers to and nothing else; a half removed run never looks whole."""

from __future__ import annotations

import errno
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pipeline import tracking
from pipeline.artifacts.checkpoint_store import CheckpointStore
from pipeline.machine.process_identity import ProcessIdentity
from pipeline.project import stages
from pipeline.retention import gc, stored_runs
from pipeline.retention.references import References, _metrics, references
from pipeline.retention.stored_runs import DAY_S, KeepRules, StoredRun, judge
from pipeline.storage.address import join, open_storage
from pipeline.storage.interface import Storage, StoredFile
from pipeline.storage.lease import Holder, acquire, holder_of
from pipeline.tracking import stores
from pipeline.training.checkpoint import Checkpoint

ROOT = Path(__file__).parent.parent
NOW = 1e9
KEYS = [f"{number:016x}" for number in range(1, 9)]


@pytest.fixture(params=["folder", "bucket"])
def storage(request, tmp_path) -> Storage:
    if request.param == "folder":
        return open_storage(str(tmp_path / "runs"))
    return open_storage(request.getfixturevalue("bucket"))


def checkpoint_of(step: int, finished: bool) -> Checkpoint:
    card = {"stage": "pretrain_lm", "family": "awd_lstm", "direction": "forward"}
    state = {"step": step, "num_steps": 20, "finished": finished, "card": card}
    return Checkpoint(step, {"a": torch.arange(100.0)}, state, {"curve.jsonl": b"{}\n"})


def write_run(storage: Storage, key: str, *steps: int, part: str = "checkpoints") -> None:
    """Write a training of 20 steps with checkpoints at the given steps."""
    acquire(join(storage.address, key)).release()
    for step in steps:
        CheckpointStore(join(storage.address, key, part), keep=9).save(checkpoint_of(step, step == 20))


def bytes_in(storage: Storage, folder: str) -> int:
    return sum(file.num_bytes for file in storage.files(folder))


def found_in(storage: Storage) -> dict[str, StoredRun]:
    return {run.key: run for run in stored_runs.stored_runs(storage)}


def judged(storage: Storage, rules: KeepRules, days_later: float = 100.0) -> dict[str, str]:
    """The reason to keep each run, by key."""
    runs = judge(stored_runs.stored_runs(storage), rules, time.time() + days_later * DAY_S)
    return {run.key: run.reason for run in runs}


# ---------------------------------------------------------------------------------------- looking


def test_each_kind_of_run_is_told_from_the_others(storage):
    finished, unfinished, trial, sweep, search, torn, train, other = KEYS
    write_run(storage, finished, 10, 20)
    write_run(storage, unfinished, 5, 10)
    write_run(storage, trial, 20)
    write_run(storage, trial, 20, part="outcome")
    storage.write(f"{sweep}/trials.json", json.dumps([trial]).encode())
    storage.write(f"{search}/search/tuner.pkl", b"of Ray")
    write_run(storage, torn, 10)
    storage.remove(f"{torn}/checkpoints/step-000000010/manifest.json")
    storage.write(f"ray/{train}/state.json", b"of Ray Train")
    storage.write(f"notes/{other}", b"not ours")
    runs = found_in(storage)
    assert {key: (run.title, run.state, run.is_unfinished) for key, run in runs.items()} == {
        finished: ("pretrain_lm awd_lstm forward", "finished", False),
        unfinished: ("pretrain_lm awd_lstm forward", "step 10 of 20", True),
        trial: ("trial, pretrain_lm awd_lstm forward", "finished", False),
        sweep: ("sweep", "1 trials", False),
        search: ("search", "", False),
        torn: ("", "no whole checkpoint", True),
        train: ("", "no whole checkpoint", True),
    }
    assert runs[sweep].trials == {trial}
    assert runs[finished].num_bytes == bytes_in(storage, f"{finished}/checkpoints")
    assert abs(runs[finished].written - time.time()) < 60
    assert all(run.holder is None for run in runs.values())


# ---------------------------------------------------------------------------------------- judging


def run_of(number: int = 0, days_old: float = 30.0, **more: Any) -> StoredRun:
    file = StoredFile("a", 100, NOW - days_old * DAY_S)
    values = {"key": KEYS[number], "title": "", "state": "", "files": (file,), "user": "me"}
    return StoredRun(**(values | more))


def rules_of(**more: Any) -> KeepRules:
    values: dict[str, Any] = {"references": References(), "aliases": {}, "user": "me"}
    return KeepRules(**(values | more))


HERE = ProcessIdentity.this()
ELSEWHERE = ProcessIdentity("far", "another machine", 7, "0")


def held_by(process: ProcessIdentity, beat_days_ago: float) -> dict[str, Any]:
    return {"holder": Holder(process, None, "me", "now"), "beat": NOW - beat_days_ago * DAY_S}


@pytest.mark.parametrize(
    ("run", "rules", "reason"),
    [
        (run_of(), rules_of(), ""),
        (run_of(is_unfinished=True), rules_of(), ""),
        (run_of(days_old=13), rules_of(), "written in the last 14 days"),
        (run_of(days_old=13), rules_of(older_than_days=12), ""),
        (run_of(days_old=0), rules_of(older_than_days=0), ""),
        (run_of(), rules_of(references=References(frozenset({KEYS[0]}))), "a revision refers to it"),
        (run_of(), rules_of(references=References(frozenset({KEYS[1]}))), ""),
        (run_of(), rules_of(aliases={KEYS[0]: "models:/m@current"}), "models:/m@current is made from it"),
        (run_of(), rules_of(unsent=f'"curves": ["/a/{KEYS[0]}/curve.jsonl"]'), "MLflow has not received"),
        (run_of(), rules_of(user="you"), "me's"),
        (run_of(user=None), rules_of(), ""),
        (run_of(**held_by(HERE, 30)), rules_of(), "held by process"),
        (run_of(**held_by(ELSEWHERE, 0.5)), rules_of(older_than_days=0), "held by process 7 of me on far"),
        (run_of(**held_by(ELSEWHERE, 10)), rules_of(), "held by process 7"),
        (run_of(**held_by(ELSEWHERE, 20)), rules_of(), ""),
        # Results older than what cannot be read are kept; an unfinished run is no result.
        (run_of(), rules_of(references=References(unknown_until=NOW)), "a revision that cannot be read"),
        (run_of(), rules_of(references=References(unknown_until=NOW - 31 * DAY_S)), ""),
        (run_of(is_unfinished=True), rules_of(references=References(unknown_until=NOW)), ""),
        (run_of(), rules_of(aliases=None), "MLflow does not say"),
        (run_of(is_unfinished=True), rules_of(aliases=None), ""),
    ],
)  # fmt: skip
def test_the_reason_to_keep_a_run(run, rules, reason):
    (judged_run,) = judge([run], rules, NOW)
    assert judged_run.reason.startswith(reason)
    assert judged_run.goes == (not reason)


def test_trials_stay_with_a_kept_sweep_and_go_with_the_last_one():
    runs = [run_of(0, trials=frozenset({KEYS[2], KEYS[3]})), run_of(1, trials=frozenset({KEYS[3], KEYS[4]})),
            run_of(2), run_of(3), run_of(4)]  # fmt: skip
    rules = rules_of(references=References(frozenset({KEYS[0]})))
    reasons = [run.reason for run in judge(runs, rules, NOW)]
    assert reasons == ["a revision refers to it", "", f"a trial of {KEYS[0]}", f"a trial of {KEYS[0]}", ""]


# ---------------------------------------------------------------------------------------- removing


def said_by_us(caplog) -> list[str]:
    """Messages without those of other libraries, whose threads may outlive an earlier test."""
    return [record.message for record in caplog.records if record.name.startswith("pipeline.")]


def test_a_removed_run_leaves_nothing_and_others_untouched(storage, caplog):
    write_run(storage, KEYS[0], 10, 20)
    write_run(storage, KEYS[1], 10)
    storage.write(f"ray/{KEYS[0]}/state.json", b"of Ray Train")
    before = storage.files(KEYS[1])
    stored_runs.remove(storage, found_in(storage)[KEYS[0]])
    assert [name for name in storage.names() if name != "ray"] == [KEYS[1]]
    assert [file.path for file in storage.files()] == [file.path for file in before]
    assert said_by_us(caplog) == []
    with_number_1 = acquire(join(storage.address, KEYS[0]))  # as for a new run
    assert with_number_1.fence.number == 1
    with_number_1.release()


HOLDS = """
import sys
from pipeline.storage.lease import acquire
acquire(sys.argv[1])
print("held", flush=True)
sys.stdin.read()
"""


def test_a_held_run_is_kept_with_a_message(storage):
    write_run(storage, KEYS[0], 10)
    run = found_in(storage)[KEYS[0]]
    words = [sys.executable, "-c", HOLDS, join(storage.address, KEYS[0])]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, cwd=ROOT, text=True, stdin=pipe, stdout=pipe) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        assert judged(storage, KeepRules(References(), {}, older_than_days=0.0))[KEYS[0]].startswith(
            "held by"
        )
        with pytest.raises(ValueError, match=f"being trained by process {holder.pid}"):
            stored_runs.remove(storage, run)
        holder.kill()
    assert CheckpointStore(join(storage.address, KEYS[0], "checkpoints")).newest() is not None


def test_a_run_that_was_resumed_meanwhile_is_kept_with_a_message(storage, caplog):
    write_run(storage, KEYS[0], 10)
    run = found_in(storage)[KEYS[0]]
    write_run(storage, KEYS[0], 20)
    removal = gc.Removal(KEYS[0], run.num_bytes, partial(stored_runs.remove, storage, run))
    assert gc.carry_out(gc.Cleanup(storage, [], [removal], [])) == 0
    assert said_by_us(caplog) == [f"{KEYS[0]} is kept: it was written to in the meantime"]
    assert found_in(storage)[KEYS[0]].state == "finished"


def test_nobody_can_start_a_run_until_all_of_it_is_removed(storage, monkeypatch):
    write_run(storage, KEYS[0], 10, 20)
    run = found_in(storage)[KEYS[0]]
    place = open_storage(join(storage.address, KEYS[0]))
    kind = type(storage)
    real, holders = kind.remove, []

    def watched(self: Storage, path: str) -> None:
        holders.append((path.rpartition("/")[2], holder_of(place)))
        real(self, path)

    monkeypatch.setattr(kind, "remove", watched)
    stored_runs.remove(storage, run)
    of_this = [name for name, holder in holders if holder and holder.process == HERE]
    assert "step-000000020" in of_this
    assert [name for name, _ in holders if name.endswith(".json")][-1] == of_this[-1]


def test_checkpoints_of_several_holders_belong_to_one_run(storage):
    checkpoints = join(storage.address, KEYS[0], "checkpoints")
    write_run(storage, KEYS[0], 10)  # without a lease number
    for number, step in ((2, 10), (3, 15)):
        CheckpointStore(checkpoints, keep=9, lease_number=number).save(checkpoint_of(step, False))
    assert found_in(storage)[KEYS[0]].state == "step 15 of 20"
    for number in (3, 10):
        CheckpointStore(checkpoints, keep=9, lease_number=number).save(checkpoint_of(20, True))
    (run,) = stored_runs.stored_runs(storage)
    assert run.state == "finished"
    stored_runs.thin(storage, run)
    assert storage.names(f"{KEYS[0]}/checkpoints") == ["step-000000020.000010"]


@pytest.mark.parametrize("num_done", range(4))
def test_an_interrupted_removal_leaves_nothing_whole_and_can_be_repeated(storage, monkeypatch, num_done):
    write_run(storage, KEYS[0], 10, 20)
    storage.write(f"{KEYS[0]}/search/tuner.pkl", b"of Ray")
    kind = type(storage)
    real, count = kind.remove, iter(range(100))

    def stops(self: Storage, path: str) -> None:
        if not path.startswith("lease/") and next(count) == num_done:
            real(self, f"{path}/manifest.json")
            raise OSError(errno.EIO, "Input/output error")
        real(self, path)

    run = found_in(storage)[KEYS[0]]
    with monkeypatch.context() as patch:
        patch.setattr(kind, "remove", stops)
        with pytest.raises(OSError, match="Input/output error"):
            stored_runs.remove(storage, run)
    left = found_in(storage).get(KEYS[0])
    newest = CheckpointStore(join(storage.address, KEYS[0], "checkpoints")).newest()
    assert newest is None or newest.step == [20, 20, 0][num_done]
    if left is not None:
        stored_runs.remove(storage, left)
    assert KEYS[0] not in found_in(storage)


def test_thinning_keeps_the_last_checkpoint_of_a_finished_run_and_the_outcome_of_a_trial(storage):
    finished, trial, unfinished = KEYS[:3]
    write_run(storage, finished, 10, 20)
    write_run(storage, trial, 10, 20)
    write_run(storage, trial, 20, part="outcome")
    write_run(storage, unfinished, 5, 10)
    runs = found_in(storage)
    of_one = bytes_in(storage, f"{finished}/checkpoints/step-000000010")
    assert sum(file.num_bytes for file in stored_runs.superfluous(runs[finished])) == of_one
    assert stored_runs.superfluous(runs[unfinished]) == []
    for key in (finished, trial):
        stored_runs.thin(storage, runs[key])
    assert storage.names(f"{finished}/checkpoints") == ["step-000000020"]
    assert storage.names(f"{trial}/checkpoints") == []
    outcome = CheckpointStore(join(storage.address, trial, "outcome")).newest()
    assert outcome is not None
    assert outcome.step == 20
    assert all(stored_runs.superfluous(run) == [] for run in found_in(storage).values())


def test_a_run_whose_last_checkpoint_is_torn_is_not_thinned(storage):
    write_run(storage, KEYS[0], 10, 20)
    storage.write(f"{KEYS[0]}/checkpoints/step-000000020/tensors.safetensors", b"torn")
    with pytest.raises(ValueError, match="missing or cut short"):
        stored_runs.thin(storage, found_in(storage)[KEYS[0]])
    assert storage.names(f"{KEYS[0]}/checkpoints") == ["step-000000010", "step-000000020"]


# ------------------------------------------------------ inputs, and this machine


A, B = "a" * 64, "b" * 64  # hashes of inputs


def write_input(storage: Storage, digest: str) -> None:
    storage.write(f"inputs/{digest}/tokens.bin", b"tokens")
    storage.write(f"inputs/{digest}.whole", b"")


def test_old_inputs_go_if_no_run_is_held(storage):
    write_input(storage, A)
    held, free = (run_of(**more) for more in (held_by(HERE, 0), {}))
    later = time.time() + 20 * DAY_S
    assert stored_runs.stale_inputs(storage, [held], 14, later) == []
    assert stored_runs.stale_inputs(storage, [free], 30, later) == []
    (stale,) = stored_runs.stale_inputs(storage, [free], 14, later)
    assert [file.path for file in stale.files] == [f"inputs/{A}.whole", f"inputs/{A}/tokens.bin"]
    stored_runs.remove_input(storage, stale)
    assert storage.files() == []
    assert storage.names() == []


def test_only_our_own_files_among_the_inputs_go(storage):
    others = ["corpus.csv", "thesis/notes.txt", f"thesis/{A}/a", f"{A}.txt", f"{A[1:]}/a", f"{A}0/a",
              f"{A}0.whole", f"{A}.whole/a", f"{A.upper()}/a"]  # fmt: skip
    for name in others:
        storage.write(f"inputs/{name}", b"a person's")
    storage.write(f"{A}/a", b"a person's")
    write_input(storage, B)
    (stale,) = stored_runs.stale_inputs(storage, [], 14, time.time() + 20 * DAY_S)
    stored_runs.remove_input(storage, stale)
    assert {file.path for file in storage.files()} == {f"{A}/a"} | {f"inputs/{name}" for name in others}


def test_an_input_goes_as_a_whole_once_all_of_it_is_old(tmp_path):
    storage = open_storage(str(tmp_path))
    for digest in (A, B):
        write_input(storage, digest)
    left = tmp_path / f"inputs/.{A}.partial-7-00000000-00000000-0"  # left by a killed publisher
    left.mkdir()
    (left / "tokens.bin").touch()
    old = time.time() - 20 * DAY_S
    for path in (tmp_path / "inputs").rglob("*"):
        if path.name != f"{B}.whole":
            os.utime(path, (old, old))
    (stale,) = stored_runs.stale_inputs(storage, [], 14, time.time())
    assert (stale.key, len(stale.files)) == (A, 3)
    stored_runs.remove_input(storage, stale)
    assert sorted(path.name for path in (tmp_path / "inputs").iterdir()) == [B, f"{B}.whole"]


def test_an_input_that_is_shipped_again_meanwhile_is_kept_with_a_message(storage):
    write_input(storage, A)
    (stale,) = stored_runs.stale_inputs(storage, [], 0, time.time() + 60)
    storage.write(f"inputs/{A}/more.bin", b"more")
    with pytest.raises(ValueError, match="it was written to in the meantime"):
        stored_runs.remove_input(storage, stale)
    assert len(storage.files()) == 3


def test_an_interrupted_removal_of_an_input_leaves_it_without_its_marker(storage, monkeypatch):
    write_input(storage, A)
    (stale,) = stored_runs.stale_inputs(storage, [], 0, time.time() + 60)
    real = type(storage).remove

    def stops(self: Storage, path: str) -> None:
        if not path.endswith(".whole"):
            raise OSError(errno.EIO, "Input/output error")
        real(self, path)

    monkeypatch.setattr(type(storage), "remove", stops)
    with pytest.raises(OSError, match="Input/output error"):
        stored_runs.remove_input(storage, stale)
    assert storage.names("inputs") == [A]


def test_local_leftovers_of_killed_processes_and_removed_runs_go(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    for name in (
        f"headstart-{gone.pid}-ab_c",
        f"headstart-{os.getpid()}-abc",
        "headstart-mine",
        "other-1-abc",
    ):
        (tmp_path / "tmp" / name).mkdir(parents=True)
    for key in KEYS[:3]:
        (tmp_path / ".headstart/curves" / key).mkdir(parents=True)
    later = time.time() + 20 * DAY_S
    found = stored_runs.stale_here(tmp_path, {KEYS[0]}, f"/{KEYS[1]}/curve.jsonl", 14, later)
    assert [path.name for path in found] == [KEYS[2], f"headstart-{gone.pid}-ab_c"]
    young = stored_runs.stale_here(tmp_path, set(), "", 14, time.time())
    assert [path.name for path in young] == [f"headstart-{gone.pid}-ab_c"]


def test_a_sweep_records_which_trials_it_reads(tmp_path):
    from pipeline.sweeps.sweep import Sweep

    any_value: Any = None
    settings: Any = SimpleNamespace(patiently=lambda what, action: action())
    folder = str(tmp_path / KEYS[0])
    sweep = Sweep(settings, any_value, None, folder, *[any_value] * 9)
    assert sweep.key == KEYS[0]
    sweep.retain(KEYS[2:4])
    sweep.retain([KEYS[1], KEYS[2]])
    assert found_in(open_storage(str(tmp_path)))[KEYS[0]].trials == set(KEYS[1:4])


# -------------------------------------------------------------------------------------- revisions


def test_the_metrics_of_every_stage_that_trains_count():
    for stage in stages.names():
        counts = _metrics().search(f"reports/metrics/{stage}-ulmfit.json") is not None
        assert counts == stages.describe(stage).is_training, stage


class Repository:
    def __init__(self, folder: Path, inside: str = "") -> None:
        self.folder = folder
        self.project = folder / inside
        folder.mkdir(exist_ok=True)
        self.git("init", "-q", "-b", "main")
        self.metrics = self.project / "reports/metrics"
        self.metrics.mkdir(parents=True)

    def git(self, *words: str, time: int = 1_000_000) -> str:
        dates = dict.fromkeys(("GIT_AUTHOR_DATE", "GIT_COMMITTER_DATE"), f"@{time} +0000")
        names = {f"GIT_{who}_{what}": "a@b" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
        done = subprocess.run(
            ["git", "-C", str(self.folder), *words], env=os.environ | dates | names, text=True,
            capture_output=True, check=True,
        )  # fmt: skip
        return done.stdout.strip()

    def write(self, key: str | None, stage: str = "pretrain_lm-ulmfit") -> None:
        content = {"steps": 3} | ({"key": key} if key else {})
        (self.metrics / f"{stage}.json").write_text(json.dumps(content))

    def commit(self, key: str | None, stage: str = "pretrain_lm-ulmfit", time: int = 1_000_000) -> None:
        self.write(key, stage)
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", "run", time=time)


@pytest.fixture
def repository(tmp_path) -> Repository:
    return Repository(tmp_path)


def test_references_come_from_every_reachable_commit_and_the_workspace(repository):
    first, second, of_branch, of_experiment, gone, uncommitted, of_worktree = KEYS[:7]
    repository.commit(first)
    repository.commit(second, "tune")
    for key, ref in ((of_branch, "refs/heads/other"), (of_experiment, "refs/exps/ab/cd/exp"), (gone, None)):
        repository.git("checkout", "-q", "--detach", "main")
        repository.commit(key)
        if ref:
            repository.git("update-ref", ref, "HEAD")
    repository.git("checkout", "-q", "main")
    repository.git("worktree", "add", "-q", "--detach", "../elsewhere", "main")
    elsewhere = repository.folder.parent / "elsewhere/reports/metrics/finetune_lm-ulmfit.json"
    elsewhere.write_text(json.dumps({"key": of_worktree}))
    repository.write(uncommitted, "finetune_classifier-ulmfit_backward")
    (repository.metrics / "evaluate.json").write_text('{"key": "of no training"}')
    found = references(repository.folder)
    assert found == References(frozenset({first, second, of_branch, of_experiment, uncommitted, of_worktree}))


def test_a_key_that_only_a_merge_added_is_a_reference(repository):
    repository.commit(KEYS[0])
    repository.git("checkout", "-q", "-b", "side")
    repository.commit(KEYS[1])
    repository.git("checkout", "-q", "main")
    repository.commit(KEYS[2])
    repository.git("merge", "-q", "-s", "ours", "--no-commit", "side")
    repository.commit(KEYS[3])
    repository.commit(KEYS[4])
    assert references(repository.folder).keys == set(KEYS[:5])


def test_metrics_that_cannot_be_read_may_refer_to_any_older_result(repository):
    repository.commit(None, time=1_000_000)
    (repository.metrics / "finetune_lm-ulmfit.json").write_text("<<<<<<< HEAD")
    repository.commit(None, time=2_000_000)
    repository.commit(KEYS[0], time=3_000_000)
    repository.commit(KEYS[1], "finetune_lm-ulmfit", time=3_000_000)
    found = references(repository.folder)
    assert (found.keys, found.unknown_until) == ({KEYS[0], KEYS[1]}, 2_000_000)
    (warning,) = found.warnings
    assert "1 metrics files in its revisions cannot be read" in warning
    (repository.metrics / "ablate.json").write_text("{")  # uncommitted, so its time is now
    assert references(repository.folder).unknown_until == pytest.approx(time.time(), abs=60)


def test_a_sweep_of_no_trials_refers_to_none(repository):
    (repository.metrics / "tune.json").write_text('{"num_trials": 0}')
    repository.git("add", "-A")
    repository.git("commit", "-q", "-m", "run")
    assert references(repository.folder) == References()


@pytest.mark.parametrize(
    "name",
    [
        "a b",
        "thèse",
        "日本",
        'a"b',
        "a\\b",
        "a\nb",
        "a\tb",
        "[a]*",
        b"\xff".decode(errors="surrogateescape"),
        "123",
        ":(top)a",
    ],
)
def test_a_project_may_have_any_name_anywhere_in_its_repository(tmp_path, name):
    repository = Repository(tmp_path / name, inside=f"{name}/of {name}")
    repository.commit(KEYS[0])
    repository.commit(KEYS[1])
    repository.git("worktree", "add", "-q", "--detach", f"{tmp_path}/{name} elsewhere", "main")
    elsewhere = tmp_path / f"{name} elsewhere" / repository.project.relative_to(repository.folder)
    (elsewhere / "reports/metrics/tune.json").write_text(json.dumps({"key": KEYS[2]}))
    repository.write(KEYS[3])
    assert references(repository.project) == References(frozenset(KEYS[:4]))


def test_a_shallow_clone_may_refer_to_any_result(repository, tmp_path_factory):
    for key in KEYS[:3]:
        repository.commit(key)
    shallow = tmp_path_factory.mktemp("shallow")
    repository.git("clone", "-q", "--depth", "1", f"file://{repository.folder}", str(shallow))
    found = references(shallow)
    assert (found.keys, found.unknown_until) == ({KEYS[2]}, math.inf)
    (warning,) = found.warnings
    assert f"{shallow} is a shallow clone" in warning
    repository.git("-C", str(shallow), "fetch", "-q", "--unshallow")
    assert references(shallow) == References(frozenset(KEYS[:3]))


@pytest.mark.parametrize("break_it", ["no git", "missing object"])
def test_if_git_fails_all_results_are_kept(repository, break_it):
    repository.commit(KEYS[0])
    repository.write(KEYS[1])
    if break_it == "no git":
        shutil.rmtree(repository.folder / ".git")
    else:
        blob = repository.git("rev-parse", "HEAD:reports/metrics/pretrain_lm-ulmfit.json")
        (repository.folder / ".git/objects" / blob[:2] / blob[2:]).unlink()
    found = references(repository.folder)
    assert (found.keys, found.unknown_until) == ({KEYS[1]}, math.inf)
    assert "git cannot list its revisions" in found.warnings[0]


def test_a_missing_project_is_refused(tmp_path):
    with pytest.raises(ValueError, match="absent: no such folder"):
        references(tmp_path / "absent")


# ------------------------------------------------------------------------------------------ MLflow


@pytest.mark.slow
def test_models_with_an_alias_name_their_runs(tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert tracking.aliased_keys(tmp_path) == {}
    client = stores.client(tracking.tracking_uri(tmp_path))
    client.create_registered_model("classifier")
    runs = []
    for key in KEYS[:3]:
        run_id = client.create_run("0", tags={"headstart.keys": key}).info.run_id
        runs.append(client.create_model_version("classifier", "source", run_id))
    client.set_registered_model_alias("classifier", "current", runs[2].version)
    client.set_registered_model_alias("classifier", "in-production", runs[0].version)
    found = tracking.aliased_keys(tmp_path)
    assert found == {KEYS[0]: "models:/classifier@in-production", KEYS[2]: "models:/classifier@current"}


def test_an_unreachable_mlflow_raises(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    with pytest.raises(ConnectionError):
        tracking.aliased_keys(tmp_path)


# ------------------------------------------------------------------------------------ command line


def headstart(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k != "MLFLOW_TRACKING_URI"}
    environment["TMPDIR"] = str(folder)  # without files of other processes
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), environment.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-m", "pipeline", *words], cwd=folder, text=True, capture_output=True, timeout=120,
        env=environment | {"NO_COLOR": "1", "COLUMNS": "200"},
    )  # fmt: skip


@pytest.fixture
def project(repository) -> Repository:
    """A project with a run that a revision refers to and one that nothing refers to."""
    (repository.folder / "params.yaml").write_text((ROOT / "params.yaml").read_text())
    repository.commit(KEYS[0])
    (repository.folder / ".gitignore").write_text(".headstart\n")
    runs = open_storage(str(repository.folder / ".headstart/runs"))
    for key in KEYS[:2]:
        write_run(runs, key, 10, 20)
    return repository


def test_gc_only_shows_without_yes(project):
    folder = project.folder
    done = headstart(folder, "gc", "--older-than", "0")
    assert done.returncode == 0, done.stderr
    lines = {line.split()[0]: line.rstrip() for line in done.stdout.splitlines() if line}
    assert "pretrain_lm awd_lstm forward  finished" in lines[KEYS[0]]
    assert lines[KEYS[0]].endswith("kept: a revision refers to it")
    assert lines[KEYS[1]].endswith("goes")
    assert "2 runs, " in done.stdout
    assert "nothing was removed; `headstart gc --yes` does it" in done.stdout
    runs = open_storage(str(folder / ".headstart/runs"))
    assert runs.names() == sorted(KEYS[:2])
    done = headstart(folder, "gc", "--older-than", "0", "--yes", "--thin")
    assert done.returncode == 0, done.stderr
    assert "removed 2." in done.stdout
    assert runs.names() == [KEYS[0]]
    assert runs.names(f"{KEYS[0]}/checkpoints") == ["step-000000020"]


def test_gc_keeps_recent_runs(project):
    done = headstart(project.folder, "gc", "--yes")
    assert done.returncode == 0, done.stderr
    assert "kept: written in the last 14 days" in done.stdout
    assert open_storage(str(project.folder / ".headstart/runs")).names() == sorted(KEYS[:2])


def test_gc_counts_the_revisions_of_other_projects_on_the_same_storage(project, tmp_path_factory):
    other = Repository(tmp_path_factory.mktemp("other"))
    other.commit(KEYS[1])
    done = headstart(project.folder, "gc", "--older-than", "0", "--project", str(other.folder))
    assert done.stdout.count("kept: a revision refers to it") == 2


def test_gc_counts_models_and_unsent_curves_of_other_projects(project, tmp_path_factory, monkeypatch):
    other = Repository(tmp_path_factory.mktemp("other"))
    runs = open_storage(str(project.folder / ".headstart/runs"))
    for key in KEYS[2:4]:
        write_run(runs, key, 20)
    (other.folder / ".headstart/unsent").mkdir(parents=True)
    (other.folder / ".headstart/unsent/ab.json").write_text(f'{{"curves": ["/a/{KEYS[2]}/curve.jsonl"]}}')
    aliases: dict[Path, dict[str, str]] = {other.folder: {KEYS[1]: "models:/m@current"}}
    monkeypatch.setattr(tracking, "aliased_keys", lambda root: aliases.get(root, {}))

    def kept(*others: Path) -> dict[str, str]:
        plan = gc.make_plan(project.folder, ".headstart/runs", 0.0, projects=others)
        return {run.key: run.reason for run in plan.runs if not run.goes}

    assert set(kept()) == {KEYS[0]}
    assert kept(other.folder) == {
        KEYS[0]: "a revision refers to it",
        KEYS[1]: "models:/m@current is made from it",
        KEYS[2]: "MLflow has not received its curve yet",
    }


def test_gc_keeps_all_results_if_the_mlflow_of_another_project_does_not_answer(
    project, tmp_path_factory, monkeypatch
):
    other = Repository(tmp_path_factory.mktemp("other"))

    def ask(root: Path) -> dict[str, str]:
        if root == other.folder:
            raise ConnectionError("refused")
        return {}

    monkeypatch.setattr(tracking, "aliased_keys", ask)
    plan = gc.make_plan(project.folder, ".headstart/runs", 0.0, projects=[other.folder])
    assert not any(run.goes for run in plan.runs)
    assert f"{other.folder}: MLflow does not answer (refused); all results are kept" in plan.warnings


def test_reading_another_project_creates_nothing_there(tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert tracking.aliased_keys(tmp_path) == {}
    assert list(tmp_path.iterdir()) == []


def test_an_unreadable_unsent_record_is_named(tmp_path):
    file = tmp_path / ".headstart/unsent/ab.json"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"\xff")
    with pytest.raises(ValueError, match=r"unsent/ab\.json is not readable .*; remove it"):
        stored_runs.unsent_curves(tmp_path)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--older-than", "-1"], "--older-than is -1; expected 0 or more days"),
        (["--older-than", "nan"], "--older-than is nan; expected 0 or more days"),
        (["--project", "absent"], "absent: no such folder"),
        (["--params", "absent.yaml"], "absent.yaml: no such file"),
    ],
)
def test_gc_refuses_bad_input(project, words, message):
    done = headstart(project.folder, "gc", *words)
    assert done.returncode == 2
    assert done.stderr.startswith("headstart: ")
    assert message in done.stderr


def test_gc_of_a_bucket_and_of_an_unreachable_one(project, bucket, monkeypatch):
    params = project.folder / "params.yaml"
    params.write_text(params.read_text().replace("storage: .headstart/runs", f"storage: {bucket}"))
    for key in KEYS[:2]:
        write_run(open_storage(bucket), key, 20)
    done = headstart(project.folder, "gc", "--older-than", "0", "--yes")
    assert (done.returncode, done.stderr) == (0, "")
    assert open_storage(bucket).names() == [KEYS[0]]
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    done = headstart(project.folder, "gc", "--older-than", "0", "--yes")
    assert done.returncode == 2
    assert f"headstart: {bucket} cannot be tidied up" in done.stderr
    assert "Could not connect" in done.stderr
