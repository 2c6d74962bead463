"""What can be told without a cluster: the settings, what was made already, DVC, who is at work."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path

from pipeline import mounts
from pipeline.doctor.findings import Finding, failure, ok, size, warning
from pipeline.doctor.needs import FACTOR, STAGES, Need, storage_bytes
from pipeline.lease import Holder, holder_of
from pipeline.lr_find import job_of, stage_arguments
from pipeline.params import Direction, Params
from pipeline.storage import join, open_storage

DVC_S = 30.0
_CHECKS_OF_INPUTS = ("tokens", "start", "target_lm", "general_lm", "tokenizer")


def settings(params: Params, needs: Sequence[Need], storage: str) -> Finding:
    workers = params.run.workers or "no Ray, so 1"
    sizes = ", ".join(f"{need.stage} {need.num_parameters / 1e6:.1f} M" for need in needs)
    return ok(
        "settings", f"{params.model.family}: {sizes} parameters; workers: {workers}; storage: {storage}"
    )


def mounted(root: Path, storage: str) -> list[Finding]:
    """Nothing, but where the folder that this project's runs were in is not the one that is there now."""
    try:
        mounts.check(root, storage)
    except FileNotFoundError as error:
        found, _, to_do = str(error).rpartition("; ")
        return [failure("storage", f"{storage}: {found}", to_do)]
    return []


# ----------------------------------------------------------------------------------------------- inputs


def inputs(params: Params, dvc_yaml: Path) -> list[Finding]:
    """Whether what stages have made fits the settings and each other, as the stages will ask it."""
    if not dvc_yaml.exists():
        return [warning("inputs", f"{dvc_yaml} is not there", "run it in the project's folder")]
    findings, fitting, missing = [], [], []
    for stage in STAGES:
        for direction in params.run.directions:
            name = f"{stage}@{direction}"
            given = stage_arguments(dvc_yaml, stage, direction)
            absent = [path for path in _read_by(stage, params, given) if not path.exists()]
            if absent:
                missing += [str(path) for path in absent if str(path) not in missing]
                continue
            problem = _mismatch(stage, direction, params, given)
            if problem is None:
                fitting.append(name)
            else:
                findings.append(
                    warning("inputs", f"{name} would refuse: {problem}",
                            "`dvc repro` makes anew what changed before it; if this stays, do what it says")
                )  # fmt: skip
    told = [f"fit for {', '.join(fitting)}"] if fitting else []
    told += [f"not made yet: {', '.join(missing)}"] if missing else []
    return [*findings, *([ok("inputs", "; ".join(told))] if told else [])]


def _read_by(stage: str, params: Params, given: dict[str, str]) -> Iterator[Path]:
    starts = {params.finetune_classifier.start} if stage == "finetune_classifier" else {"start"}
    for name in _CHECKS_OF_INPUTS:
        if name in given and (name in starts or name in ("tokens", "tokenizer")):
            yield Path(given[name])


def _mismatch(stage: str, direction: Direction, params: Params, given: dict[str, str]) -> str | None:
    from pipeline.corpus.tokenizer import Tokenizer

    try:
        job = job_of(stage, params, given, direction)
        if (
            "tokenizer" in given
            and Tokenizer.load(Path(given["tokenizer"])).sha256 != job.card.tokenizer_sha256
        ):
            return f"{given['tokens']} was encoded with another tokenizer than {given['tokenizer']}"
    except ValueError as error:
        return str(error)
    return None


# -------------------------------------------------------------------------------------------- DVC and git


def tools(root: Path) -> list[Finding]:
    """DVC, its cache and lock file, and git."""
    with ThreadPoolExecutor(2) as pool:  # each takes seconds to start
        asked = [pool.submit(_dvc, root, *words) for words in (("status", "--json"), ("cache", "dir"))]
        status, cache = (future.result() for future in asked)
    return [*_git(root), *_status(root, status), *_cache(cache)]


def _dvc(root: Path, *words: str) -> subprocess.CompletedProcess[str] | None:
    return _run(root, sys.executable, "-m", "dvc", *words)


