"""`headstart gc`: shows what `run.storage` holds and why, and removes what nothing refers to."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

from pipeline import tracking
from pipeline.retention import stored_runs
from pipeline.retention.references import References, references
from pipeline.retention.stored_runs import KeepRules, Stored, StoredRun
from pipeline.storage import marker
from pipeline.storage.address import open_storage
from pipeline.storage.input_shipping import FOLDER
from pipeline.storage.interface import Storage
from pipeline.storage.patience import StorageError, patiently
from pipeline.terminal.sizes import readable

log = logging.getLogger(__name__)

T = TypeVar("T")


class Removal(NamedTuple):
    what: str  # key of a run, folder of an input, or path on this machine
    num_bytes: int  # less than the run has if it is only thinned
    carry_out: Callable[[], None]  # raises ValueError, with the reason, if it has to be kept after all


_WIDTH = 200  # columns of the table off a terminal


@dataclass(frozen=True)
class Cleanup:
    storage: Storage
    runs: list[StoredRun]  # as judged
    removals: list[Removal]
    warnings: list[str]

    @property
    def num_bytes(self) -> int:
        return sum(removal.num_bytes for removal in self.removals)


def make_plan(
    root: Path, address: str, older_than_days: float, thins: bool = False, projects: Sequence[Path] = ()
) -> Cleanup:
    """Decide what goes, from the storage, git and MLflow.

    Args:
        root: the project's folder.
        address: `run.storage`.
        older_than_days: runs written since then stay.
        thins: also remove what finished runs can do without.
        projects: folders of other projects on the same storage; their revisions, their models in MLflow and
            the curves that they have yet to send count too.

    Raises ValueError for bad input, and if the storage cannot be read.
    """
    if not older_than_days >= 0:
        raise ValueError(f"--older-than is {older_than_days:g}; expected 0 or more days")
    storage = open_storage(address if "://" in address else str((root / address).resolve()))
    named = References()
    for project in (root, *projects):
        named |= references(project)
    aliases, warnings = _aliases((root, *projects))
    if not storage.address.startswith(f"{root.resolve()}/") and not projects:
        warnings.append(
            f"{storage.address} is outside this project: if other projects use it, name their folders with "
            "--project"
        )
    now, unsent = time.time(), "\n".join(map(stored_runs.unsent_curves, (root, *projects)))
    rules = KeepRules(named, aliases, unsent, older_than_days)

    def look() -> tuple[list[StoredRun], list[Stored]]:
        marker.check(root, address)
        runs = stored_runs.judge(stored_runs.stored_runs(storage), rules, now)
        return runs, stored_runs.stale_inputs(storage, runs, older_than_days, now)

    runs, inputs = _once(storage, look)
    removals = []
    for run in runs:
        thinned = sum(file.num_bytes for file in stored_runs.superfluous(run)) if thins else 0
        if run.goes:
            removals.append(Removal(run.key, run.num_bytes, partial(stored_runs.remove, storage, run)))
        elif thinned and not run.holder:
            removals.append(Removal(run.key, thinned, partial(stored_runs.thin, storage, run)))
    for stored in inputs:
        remove = partial(stored_runs.remove_input, storage, stored)
        removals.append(Removal(f"{FOLDER}/{stored.key}", stored.num_bytes, remove))
    kept = {run.key for run in runs if not run.goes}
    for path in stored_runs.stale_here(root, kept, unsent, older_than_days, now):
        removals.append(Removal(str(path), _size(path), partial(_remove_here, path)))
    return Cleanup(storage, runs, removals, [*named.warnings, *warnings])


def _aliases(projects: Sequence[Path]) -> tuple[dict[str, str] | None, list[str]]:
    """Keys of the runs of models with an alias, or None with warnings if MLflow does not answer."""
    address_of: dict[str, str] = {}
    warnings = []
    for project in projects:
        try:
            address_of |= tracking.aliased_keys(project)
        except ConnectionError as error:
            warnings.append(f"{project}: MLflow does not answer ({error}); all results are kept")
    return None if warnings else address_of, warnings


def show(plan: Cleanup) -> None:
    """Print a table of the runs, the oldest first, what else goes, and sums."""
    from rich.console import Console
    from rich.table import Table

    going = {removal.what: readable(removal.num_bytes) for removal in plan.removals}
    table = Table(box=None, pad_edge=False)
    for name in ("run", "of", "state", "size", "last written", ""):
        table.add_column(name, justify="right" if name == "size" else "left", overflow="fold")
    for run in plan.runs:
        size = going.pop(run.key, None)
        fate = "goes" if run.goes else f"kept: {run.reason}" + (f"; {size} of it goes" if size else "")
        written = time.strftime("%Y-%m-%d %H:%M", time.localtime(run.written))
        cells = (run.key, run.title, run.state, readable(run.num_bytes), written, fate)
        table.add_row(*cells, style="red" if run.goes else None)
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_WIDTH)  # so that a key stays in one piece
    if plan.runs:
        console.print(table)
    for what, size in going.items():
        console.print(f"{what} ({size}) will be removed", markup=False)
    for warning in plan.warnings:
        console.print(warning, style="yellow", markup=False)
    runs = f"{len(plan.runs)} runs, {readable(sum(run.num_bytes for run in plan.runs))}"
    going_runs = (
        f"{sum(run.goes for run in plan.runs)} of them will be removed, {readable(plan.num_bytes)} in all"
    )
    console.print(f"{plan.storage.address}: {runs}; {going_runs}")


def carry_out(plan: Cleanup) -> int:
    """Remove what goes; returns the bytes removed. Raises StorageError if the storage goes away meanwhile."""
    removed = 0
    for removal in plan.removals:
        try:
            _once(plan.storage, removal.carry_out)
            removed += removal.num_bytes
        except StorageError:
            raise
        except ValueError as error:
            log.warning("%s is kept: %s", removal.what, error)
    return removed


def _remove_here(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def _once(storage: Storage, action: Callable[[], T]) -> T:
    """Call what needs the storage, without a retry."""
    return patiently(action, minutes=0, what=f"{storage.address} cannot be tidied up", warn=log.warning)


def _size(path: Path) -> int:
    return sum(file.lstat().st_size for file in (path, *path.rglob("*")) if file.is_file())
