"""Progress bars on standard error; off a terminal, nothing is drawn."""

from __future__ import annotations

import contextlib
import json
import math
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn, TaskID

_LOOK_EVERY_S = 0.5


@contextlib.contextmanager
def follow(curve: Path, title: str) -> Iterator[None]:
    """Show the progress of a training while the block runs: step, loss, speed and time left.

    The figures come from the training's curve file, so training in Ray's workers looks like training in this
    process.
    """
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    figures = TextColumn("{task.percentage:>3.0f} % {task.fields[figures]}")
    description = TextColumn("{task.description}")
    over = threading.Event()
    with _bar(description, BarColumn(), figures, TimeElapsedColumn(), TimeRemainingColumn()) as bar:
        if bar.disable:
            yield
            return
        task = bar.add_task(title, total=1.0, figures="")
        thread = threading.Thread(target=_watch, args=(curve, bar, task, over), daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


@contextlib.contextmanager
def busy(title: str) -> Iterator[None]:
    """Show a spinner and the time elapsed while the block runs."""
    from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

    with _bar(SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), transient=True) as bar:
        bar.add_task(title, total=None)
        yield


@contextlib.contextmanager
def counted(total: int, title: str) -> Iterator[Callable[[], None]]:
    """Show a bar of `total` items; each call of the yielded function advances it by one."""
    from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

    with _bar(*Progress.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn()) as bar:
        task = bar.add_task(title, total=total)
        yield lambda: bar.advance(task)


def stepwise(num_steps: int, title: str) -> Iterator[int]:
    """Yield 0 to `num_steps` - 1 and show a bar."""
    with _bar() as bar:
        yield from bar.track(range(num_steps), description=title)


def _bar(*columns: ProgressColumn, transient: bool = False) -> Progress:
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    return Progress(*columns, console=console, transient=transient, disable=not console.is_terminal)


def _watch(curve: Path, bar: Progress, task: TaskID, over: threading.Event) -> None:
    size = -1
    while not over.wait(_LOOK_EVERY_S):
        if curve.exists() and curve.stat().st_size != size:
            size = curve.stat().st_size
            last = _last_record(curve)
            if last:
                bar.update(task, completed=last["metrics"].get("train/progress", 0.0), figures=_figures(last))


def _last_record(curve: Path) -> dict[str, Any] | None:
    """The last whole line with training figures."""
    for line in reversed(curve.read_text(encoding="utf-8").splitlines()):
        with contextlib.suppress(ValueError):  # the writer may be in the middle of the last one
            record: dict[str, Any] = json.loads(line)
            if "train/loss" in record["metrics"]:
                return record
    return None


def _figures(record: dict[str, Any]) -> str:
    metrics = record["metrics"]
    loss = float(metrics["train/loss"])
    return (
        f"step {record['step']:,}  loss {loss:.3f} (perplexity {math.exp(min(loss, 50)):,.0f})  "
        f"{float(metrics['train/tokens_per_second']):,.0f} tokens/s"
    )
