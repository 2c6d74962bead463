"""Progress of a training, drawn from its curve file: the same for this process and for Ray's workers."""

from __future__ import annotations

import contextlib
import json
import math
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_LOOK_EVERY_S = 0.5


@contextlib.contextmanager
def follow(curve: Path, title: str) -> Iterator[None]:
    """Draw a bar with step, loss, speed and time left while the block runs; nothing off a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} % {task.fields[figures]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    over = threading.Event()
    with Progress(*columns, console=console) as bar:
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
    """Show that the block is at work, and for how long; nothing off a terminal."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        bar.add_task(title, total=None)
        yield


@contextlib.contextmanager
def counted(total: int, title: str) -> Iterator[Callable[[], None]]:
    """A bar of things done, advanced by what is yielded; nothing off a terminal."""
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (*Progress.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(title, total=total)
        yield lambda: bar.advance(task)


def stepwise(num_steps: int, title: str) -> Iterator[int]:
    """The numbers from 0, with a bar; nothing off a terminal."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    yield from track(range(num_steps), title, console=console, disable=not console.is_terminal)


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
