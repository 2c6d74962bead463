"""Checks that need no cluster: settings, stage inputs, DVC, git, free space and leases."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path

from pipeline.artifacts.links import read_link
from pipeline.doctor.findings import Finding, failure, ok, refusal, warning
from pipeline.doctor.needs import Need, fitting, storage_bytes, trained_stages
from pipeline.execution.lr_find import job_of, stage_arguments
from pipeline.files.git import head
from pipeline.project.params import Params
from pipeline.project.project import Project
from pipeline.project.related import related
from pipeline.storage import marker
from pipeline.storage.address import join, open_storage
from pipeline.storage.lease import Holder, holder_of
from pipeline.terminal.sizes import readable

DVC_S = 30.0


def settings(params: Params, needs: Sequence[Need], storage: str) -> Finding:
    sizes = ", ".join(f"{need.headstart} {need.stage} {need.num_parameters / 1e6:.1f} M" for need in needs)
    workers = params.run.workers or "1, without Ray"
    model = f"{sizes} parameters"
    return ok("settings", f"{model}; workers: {workers}; storage: {storage}")


def mounted(root: Path, storage: str) -> list[Finding]:
    """A failure if the folder that held this project's runs is not mounted any more."""
    try:
        marker.check(root, storage)
    except FileNotFoundError as error:
        return [refusal("storage", f"{storage}: {error}")]
    return []


# ----------------------------------------------------------------------------------------------- inputs


def inputs(project: Project, dvc_yaml: Path) -> list[Finding]:
    """Whether the outputs of earlier stages fit the settings and each other, as training stages check it."""
    if not dvc_yaml.exists():
        return [warning("inputs", f"{dvc_yaml} does not exist", "run this in the project's folder")]
    findings, usable, missing = [], [], dict[str, None]()
    to_do = "run `dvc repro`, which remakes outdated inputs; if this stays, follow the message"
    for stage in trained_stages(project.params):
        for name in project.params.run.headstarts:
            given = stage_arguments(dvc_yaml, stage, name)
            absent = [path for path in _read_by(stage, project, name, given) if not Path(path).exists()]
            missing |= dict.fromkeys(absent)
            problem = "" if absent else _mismatch(stage, name, project, given)
            if problem:
                findings.append(warning("inputs", f"{stage}@{name} would refuse: {problem}", to_do))
            elif not absent:
                usable.append(f"{stage}@{name}")
    lists = (("fit for", usable), ("not made yet:", missing))
    said = "; ".join(f"{what} {', '.join(names)}" for what, names in lists if names)
    return [*findings, ok("inputs", said)] if said else findings


def _read_by(stage: str, project: Project, name: str, given: Mapping[str, str]) -> list[str]:
    """The paths that a training stage reads: its inputs, and models of what its head start is related to."""
    start = "start"
    if stage == "finetune_classifier":
        start = project.head_starts[name].finetune_classifier.start
    inputs = [given[flag] for flag in ("tokens", start, "beside") if flag in given]
    models = [other for relation, other in related(project, name, stage) if relation.reads == "model"]
    return [*inputs, *(str(Path(given["out"]).parent / other) for other in models)]


def _mismatch(stage: str, name: str, project: Project, given: dict[str, str]) -> str:
    """Why the stage would refuse its inputs; empty if it would not."""
    from pipeline.corpus.tokenizer_kinds import load_tokenizer

    try:
        job, link = job_of(stage, project, given, name), read_link(Path(given["tokens"]))
        if load_tokenizer(link["tokenizer"]).sha256 != job.card.tokenizer_sha256:
            return f"{link['tokens']} was encoded with another tokenizer than {link['tokenizer']}"
    except ValueError as error:
        return str(error)
    return ""


# -------------------------------------------------------------------------------------------- DVC and git


def tools(root: Path) -> list[Finding]:
    """DVC, its cache and lock file, and git."""
    with ThreadPoolExecutor(2) as pool:  # DVC takes seconds to start
        status, cache = pool.map(lambda words: _dvc(root, *words), (("status", "--json"), ("cache", "dir")))
    return [_git(root), _status(root, status), *_cache(cache)]


