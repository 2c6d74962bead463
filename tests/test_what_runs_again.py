"""What `dvc repro` runs again, and what survives an update, in a checkout that runs its own code."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.checkout import copy_checkout, held
from tests.route import TINY, list_of_new_checkpoints, wait_for_checkpoint, write_corpora

pytestmark = [pytest.mark.slow, pytest.mark.long]

BIN = Path(sys.executable).parent
LAST = "finetune_classifier@ulmfit"
# And what lies between them: the features that a classifier may read beside its own.
TRAININGS = {"pretrain_lm@ulmfit", "finetune_lm@ulmfit", "read_features@ulmfit", "choose_features", LAST}


def environment(project: Path, *more: Path) -> dict[str, str]:
    """`headstart` runs the code of the project's folder, and not that of this checkout."""
    found = {k: v for k, v in os.environ.items() if k not in ("MLFLOW_TRACKING_URI", "RAY_ADDRESS")}
    return found | {
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(map(str, (*more, project))),
        "OMP_NUM_THREADS": "1",
        "DVC_NO_ANALYTICS": "1",
    }


def command(project: Path, *words: str, path: tuple[Path, ...] = ()) -> str:
    done = subprocess.run(
        [str(BIN / words[0]), *words[1:]], cwd=project, env=environment(project, *path), text=True,
        capture_output=True, timeout=1800,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def run_by(project: Path, *words: str, path: tuple[Path, ...] = ()) -> set[str]:
    """The stages that `dvc repro` runs, up to the classifier."""
    said = command(project, "dvc", "repro", *words, LAST, path=path)
    return set(re.findall(r"Running stage '([^']+)'", said))


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text(encoding="utf-8")
    assert old in text, f"{old!r} is not in {file}"
    file.write_text(text.replace(old, new, 1), encoding="utf-8")


def note_edit(file: Path) -> None:
    """Another line of code that computes nothing else."""
    with file.open("a", encoding="utf-8") as source:
        source.write(f"\n\nUPDATED = {time.time_ns()}\n")


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    folder = copy_checkout(tmp_path_factory.mktemp("own") / "project")
    write_corpora(folder / "in", seed=1)
    (folder / "tiny.yaml").write_text(TINY, encoding="utf-8")
    command(folder, "headstart", "use", "tiny.yaml")
    assert run_by(folder) >= {"recipes", "prepare@general", "train_tokenizer@pieces", *TRAININGS}
    return folder


@pytest.fixture
def project(trained) -> Iterator[Path]:
    """A project that has run, whose code is as it was again after each test."""
    files = [
        *trained.glob("models/**/*.py"),
        *trained.glob("pipeline/**/*.py"),
        trained / "requirements.lock",
    ]
    before = {file: file.read_bytes() for file in files}
    yield trained
    for file, content in before.items():
        if file.read_bytes() != content:
            file.write_bytes(content)


def test_with_nothing_changed_nothing_runs_and_the_status_is_clean(project):
    run_by(project)
    assert run_by(project) == set()
    status = command(project, "dvc", "status", "--with-deps", LAST)
    assert "up to date" in status


def test_rephrased_code_and_a_fix_in_operations_train_nothing_again(project):
    run_by(project)
    edit(project / "models/layers.py", "from __future__", "# In other words.\nfrom __future__")
    schedules = project / "pipeline/training/schedules.py"
    text = re.sub(r"\bwarmup\b", "rise", schedules.read_text(encoding="utf-8"))
    first, second = text.index("\ndef slanted_triangular"), text.index("\ndef rate_fraction")
    last = text.index("\n@dataclass", second)
    swapped = text[:first] + text[second:last] + text[first:second] + text[last:]
    schedules.write_text(swapped, encoding="utf-8")
    edit(project / "pipeline/training/loop.py", "def train(", "# A word of explanation.\ndef train(")
    edit(project / "models/layers.py", '"""', '"""In other words: ')
    edit(project / "pipeline/training/loop.py", "the training loss is", "by now the training loss is")
    for file in ("storage/lease.py", "distributed/launch.py", "tracking/runs.py", "execution/run_stage.py"):
        note_edit(project / "pipeline" / file)
    assert run_by(project) == {"recipes"}


def test_another_torch_trains_again_and_neither_tokenizer_nor_documents_are_made_anew(project, tmp_path):
    info = tmp_path / "torch-99.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 99.0\n", encoding="utf-8")
    lock = project / "requirements.lock"
    before = lock.read_text(encoding="utf-8")
    lock.write_text(re.sub(r"(?m)^torch==.*$", "torch==99.0", before), encoding="utf-8")
    assert run_by(project, path=(tmp_path,)) == {"recipes", *TRAININGS}


