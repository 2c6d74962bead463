"""`headstart gc`: shows what `run.storage` holds and why, and removes what nothing refers to."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from pipeline import tracking
from pipeline.project.params import load
from pipeline.retention import stored_runs
from pipeline.retention.references import References, references
from pipeline.retention.stored_runs import Stored, Verdict, Wanted
from pipeline.storage import marker
from pipeline.storage.address import open_storage
from pipeline.storage.interface import Storage
from pipeline.storage.patience import patiently
from pipeline.terminal.sizes import readable

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True)
class Plan:
    storage: Storage
    verdicts: list[Verdict]
    thinned: dict[str, int]  # key of a run that is kept -> bytes that it loses
    inputs: list[Stored]
    here: list[Path]
    remarks: list[str]

    @property
    def going(self) -> list[Verdict]:
        return [verdict for verdict in self.verdicts if verdict.goes]

    @property
    def removals(self) -> list[tuple[int, Callable[[], bool]]]:
        """Each removal with its bytes; it returns whether it removed them."""
        storage, thinned = self.storage, [each for each in self.verdicts if each.run.key in self.thinned]
        return [
            *((each.run.num_bytes, partial(stored_runs.remove, storage, each.run)) for each in self.going),
            *((self.thinned[each.run.key], partial(stored_runs.thin, storage, each.run)) for each in thinned),
            *((each.num_bytes, partial(stored_runs.remove_input, storage, each)) for each in self.inputs),
            *((_size(path), partial(_remove_here, path)) for path in self.here),
        ]

    @property
    def num_bytes(self) -> int:
        return sum(size for size, _ in self.removals)


def make_plan(
    root: Path, params: Path, older_than_days: float, thins: bool = False, projects: Sequence[Path] = ()
) -> Plan:
    """Decide what goes, from the storage, git and MLflow.

    Args:
        root: the project's folder.
        older_than_days: runs written since then stay.
        thins: also remove what finished runs can do without.
        projects: folders of other projects on the same storage; their revisions, their models in MLflow and
            the curves that they have yet to send count too.

    Raises ValueError for bad input, and if the storage cannot be read.
    """
    if not older_than_days >= 0:
        raise ValueError(f"--older-than is {older_than_days:g}; expected 0 or more days")
    place = load(params).run.storage
    storage = open_storage(place if "://" in place else str((root / place).resolve()))
    found = References()
    for project in (root, *projects):
        found |= references(project)
    aliases, remarks = _aliases((root, *projects))
    if not storage.address.startswith(f"{root.resolve()}/") and not projects:
        remarks.append(
            f"{storage.address} is outside this project: if other projects use it, name their folders with "
            "--project"
        )
    now, unsent = time.time(), "\n".join(map(stored_runs.unsent_curves, (root, *projects)))
    wanted = Wanted(found, aliases, unsent, older_than_days)

    def look() -> tuple[list[Verdict], list[Stored]]:
        marker.check(root, place)
        verdicts = stored_runs.judge(stored_runs.stored_runs(storage), wanted, now)
        return verdicts, stored_runs.stale_inputs(storage, verdicts, older_than_days, now)

    verdicts, inputs = _once(storage, look)
    kept = [verdict.run for verdict in verdicts if not verdict.goes]
    here = stored_runs.stale_here(root, {run.key for run in kept}, unsent, older_than_days, now)
    free = [run for run in kept if thins and not run.holder]
    sizes = {run.key: sum(file.num_bytes for file in stored_runs.superfluous(run)) for run in free}
    thinned = {key: size for key, size in sizes.items() if size}
    return Plan(storage, verdicts, thinned, inputs, here, [*found.remarks, *remarks])


def _aliases(projects: Sequence[Path]) -> tuple[dict[str, str] | None, list[str]]:
    """Keys of the runs of models with an alias, or None with remarks if MLflow does not answer."""
    found: dict[str, str] = {}
    remarks = []
    for project in projects:
        try:
            found |= tracking.aliased_keys(project)
        except ConnectionError as error:
            remarks.append(f"{project}: MLflow does not answer ({error}); all results are kept")
    return None if remarks else found, remarks


def show(plan: Plan) -> None:
    """Print a table of the runs, the oldest first, and sums."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for name in ("run", "of", "state", "size", "last written", ""):
        table.add_column(name, justify="right" if name == "size" else "left", overflow="fold")
    for verdict in plan.verdicts:
        run, fate = verdict.run, "goes" if verdict.goes else f"kept: {verdict.reason}"
        if run.key in plan.thinned:
            fate += f"; {readable(plan.thinned[run.key])} of it goes"
        written = time.strftime("%Y-%m-%d %H:%M", time.localtime(run.written))
        cells = (run.key, run.title, run.state, readable(run.num_bytes), written, fate)
        table.add_row(*cells, style="red" if verdict.goes else None)
    console = Console(highlight=False)
    if plan.verdicts:
        console.print(table)
    for path in plan.here:
        console.print(f"{path} ({readable(_size(path))}) goes")
    if plan.inputs:
        size = readable(sum(each.num_bytes for each in plan.inputs))
        console.print(f"inputs of workers ({len(plan.inputs)} folders, {size}) go")
    for remark in plan.remarks:
        console.print(remark, style="yellow")
    total = readable(sum(verdict.run.num_bytes for verdict in plan.verdicts))
    runs = f"{plan.storage.address}: {len(plan.verdicts)} runs, {total}"
    console.print(f"{runs}; {len(plan.going)} of them go, {readable(plan.num_bytes)} in all")


def carry_out(plan: Plan) -> int:
    """Remove what goes; returns the bytes removed. Raises ValueError if the storage goes away meanwhile."""
    return sum(size for size, remove in plan.removals if _once(plan.storage, remove))


def _remove_here(path: Path) -> bool:
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    return True


def _once(storage: Storage, action: Callable[[], T]) -> T:
    """Call what needs the storage, without a retry."""
    return patiently(action, minutes=0, what=f"{storage.address} cannot be tidied up", warn=log.warning)


def _size(path: Path) -> int:
    return sum(file.lstat().st_size for file in (path, *path.rglob("*")) if file.is_file())