def _dvc(root: Path, *words: str) -> subprocess.CompletedProcess[str] | None:
    """None if it takes too long."""
    command = [sys.executable, "-m", "dvc", *words]
    try:
        return subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=DVC_S)
    except subprocess.TimeoutExpired:
        return None


def _git(root: Path) -> Finding:
    commit = head(root)
    if commit is None:
        found = f"{root} is in no git repository with a commit, or git is not installed"
        return warning("git", found, "install git and commit: a commit says which code made a result")
    return ok("git", f"at commit {commit._replace(id=commit.id[:10])}")


def _status(root: Path, done: subprocess.CompletedProcess[str] | None) -> Finding:
    if done is None:
        return warning("dvc", f"`dvc status` takes over {DVC_S:.0f} s", "see whether another dvc is running")
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        to_do = "wait until the other dvc has exited" if "lock" in reason else "run `dvc status` yourself"
        return failure("dvc", f"`dvc status`: {reason.removeprefix('ERROR: ')}", to_do)
    lock = "dvc.lock exists" if (root / "dvc.lock").exists() else "no dvc.lock yet"
    changed = [name for name, why in json.loads(done.stdout or "{}").items() if why != ["always changed"]]
    stages = f"{len(changed)} changed stage{'s' if len(changed) > 1 else ''}, and what depends on "
    would_run = f"{stages}{'them' if len(changed) > 1 else 'it'}" if changed else "nothing"
    return ok("dvc", f"{version('dvc')}; {lock}, `dvc repro` would run {would_run}")


def _cache(done: subprocess.CompletedProcess[str] | None) -> Iterator[Finding]:
    if done is None or done.returncode:
        return  # `dvc status` says what is wrong
    cache = Path(done.stdout.strip().splitlines()[-1])
    existing = _existing(cache)
    try:
        with tempfile.TemporaryFile(dir=existing):
            yield ok("dvc cache", f"{cache} is writable, {readable(shutil.disk_usage(existing).free)} free")
    except OSError as error:
        to_do = "give this user write permission there, or move it: `dvc cache dir`"
        yield failure("dvc cache", f"{cache} is not writable: {error}", to_do)


def _existing(folder: Path) -> Path:
    """The folder, or the nearest above it that exists."""
    return next(each for each in (folder, *folder.parents) if each.exists())


# ---------------------------------------------------------------------------------------------- storage


def room(params: Params, needs: Sequence[Need], storage: str, *, is_usable: bool) -> list[Finding]:
    """Whether checkpoints fit into the storage; nothing without a plan."""
    if not needs:
        return []
    wanted = storage_bytes(params, needs)
    largest = max(need.checkpoint_bytes for need in needs)
    said = f"checkpoints take up to {readable(largest)} each, {readable(wanted)} if everything trains anew"
    if "://" in storage or not is_usable:
        return [ok("room", f"{said}; the free space of {storage} is not known")]
    free = shutil.disk_usage(_existing(Path(storage))).free
    to_do = "free some space, lower run.keep_checkpoints, or set run.storage to another place"
    return [fitting("room", f"{said}; {readable(free)} are free in {storage}", wanted, free, to_do)]


def leases(storage: str, *, is_usable: bool) -> list[Finding]:
    """The runs whose lease somebody holds."""
    runs = open_storage(storage).names()
    if not runs and not is_usable:  # an unmounted storage may hold some
        return [warning("leases", f"the lease holders in {storage} cannot be read", "see `storage`")]
    with ThreadPoolExecutor(16) as pool:  # each takes a request to a bucket
        holders = list(pool.map(lambda run: holder_of(open_storage(join(storage, run))), runs))
    held = {run: holder for run, holder in zip(runs, holders, strict=True) if holder is not None}
    if not held:
        return [ok("leases", f"no run is held ({len(runs)} folders)")]
    return [ok("leases", f"{run} is held by {_described(holder)}") for run, holder in held.items()]


def _described(holder: Holder) -> str:
    if holder.is_orphan:
        return f"{holder}, an orphan: the next run terminates it and takes over"
    return f"{holder}{'' if holder.process.is_here else '; whether it is alive cannot be seen from here'}"