def _run(root: Path, *command: str) -> subprocess.CompletedProcess[str] | None:
    """None where it takes too long."""
    try:
        return subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=DVC_S)
    except subprocess.TimeoutExpired:
        return None


def _git(root: Path) -> Iterator[Finding]:
    if shutil.which("git") is None:
        yield warning("git", "there is no git", "install it: it says which code made a result")
        return
    done = _run(root, "git", "rev-parse", "--short", "HEAD")
    if done is None or done.returncode:
        to_do = "`git init` and commit: it says which code made a result"
        yield warning("git", f"{root} is in no git repository with a commit", to_do)
    else:
        yield ok("git", f"at commit {done.stdout.strip()}")


def _status(root: Path, done: subprocess.CompletedProcess[str] | None) -> Iterator[Finding]:
    if done is None:
        yield warning(
            "dvc", f"`dvc status` takes more than {DVC_S:.0f} s", "see whether another dvc is at work"
        )
    elif done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        to_do = (
            "wait until the other dvc has ended"
            if "lock" in reason
            else "see `dvc status`, in the project's folder"
        )
        yield failure("dvc", f"`dvc status`: {reason.removeprefix('ERROR: ')}", to_do)
    else:
        stages = json.loads(done.stdout or "{}")
        lock = "dvc.lock is as it should be" if (root / "dvc.lock").exists() else "no dvc.lock yet"
        told = (
            f"{lock}, `dvc repro` would run nothing"
            if not stages
            else f"`dvc repro` would run {len(stages)} stages"
        )
        yield ok("dvc", f"{version('dvc')}; {told}")


def _cache(done: subprocess.CompletedProcess[str] | None) -> Iterator[Finding]:
    if done is None or done.returncode:
        return  # `dvc status` tells what is wrong
    cache = Path(done.stdout.strip().splitlines()[-1])
    there = next(folder for folder in (cache, *cache.parents) if folder.exists())
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        yield failure(
            "dvc cache", f"{cache} cannot be written: {error}",
            "give this user the right to write there, or move it: `dvc cache dir`",
        )  # fmt: skip
    else:
        yield ok("dvc cache", f"{cache} can be written, {size(shutil.disk_usage(there).free)} free")


# ---------------------------------------------------------------------------------------------- storage


def room(params: Params, needs: Sequence[Need], storage: str, free_bytes: int | None) -> Iterator[Finding]:
    """Whether checkpoints fit the storage."""
    if not needs:  # no plan
        return
    wanted = storage_bytes(params, needs)
    largest = max(need.checkpoint_bytes for need in needs)
    told = f"checkpoints of {size(largest)} at most, {size(wanted)} in all"
    to_do = "free some, lower run.keep_checkpoints, or set run.storage to another place"
    if free_bytes is None:
        yield ok("room", f"{told}; how much {storage} holds cannot be asked")
    elif wanted > free_bytes:
        yield failure("room", f"{told}; {size(free_bytes)} are free in {storage}", to_do)
    elif wanted * FACTOR > free_bytes:
        yield warning("room", f"{told}; {size(free_bytes)} are free in {storage}", to_do)
    else:
        yield ok("room", f"{told}; {size(free_bytes)} are free in {storage}")


def leases(storage: str, *, is_usable: bool) -> list[Finding]:
    """Which runs somebody trains, or was training when killed."""
    runs = open_storage(storage).names()
    if not runs and not is_usable:  # it may hold some, where it is mounted
        return [warning("leases", f"who holds a run could not be looked at in {storage}", "see `storage`")]
    with ThreadPoolExecutor(16) as pool:  # a bucket takes its time for each
        holders = list(pool.map(lambda run: holder_of(open_storage(join(storage, run))), runs))
    held = {run: holder for run, holder in zip(runs, holders, strict=True) if holder is not None}
    if not held:
        return [ok("leases", f"no run is held ({len(runs)} folders)")]
    return [ok("leases", f"{run} is held by {_told(holder)}") for run, holder in held.items()]


def _told(holder: Holder) -> str:
    if holder.is_dead:
        return f"{holder}, which is gone: the next one takes over"
    if not holder.process.is_here:
        return f"{holder}; whether it lives cannot be seen from here"
    return str(holder)
