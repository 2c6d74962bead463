"""`headstart gc`: show what `run.storage` holds and why, and remove what nothing refers to."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pipeline import mounts, retention, tracking
from pipeline.params import load
from pipeline.retention import StoredInput, Verdict, Wanted
from pipeline.revisions import References, references
from pipeline.storage import Storage, open_storage, patiently

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Plan:
    storage: Storage
    verdicts: list[Verdict]
    inputs: list[StoredInput]
    here: list[Path]
    thins: bool
    remarks: list[str]

    @property
    def going(self) -> list[Verdict]:
        return [verdict for verdict in self.verdicts if verdict.goes]

    @property
    def thinned(self) -> list[tuple[Verdict, int]]:
        """What is kept and loses something, with how many bytes."""
        if not self.thins:
            return []
        kept = [verdict for verdict in self.verdicts if not verdict.goes and not verdict.run.holder]
        sizes = [retention.bytes_of(each.run, retention.superfluous(each.run)) for each in kept]
        return [(verdict, size) for verdict, size in zip(kept, sizes, strict=True) if size]

    @property
    def num_bytes(self) -> int:
        """What is won."""
        runs = sum(verdict.run.num_bytes for verdict in self.going) + sum(size for _, size in self.thinned)
        return runs + sum(each.num_bytes for each in self.inputs) + sum(map(_size, self.here))


def make_plan(
    root: Path, params: Path, older_than_days: float, thins: bool = False, projects: Sequence[Path] = ()
) -> Plan:
    """Look at the storage, at git and at MLflow.

    Args:
        root: the project's folder.
        older_than_days: what was written since stays.
        thins: also to remove what finished runs can do without.
        projects: folders of others that use the same storage; their revisions, their models in MLflow, and
            what they still have to tell it count too.

    Raises ValueError for bad input, and where the storage cannot be read.
    """
    if not older_than_days >= 0:
        raise ValueError(f"--older-than is {older_than_days:g}; days are wanted, 0 or more")
    place = load(params).run.storage
    storage = open_storage(place if "://" in place else str((root / place).resolve()))
    found = References()
    for project in (root, *projects):
        found |= references(project)
    aliases, remarks = _aliases((root, *projects))
    if not storage.address.startswith(f"{root.resolve()}/") and not projects:
        remarks.append(
            f"{storage.address} is not within this project: if others use it too, name their folders with "
            "--project"
        )
    now, unsent = time.time(), "\n".join(map(retention.unsent_curves, (root, *projects)))
    wanted = Wanted(found, aliases, unsent, older_than_days)

    def look() -> tuple[list[Verdict], list[StoredInput]]:
        mounts.check(root, place)
        verdicts = retention.judge(retention.stored_runs(storage), wanted, now)
        return verdicts, retention.stale_inputs(storage, verdicts, older_than_days, now)

    verdicts, inputs = _with_the_storage(storage, look)
    kept = {verdict.run.key for verdict in verdicts if not verdict.goes}
    here = retention.stale_here(root, kept, unsent, older_than_days, now)
    return Plan(storage, verdicts, inputs, here, thins, [*found.remarks, *remarks])


def _aliases(projects: Sequence[Path]) -> tuple[dict[str, str] | None, list[str]]:
    found: dict[str, str] = {}
    remarks = []
    for project in projects:
        try:
            found |= tracking.aliased_keys(project)
        except ConnectionError as error:
            remarks.append(f"{project}: MLflow does not answer ({error}); all results are kept")
    return None if remarks else found, remarks


def show(plan: Plan) -> None:
    """A table of the runs, the oldest first, and sums."""
    from rich.console import Console
    from rich.table import Table

    thinned = {verdict.run.key: size for verdict, size in plan.thinned}
    table = Table(box=None, pad_edge=False)
    for name, justify in (("run", "left"), ("of", "left"), ("state", "left"), ("size", "right"),
                          ("last written", "left"), ("", "left")):  # fmt: skip
        table.add_column(name, justify=justify, overflow="fold")  # type: ignore[arg-type]
    for verdict in plan.verdicts:
        run, reason = verdict.run, f"kept: {verdict.reason}"
        if run.key in thinned:
            reason += f"; {readable(thinned[run.key])} of it goes"
        written = time.strftime("%Y-%m-%d %H:%M", time.localtime(run.written))
        cells = (run.key, run.title, run.state, readable(run.num_bytes), written)
        table.add_row(*cells, "goes" if verdict.goes else reason, style="red" if verdict.goes else None)
    console = Console()
    if plan.verdicts:
        console.print(table)
    for path in plan.here:
        console.print(f"{path} ({readable(_size(path))}) goes", highlight=False)
    if plan.inputs:
        size = readable(sum(each.num_bytes for each in plan.inputs))
        console.print(f"inputs of workers ({len(plan.inputs)} folders, {size}) go", highlight=False)
    for remark in plan.remarks:
        console.print(remark, style="yellow", highlight=False)
    total = readable(sum(verdict.run.num_bytes for verdict in plan.verdicts))
    console.print(
        f"{plan.storage.address}: {len(plan.verdicts)} runs, {total}; {len(plan.going)} of them go, "
        f"{readable(plan.num_bytes)} in all",
        highlight=False,
    )


def carry_out(plan: Plan) -> int:
    """Remove; returns how many bytes were. Raises ValueError where the storage goes away meanwhile."""
    tell, storage = log.warning, plan.storage
    steps = [
        *((partial(retention.remove, storage, each.run, tell), each.run.num_bytes) for each in plan.going),
        *((partial(retention.thin, storage, each.run, tell), size) for each, size in plan.thinned),
        *((partial(retention.remove_input, storage, each, tell), each.num_bytes) for each in plan.inputs),
        *((partial(_remove_here, path), _size(path)) for path in plan.here),
    ]
    return sum(size for action, size in steps if _with_the_storage(plan.storage, action))


def _remove_here(path: Path) -> bool:
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    return True


def _with_the_storage(storage: Storage, action: Callable[[], Any]) -> Any:
    return patiently(action, minutes=0, what=f"{storage.address} cannot be tidied up", warn=log.warning)


def _size(path: Path) -> int:
    return sum(file.lstat().st_size for file in (path, *path.rglob("*")) if file.is_file())


def readable(num_bytes: int) -> str:
    """With a decimal unit: `1.2 GB`."""
    size = float(num_bytes)
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
