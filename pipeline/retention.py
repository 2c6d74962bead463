"""What lies in `run.storage`, what of it is still wanted, and the removal of the rest: `headstart gc`.

    <key>/checkpoints/step-*    of a training, with <key>/curve.jsonl and <key>/lease
    <key>/outcome/step-*        what came of a trial
    <key>/trials.json           the keys of a sweep's trials; <key>/search and <key>/ray: Ray Tune's own
    ray/<key>                   Ray Train's own
    inputs/<sha256>             token shards, on their way to workers; with inputs/<sha256>.whole they count

A run is kept while it is held, while a revision or an alias refers to it, while a sweep that is kept reads
it, and for some days after it was last written. Nothing is removed because something could not be read.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.identity import TRIALS_FILE
from pipeline.inputs import FOLDER, WHOLE
from pipeline.lease import Holder, Lease, LeaseHeldError, acquire, holder_of, user_name
from pipeline.revisions import References
from pipeline.storage import MANIFEST_FILE, SCRATCH_PREFIX, Storage, StoredFile, join, open_storage

Tell = Callable[[str], object]

DAY_S = 86_400.0
_KEY = re.compile(r"[0-9a-f]{16}")
_INPUT = re.compile(  # what `pipeline.inputs` wrote, or was writing
    r"inputs/(?:([0-9a-f]{64})(?:/|\.whole$)|\.([0-9a-f]{64})(?:\.whole)?\.(?:partial|old)-)"
)
_STEP = re.compile(r"(checkpoints|outcome)/(step-[\d.]+)/")
# A holder elsewhere beats every few seconds: after so long without it is dead, whatever the clocks say.
_SILENT_S = DAY_S


@dataclass(frozen=True)
class StoredRun:
    """A run, or what is left of one, as it lies in the storage."""

    key: str
    title: str  # what was trained
    state: str
    files: tuple[StoredFile, ...]  # all but those of the lease
    holder: Holder | None = None
    beat: float = 0.0  # when the holder last gave a sign, in seconds since the epoch
    user: str | None = None  # who trained it last
    trials: frozenset[str] = frozenset()
    is_unfinished: bool = False  # a training that has not come to its end

    @property
    def num_bytes(self) -> int:
        return sum(file.num_bytes for file in self.files)

    @property
    def written(self) -> float:
        """Seconds since the epoch."""
        return max((file.written for file in self.files), default=self.beat)


@dataclass(frozen=True)
class Wanted:
    """All that may speak for keeping a run."""

    references: References
    aliases: Mapping[str, str] | None  # key -> address of a model; None: MLflow does not say
    unsent: str = ""  # names of files with curves that MLflow has not got yet
    older_than_days: float = 14.0
    user: str = field(default_factory=user_name)


@dataclass(frozen=True)
class Verdict:
    run: StoredRun
    reason: str  # why it is kept; none: it goes

    @property
    def goes(self) -> bool:
        return not self.reason


# ---------------------------------------------------------------------------------------- looking


def stored_runs(storage: Storage) -> list[StoredRun]:
    """All runs, the longest untouched first. Raises OSError where the storage does not answer."""
    files: dict[str, list[StoredFile]] = defaultdict(list)
    for file in storage.files():
        first, _, rest = file.path.partition("/")
        key = rest.partition("/")[0] if first == "ray" else first
        if _KEY.fullmatch(key):
            files[key].append(file)
    runs = [_stored_run(storage, key, found) for key, found in files.items()]
    return sorted(runs, key=lambda run: (run.written, run.key))


def _stored_run(storage: Storage, key: str, files: Sequence[StoredFile]) -> StoredRun:
    of_lease = [file for file in files if file.path.startswith(f"{key}/lease/")]
    paths = {file.path.removeprefix(f"{key}/") for file in files}
    trials = _trials(storage, key) if TRIALS_FILE in paths else None
    title, state, is_unfinished = _described(storage, key, paths)
    if trials is not None:
        title, state, is_unfinished = "sweep", f"{len(trials)} trials", False
    run = open_storage(join(storage.address, key))
    return StoredRun(
        key=key,
        title=title,
        state=state,
        files=tuple(file for file in files if file not in of_lease),
        holder=holder_of(run),
        beat=max((file.written for file in of_lease), default=0.0),
        user=_last_user(run),
        trials=frozenset(trials or ()),
        is_unfinished=is_unfinished,
    )


def _trials(storage: Storage, key: str) -> list[str]:
    try:
        return [str(trial) for trial in json.loads(storage.read(f"{key}/{TRIALS_FILE}") or b"[]")]
    except ValueError:  # torn by a power cut; the trials then go by their age
        return []


def _described(storage: Storage, key: str, paths: set[str]) -> tuple[str, str, bool]:
    """What was trained, how far it came, and whether that is not the end."""
    whole = _whole_steps(paths)
    title, state, is_unfinished = "", "", False
    if whole["checkpoints"]:
        title, state, is_unfinished = _of_checkpoint(
            storage.read(f"{key}/checkpoints/{whole['checkpoints'][-1]}/state.json")
        )
    if whole["outcome"]:
        return f"trial, {title}" if title else "trial", "finished", False
    if any(path.startswith("search/") for path in paths):
        return "search", "", False
    return title, state or "no whole checkpoint", is_unfinished or not state


def _whole_steps(paths: set[str]) -> dict[str, list[str]]:
    """Names of checkpoints and of outcomes that have a manifest, the newest last."""
    found: dict[str, list[str]] = {"checkpoints": [], "outcome": []}
    for path in sorted(paths):
        step = _STEP.match(path)
        if step and path.endswith(f"/{MANIFEST_FILE}"):
            found[step[1]].append(step[2])
    return {part: sorted(names) for part, names in found.items()}


def _of_checkpoint(content: bytes | None) -> tuple[str, str, bool]:
    try:
        state: Any = json.loads(content or b"")
        title = f"{state['card']['stage']} {state['card']['direction']}"
        if state["finished"]:
            return title, "finished", False
        return title, f"step {state['step']:,} of {state['num_steps']:,}", True
    except (ValueError, KeyError, TypeError):
        return "", "unreadable", False


def _last_user(run: Storage) -> str | None:
    names = [name for name in run.names("lease") if name.endswith(".json")]
    try:
        return Holder.from_json(run.read(f"lease/{names[-1]}") or b"").user if names else None
    except ValueError:
        return None


# ---------------------------------------------------------------------------------------- judging


def judge(runs: Sequence[StoredRun], wanted: Wanted, now: float) -> list[Verdict]:
    """Which runs stay, and why."""
    reasons = {run.key: _reason(run, wanted, now) for run in runs}
    read_by = {trial: run.key for run in runs if reasons[run.key] for trial in run.trials}
    for run in runs:
        sweep = read_by.get(run.key)
        if sweep and not reasons[run.key]:
            reasons[run.key] = f"a trial of {sweep}"
    return [Verdict(run, reasons[run.key]) for run in runs]


def _reason(run: StoredRun, wanted: Wanted, now: float) -> str:
    days = wanted.older_than_days
    if run.holder and (run.holder.process.is_here or now - run.beat < max(_SILENT_S, days * DAY_S)):
        return f"held by {run.holder}"
    if run.key in wanted.references.keys:
        return "a revision refers to it"
    if wanted.aliases and run.key in wanted.aliases:
        return f"{wanted.aliases[run.key]} is made from it"
    if run.key in wanted.unsent:
        return "MLflow has not got its curve yet"
    if now - run.written < days * DAY_S:
        return f"written in the last {days:g} days"
    if run.user not in (None, wanted.user):
        return f"{run.user}'s"
    if not run.is_unfinished and run.written <= wanted.references.unknown_until:
        return "a revision that does not say may refer to it"
    if not run.is_unfinished and wanted.aliases is None:
        return "MLflow does not say whether an alias refers to it"
    return ""


# ---------------------------------------------------------------------------------------- removing


def remove(storage: Storage, run: StoredRun, tell: Tell) -> bool:
    """Remove a run; whether it was, or somebody has begun it since it was looked at. Raises OSError.

    Its lease is held until nothing else is left, so that nobody begins it meanwhile.
    """
    place = open_storage(join(storage.address, run.key))
    with _held(storage, run, tell) as lease:
        if lease is None:
            return False
        for part in ("outcome", "checkpoints"):
            for step in place.names(part):
                place.remove(f"{part}/{step}")
        for name in place.names():
            if name != "lease":
                place.remove(name)
        storage.remove(f"ray/{run.key}")
        lease.remove()
    storage.prune(run.key)
    return True


@contextlib.contextmanager
def _held(storage: Storage, run: StoredRun, tell: Tell) -> Iterator[Lease | None]:
    """The lease of a run; None where another one has it, or has changed the run since it was looked at."""
    try:
        lease = acquire(join(storage.address, run.key), tell=tell)
    except LeaseHeldError as error:
        tell(f"{run.key} is left as it is: {error}")
        yield None
        return
    try:
        now = [file for file in storage.files(run.key) if not file.path.startswith(f"{run.key}/lease/")]
        changed = set(now) - set(run.files)
        if changed:
            tell(f"{run.key} is left as it is: it was written to meanwhile")
        yield None if changed else lease
    finally:
        lease.release()


def superfluous(run: StoredRun) -> list[str]:
    """Paths of what a finished run can do without: checkpoints but the last, of an ended trial all."""
    steps = _whole_steps({file.path.removeprefix(f"{run.key}/") for file in run.files})
    if run.state != "finished":
        return []
    kept = 0 if steps["outcome"] else 1
    names = steps["checkpoints"][: len(steps["checkpoints"]) - kept]
    return [f"{run.key}/checkpoints/{name}" for name in names]


def bytes_of(run: StoredRun, paths: Sequence[str]) -> int:
    below = tuple(f"{path}/" for path in paths)
    return sum(file.num_bytes for file in run.files if file.path.startswith(below))


def thin(storage: Storage, run: StoredRun, tell: Tell) -> bool:
    """Remove what is superfluous, where what then remains is whole; whether it was. Raises OSError."""
    from pipeline.training.checkpoint import verify_folder

    part = "outcome" if any("/outcome/" in file.path for file in run.files) else "checkpoints"
    with _held(storage, run, tell) as lease:
        if lease is None:
            return False
        kept = f"{run.key}/{part}/{storage.names(f'{run.key}/{part}')[-1]}"
        try:
            with storage.opened(kept) as folder:
                verify_folder(folder)
        except ValueError as error:
            tell(f"{run.key} is left as it is: {error}")
            return False
        for path in superfluous(run):
            storage.remove(path)
    return True


# ------------------------------------------------------------------------------------- beside runs


@dataclass(frozen=True)
class StoredInput:
    """What lies in the storage of a folder that was sent to workers."""

    digest: str
    files: tuple[StoredFile, ...]

    @property
    def num_bytes(self) -> int:
        return sum(file.num_bytes for file in self.files)

    @property
    def written(self) -> float:
        """Seconds since the epoch. One that is used again has its marker written again."""
        return max(file.written for file in self.files)


def stale_inputs(storage: Storage, verdicts: Sequence[Verdict], days: float, now: float) -> list[StoredInput]:
    """What was sent to workers, once no run is held any more. Raises OSError."""
    if any(verdict.run.holder for verdict in verdicts):
        return []
    return [each for each in _stored_inputs(storage) if now - each.written >= days * DAY_S]


def _stored_inputs(storage: Storage) -> list[StoredInput]:
    files: dict[str, list[StoredFile]] = defaultdict(list)
    for file in storage.files(FOLDER):
        name = _INPUT.match(file.path)
        if name:
            files[name[1] or name[2]].append(file)
    return [StoredInput(digest, tuple(sorted(found))) for digest, found in sorted(files.items())]


def remove_input(storage: Storage, stale: StoredInput, tell: Tell) -> bool:
    """Remove all of it, unless it was sent again since it was looked at; whether it was. Raises OSError.

    Its marker goes first: without it the rest counts for nothing.
    """
    if {each.digest: each for each in _stored_inputs(storage)}.get(stale.digest) != stale:
        tell(f"{FOLDER}/{stale.digest} is left as it is: it was written to meanwhile")
        return False
    storage.remove(f"{FOLDER}/{stale.digest}{WHOLE}")
    for folder in {"/".join(file.path.split("/")[:2]) for file in stale.files}:
        storage.remove(folder)
    if not storage.files(FOLDER):
        storage.prune(FOLDER)
    return True


def stale_here(root: Path, kept: set[str], unsent: str, days: float, now: float) -> list[Path]:
    """What is left on this machine: curves and locks of runs that are no more, files of killed processes."""
    folders = [(root / ".headstart/curves", kept), (root / ".headstart/locks", set[str]())]
    of_runs = [path for folder, stays in folders if folder.is_dir() for path in sorted(folder.iterdir())
               if path.stem not in stays and path.stem not in unsent]  # fmt: skip
    old = [path for path in of_runs if now - path.stat().st_mtime >= days * DAY_S]
    return [*old, *_scratch_of_the_dead()]


def _scratch_of_the_dead() -> list[Path]:
    import psutil

    found = []
    for path in sorted(Path(tempfile.gettempdir()).glob(f"{SCRATCH_PREFIX}*")):
        name = re.fullmatch(rf"{SCRATCH_PREFIX}(\d+)-\w+", path.name)
        if name and path.lstat().st_uid == os.getuid() and not psutil.pid_exists(int(name[1])):
            found.append(path)
    return found


def unsent_curves(root: Path) -> str:
    """All that is noted of what MLflow has still to be told. Raises ValueError for what is no text."""
    texts = []
    for path in (root / ".headstart/unsent").glob("*.json"):
        with contextlib.suppress(FileNotFoundError):  # sent meanwhile
            try:
                texts.append(path.read_text(encoding="utf-8"))
            except UnicodeDecodeError as error:
                raise ValueError(
                    f"{path} does not hold the end of a run ({error}); remove it, and repeat the command"
                ) from error
    return "\n".join(texts)
