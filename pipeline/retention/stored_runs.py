"""Lists what is in `run.storage`, judges what is still wanted, and removes the rest, for `headstart gc`.

    <key>/checkpoints/step-*    of a training, with <key>/curve.jsonl and <key>/lease
    <key>/embedding             the training of its embedding before it; <key>/start: what it began with
    <key>/outcome/step-*        the result of a trial
    <key>/trials.json           the keys of a sweep's trials; <key>/search and <key>/ray belong to Ray Tune
    ray/<key>                   belongs to Ray Train
    inputs/<sha256>             token shards for workers; they count only along with inputs/<sha256>.whole

A run is kept while somebody holds it, while a revision or an alias refers to it, while a kept sweep reads it,
and for some days after it was last written. A failure to read something never removes anything.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import psutil

from pipeline.files.manifest import MANIFEST_FILE
from pipeline.identity.key import TRIALS_FILE
from pipeline.retention.references import References
from pipeline.storage.address import join, open_storage
from pipeline.storage.bucket import SCRATCH_PREFIX
from pipeline.storage.input_shipping import FOLDER, MARKER_SUFFIX
from pipeline.storage.interface import Storage, StoredFile
from pipeline.storage.lease import Holder, Lease, acquire, holder_of, last_holder, user_name

log = logging.getLogger(__name__)

DAY_S = 86_400.0
_KEY = re.compile(r"[0-9a-f]{16}")
_INPUT = re.compile(  # what `pipeline.storage.input_shipping` has written or was writing
    r"inputs/(?:([0-9a-f]{64})(?:/|\.whole$)|\.([0-9a-f]{64})(?:\.whole)?\.(?:partial|old)-)"
)
_STEP = re.compile(rf"(checkpoints|outcome)/(step-[\d.]+)/{re.escape(MANIFEST_FILE)}")


@dataclass(frozen=True)
class Stored:
    """A run or an input, or what is left of one."""

    key: str  # an input's SHA-256
    files: tuple[StoredFile, ...]  # without those of a run's lease

    @property
    def num_bytes(self) -> int:
        return sum(file.num_bytes for file in self.files)

    @property
    def written(self) -> float:
        """Seconds since the epoch. A new use of an input rewrites its marker."""
        return max((file.written for file in self.files), default=0.0)


@dataclass(frozen=True)
class StoredRun(Stored):
    title: str = ""  # what was trained
    state: str = ""
    is_unfinished: bool = False
    holder: Holder | None = None
    beat: float = 0.0  # the last sign of life of its lease, in seconds since the epoch
    user: str | None = None  # who trained it last
    trials: frozenset[str] = frozenset()  # of a sweep
    reason: str = ""  # for keeping it, as `judge` found; empty if it goes

    @property
    def written(self) -> float:
        return super().written or self.beat

    @property
    def goes(self) -> bool:
        return not self.reason


@dataclass(frozen=True)
class KeepRules:
    """All that a run is kept for."""

    references: References
    aliases: Mapping[str, str] | None  # key -> address of a model; None if MLflow does not answer
    unsent: str = ""  # names of curve files that MLflow has not received yet
    older_than_days: float = 14.0
    user: str = field(default_factory=user_name)


# ---------------------------------------------------------------------------------------- looking


def stored_runs(storage: Storage) -> list[StoredRun]:
    """All runs, the longest untouched first. Raises OSError if the storage does not answer."""
    files: dict[str, list[StoredFile]] = defaultdict(list)
    for file in storage.files():
        first, _, rest = file.path.partition("/")
        key = rest.partition("/")[0] if first == "ray" else first
        if _KEY.fullmatch(key):
            files[key].append(file)
    runs = [_stored_run(storage, key, own) for key, own in files.items()]
    return sorted(runs, key=lambda run: (run.written, run.key))


def _stored_run(storage: Storage, key: str, files: Sequence[StoredFile]) -> StoredRun:
    run = open_storage(join(storage.address, key))
    beats = {file: file.written for file in files if file.path.startswith(f"{key}/lease/")}
    last = last_holder(run)
    description = _description(run, {file.path.removeprefix(f"{key}/") for file in files})
    return StoredRun(
        key=key,
        files=tuple(file for file in files if file not in beats),
        holder=holder_of(run),
        beat=max(beats.values(), default=0.0),
        user=last.user if last else None,
        title=description.title,
        state=description.state,
        is_unfinished=description.is_unfinished,
        trials=description.trials,
    )


class _Description(NamedTuple):
    title: str = ""
    state: str = ""
    is_unfinished: bool = False  # a training
    trials: frozenset[str] = frozenset()  # of a sweep


def _description(run: Storage, paths: set[str]) -> _Description:
    if TRIALS_FILE in paths:
        trials: list[str] = []
        with contextlib.suppress(ValueError):  # torn by a power cut; the trials are then judged by their age
            trials = json.loads(run.read(TRIALS_FILE) or b"[]")
        return _Description("sweep", f"{len(trials)} trials", trials=frozenset(trials))
    if any(path.startswith("search/") for path in paths):
        return _Description("search")
    title, state, is_unfinished = "", "no whole checkpoint", True
    checkpoints = _whole_steps(paths, "checkpoints")
    if checkpoints:
        try:
            content = json.loads(run.read(f"checkpoints/{checkpoints[-1]}/state.json") or b"")
            title = " ".join(content["card"][name] for name in ("stage", "family", "direction"))
            is_unfinished = not content["finished"]
            state = f"step {content['step']:,} of {content['num_steps']:,}" if is_unfinished else "finished"
        except (ValueError, KeyError, TypeError):
            title, state, is_unfinished = "", "unreadable", False
    if _whole_steps(paths, "outcome"):
        title, state, is_unfinished = f"trial, {title}" if title else "trial", "finished", False
    return _Description(title, state, is_unfinished)


def _whole_steps(paths: set[str], part: str) -> list[str]:
    """Names of the checkpoints or outcomes that have a manifest, the newest last."""
    steps = (_STEP.fullmatch(path) for path in paths)
    return sorted(step[2] for step in steps if step and step[1] == part)


# ---------------------------------------------------------------------------------------- judging


def judge(runs: Sequence[StoredRun], rules: KeepRules, now: float) -> list[StoredRun]:
    """The runs, each with the reason to keep it."""
    reasons = {run.key: _reason(run, rules, now) for run in runs}
    kept_trials = {trial: f"a trial of {run.key}" for run in runs if reasons[run.key] for trial in run.trials}
    return [replace(run, reason=reasons[run.key] or kept_trials.get(run.key, "")) for run in runs]


def _reason(run: StoredRun, rules: KeepRules, now: float) -> str:
    days = rules.older_than_days
    # Without a beat for a day, a holder elsewhere is dead, however much the clocks differ.
    if run.holder and (run.holder.process.is_here or now - run.beat < max(1.0, days) * DAY_S):
        return f"held by {run.holder}"
    if run.key in rules.references.keys:
        return "a revision refers to it"
    if rules.aliases and run.key in rules.aliases:
        return f"{rules.aliases[run.key]} is made from it"
    if run.key in rules.unsent:
        return "MLflow has not received its curve yet"
    if now - run.written < days * DAY_S:
        return f"written in the last {days:g} days"
    if run.user not in (None, rules.user):
        return f"{run.user}'s"
    if not run.is_unfinished and run.written <= rules.references.unknown_until:
        return "a revision that cannot be read may refer to it"
    if not run.is_unfinished and rules.aliases is None:
        return "MLflow does not say whether an alias refers to it"
    return ""


# ---------------------------------------------------------------------------------------- removing


def remove(storage: Storage, run: StoredRun) -> None:
    """Remove a run. Raises OSError, and ValueError as `_leased` does.

    This process holds the run's lease until nothing else is left, so that nobody resumes it meanwhile.
    """
    folder = open_storage(join(storage.address, run.key))
    with _leased(storage, run) as lease:
        steps = [f"{part}/{step}" for part in ("outcome", "checkpoints") for step in folder.names(part)]
        for path in [*steps, *folder.names()]:
            if path != "lease":
                folder.remove(path)
        storage.remove(f"ray/{run.key}")
        lease.remove()
    storage.prune(run.key)


@contextlib.contextmanager
def _leased(storage: Storage, run: StoredRun) -> Iterator[Lease]:
    """Hold the lease of a run. Raises ValueError if another process does, or has changed the run since."""
    with acquire(join(storage.address, run.key), tell=log.warning) as lease:
        now = {file for file in storage.files(run.key) if not file.path.startswith(f"{run.key}/lease/")}
        if now - set(run.files):
            raise ValueError("it was written to in the meantime")
        yield lease


def superfluous(run: StoredRun) -> list[StoredFile]:
    """Files that a finished run can do without: all checkpoints but the last, or all if it has an outcome."""
    if run.state != "finished":
        return []
    paths = {file.path.removeprefix(f"{run.key}/") for file in run.files}
    checkpoints = _whole_steps(paths, "checkpoints")
    if not _whole_steps(paths, "outcome"):
        checkpoints = checkpoints[:-1]
    folders = tuple(f"{run.key}/checkpoints/{name}/" for name in checkpoints)
    return [file for file in run.files if file.path.startswith(folders)]


def thin(storage: Storage, run: StoredRun) -> None:
    """Remove the superfluous files of a run.

    Raises OSError, and ValueError as `_leased` or for a torn rest.
    """
    from pipeline.artifacts.tensor_folder import verify_folder

    part = "outcome" if any("/outcome/" in file.path for file in run.files) else "checkpoints"
    with _leased(storage, run):
        kept = f"{run.key}/{part}/{storage.names(f'{run.key}/{part}')[-1]}"
        with storage.reading(kept) as folder:
            verify_folder(folder)
        for step in {file.path.rpartition("/")[0] for file in superfluous(run)}:
            storage.remove(step)


# --------------------------------------------------------------------------- inputs, and this machine


def stale_inputs(storage: Storage, runs: Sequence[StoredRun], days: float, now: float) -> list[Stored]:
    """Inputs that were shipped long ago; none while any run is held. Raises OSError."""
    if any(run.holder for run in runs):
        return []
    return [stored for stored in _stored_inputs(storage) if now - stored.written >= days * DAY_S]


def _stored_inputs(storage: Storage) -> list[Stored]:
    files: dict[str, list[StoredFile]] = defaultdict(list)
    for file in storage.files(FOLDER):
        name = _INPUT.match(file.path)
        if name:
            files[name[1] or name[2]].append(file)
    return [Stored(digest, tuple(sorted(own))) for digest, own in sorted(files.items())]


def remove_input(storage: Storage, stale: Stored) -> None:
    """Remove an input. Raises OSError, and ValueError if it was shipped again since it was listed.

    Its marker goes first: without it the rest does not count.
    """
    if stale not in _stored_inputs(storage):
        raise ValueError("it was written to in the meantime")
    storage.remove(f"{FOLDER}/{stale.key}{MARKER_SUFFIX}")
    for path in {"/".join(file.path.split("/")[:2]) for file in stale.files}:
        storage.remove(path)
    if not storage.files(FOLDER):
        storage.prune(FOLDER)


def stale_here(root: Path, kept: set[str], unsent: str, days: float, now: float) -> list[Path]:
    """Leftovers on this machine: curves of removed runs, temporary folders of killed processes."""
    leftovers = [
        path
        for path in sorted((root / ".headstart/curves").glob("*"))
        if path.stem not in kept and path.stem not in unsent and now - path.stat().st_mtime >= days * DAY_S
    ]
    for path in sorted(Path(tempfile.gettempdir()).glob(f"{SCRATCH_PREFIX}*")):
        process = re.fullmatch(rf"{SCRATCH_PREFIX}(\d+)-\w+", path.name)
        if process and path.lstat().st_uid == os.getuid() and not psutil.pid_exists(int(process[1])):
            leftovers.append(path)
    return leftovers


def unsent_curves(root: Path) -> str:
    """All records of what MLflow has yet to receive. Raises ValueError for a file that is no text."""
    texts = []
    for path in (root / ".headstart/unsent").glob("*.json"):
        try:
            texts.append(path.read_text(encoding="utf-8"))
        except FileNotFoundError:  # sent in the meantime
            continue
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{path} is not readable ({error}); remove it, and repeat the command"
            ) from error
    return "\n".join(texts)