def test_a_formula_of_the_schedules_trains_the_three_models_again(project):
    schedules = project / "pipeline/training/schedules.py"
    edit(schedules, "return (1 + p * (ratio - 1)) / ratio", "return (1 + p * (ratio - 1)) / ratio * 0.9")
    assert run_by(project) == {"recipes", *TRAININGS}


def test_finished_work_is_not_thrown_away_when_dvc_died_before_it_recorded_it(project, tmp_path):
    """Only code changed, so settings and inputs are those of dvc.lock; but nobody said `--force`."""
    schedules = project / "pipeline/training/schedules.py"
    edit(schedules, "return (1 + p * (ratio - 1)) / ratio", "return (1 + p * (ratio - 1)) / ratio * 0.8")
    command(project, "dvc", "repro", "recipes")
    known = set((project / ".headstart/runs").iterdir())
    dvc = subprocess.Popen(
        [str(BIN / "dvc"), "repro", "--single-item", "pretrain_lm@ulmfit"], cwd=project,
        env=held(environment(project), "end", tmp_path / "hold"), start_new_session=True,
    )  # fmt: skip
    run = wait_until_finished(project, known, dvc)
    os.killpg(dvc.pid, signal.SIGKILL)
    dvc.wait()
    trained_at = (run / "curve.jsonl").read_text(encoding="utf-8")
    assert "pretrain_lm@ulmfit" in run_by(project)
    assert (run / "curve.jsonl").read_text(encoding="utf-8") == trained_at  # its times of day too


def wait_until_finished(project: Path, known: set[Path], process: subprocess.Popen[bytes]) -> Path:
    """The folder of the new run, once its last checkpoint is there."""
    while process.poll() is None:
        for path in list_of_new_checkpoints(project, known):
            try:
                state = json.loads((path / "state.json").read_text(encoding="utf-8"))
            except FileNotFoundError:  # removed, or still being written
                continue
            if state["finished"]:
                return path.parent.parent
        time.sleep(0.05)
    raise AssertionError("dvc ended before it was to be killed")


def test_by_force_a_finished_training_starts_afresh(project):
    run_by(project)
    (key,) = {json.loads((project / "data/general_lm/ulmfit/state.json").read_text())["key"]}
    curve = project / ".headstart/runs" / key / "curve.jsonl"
    before = curve.read_text(encoding="utf-8")
    command(project, "dvc", "repro", "--force", "--single-item", "pretrain_lm@ulmfit")
    assert curve.read_text(encoding="utf-8") != before


def test_a_run_that_was_killed_resumes_after_an_update_of_operations_code_bit_for_bit(project, tmp_path):
    def pretrain(out: str) -> list[str]:
        return [
            str(BIN / "headstart"), "pretrain_lm", "--tokens", "data/tokens/general/pieces", "--headstart",
            "ulmfit", "--out", out, "--metrics", f"{out}.json", "--curve", f"{out}.csv",
            "--params", "long.yaml",
        ]  # fmt: skip

    settings = (project / "params.yaml").read_text(encoding="utf-8")
    (project / "long.yaml").write_text(
        settings.replace("seed: 42", "seed: 43").replace("epochs: 2.0", "epochs: 6.0"), encoding="utf-8"
    )
    known = set((project / ".headstart/runs").iterdir())
    killed = subprocess.Popen(
        pretrain("out/killed"), cwd=project, start_new_session=True,
        env=held(environment(project), "checkpoint", tmp_path / "hold"),
    )  # fmt: skip
    run = wait_for_checkpoint(project, known, killed)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    assert not (project / "out/killed").exists()
    records = (run / "curve.jsonl").read_text(encoding="utf-8").splitlines()[0]
    for file in (
        "storage/lease.py",
        "artifacts/checkpoint_store.py",
        "distributed/worker.py",
        "tracking/curves.py",
    ):
        note_edit(project / "pipeline" / file)
    subprocess.run(pretrain("out/killed"), cwd=project, env=environment(project), check=True)
    assert (run / "curve.jsonl").read_text(encoding="utf-8").splitlines()[
        0
    ] == records  # resumed, not begun anew
    shutil.rmtree(run)
    subprocess.run(pretrain("out/undisturbed"), cwd=project, env=environment(project), check=True)
    weights = [
        (project / "out" / name / "tensors.safetensors").read_bytes() for name in ("killed", "undisturbed")
    ]
    assert weights[0] == weights[1]
