"""Progress on standard error: bars on a terminal, elsewhere a line each half minute."""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, ProgressColumn, TaskID

_LOOK_EVERY_S = 0.5
_SAY_EVERY_S = 30.0  # off a terminal
_NARROW = 100  # columns below which the bar itself is left out, so that name and speed stay


@contextlib.contextmanager
def follow(curve: Path, title: str) -> Iterator[None]:
    """Show the progress of a training while the block runs: step, loss, speed and time left.

    The figures come from the training's curve file, so training in Ray's workers looks like training in this
    process. A run that resumes is said to.
    """
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    figures = TextColumn("{task.percentage:>3.0f} % {task.fields[figures]}")
    description = TextColumn("{task.description}")
    earlier = _last_step(curve) if curve.exists() else None
    if earlier is not None:
        _say(f"{title}: resumes a run that had reached step {earlier.number:,}")
    is_narrow = _console().width < _NARROW
    wide = [] if is_narrow else [BarColumn(), figures, TimeElapsedColumn()]
    with _bar(description, *(wide or [figures]), TimeRemainingColumn()) as bar:
        if bar.disable:
            with _beside(_Lines(curve, title, earlier).watch):
                yield
            return
        task = bar.add_task(title, total=1.0, figures="")
        with _beside(partial(_watch, curve, bar, task, is_narrow)):
            yield


@contextlib.contextmanager
def _beside(watch: Callable[[threading.Event], None]) -> Iterator[None]:
    """Run `watch` in a thread while the block runs; its event is set at the end."""
    over = threading.Event()
    thread = threading.Thread(target=watch, args=(over,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


@dataclass(frozen=True)
class _Step:
    """A step of a training, as its curve has it."""

    number: int
    progress: float  # fraction of the training that is done
    loss: float
    tokens_per_second: float

    @classmethod
    def from_line(cls, line: str) -> Self | None:
        """None for a line without training figures. Raises ValueError for part of a line."""
        record = json.loads(line)
        metrics = record["metrics"]
        if "train/loss" not in metrics:
            return None
        progress, speed = metrics.get("train/progress", 0.0), metrics["train/tokens_per_second"]
        return cls(int(record["step"]), float(progress), float(metrics["train/loss"]), float(speed))

    def figures(self, is_narrow: bool = False) -> str:
        """Loss and speed, whatever the loss is of."""
        speed = self.tokens_per_second
        if is_narrow:
            rounded = f"{speed / 1000:,.0f}k" if speed >= 10_000 else f"{speed:,.0f}"
            return f"loss {self.loss:.2f}, {rounded} tok/s"
        return f"loss {self.loss:.3f}, {speed:,.0f} tokens/s"


@dataclass
class _Lines:
    """Says each half minute how far a training is."""

    curve: Path
    title: str
    earlier: _Step | None = None  # the last one of the run that is resumed
    first: tuple[float, float] | None = None  # time and progress of the first step seen in this process

    def watch(self, over: threading.Event) -> None:
        begun = said = time.monotonic()
        while not over.wait(min(_LOOK_EVERY_S, _SAY_EVERY_S)):
            last, now = self._last_step(), time.monotonic()
            if last is not None and self.first is None:
                self.first = (now, last.progress)
            if now - said < _SAY_EVERY_S:
                continue
            said = now
            if last is None:
                _say(f"{self.title}: no step yet, {now - begun:.0f} s since it began")
            else:
                _say(f"{self.title}: {self.how_far(last, now)}")

    def _last_step(self) -> _Step | None:
        last = _last_step(self.curve) if self.curve.exists() else None
        return None if last == self.earlier else last

    def how_far(self, last: _Step, now: float) -> str:
        """`step 120 of 380, loss 4.321, 8,900 tokens/s, 1.2 minutes left`."""
        progress, total = last.progress, ""
        if progress:
            total = f" of {round(last.number / progress):,}"
        line = f"step {last.number:,}{total}, {last.figures()}"
        if self.first is None or progress <= self.first[1]:
            return line
        left_s = (now - self.first[0]) * (1 - progress) / (progress - self.first[1])
        return f"{line}, {left_s / 60:.1f} minutes left"


@contextlib.contextmanager
def busy(title: str) -> Iterator[None]:
    """Show a spinner and the time elapsed while the block runs."""
    from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

    with _bar(SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), transient=True) as bar:
        bar.add_task(title, total=None)
        with _said_regularly(lambda seconds: f"{title}: {seconds:.0f} s so far", bar.disable):
            yield


@contextlib.contextmanager
def counted(total: int, title: str) -> Iterator[Callable[[], None]]:
    """Show a bar of `total` items; each call of the yielded function advances it by one."""
    from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

    with _bar(*Progress.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn()) as bar:
        task = bar.add_task(title, total=total)
        done = 0

        def how_far(seconds: float) -> str:
            left = f", about {seconds / 60 * (total - done) / done:.1f} minutes left" if done else ""
            return f"{done:,} of {total:,} {title}{left}"

        def advance() -> None:
            nonlocal done
            bar.advance(task)
            done += 1

        with _said_regularly(how_far, bar.disable):
            yield advance


@contextlib.contextmanager
def tallied(title: str) -> Iterator[Callable[[int], None]]:
    """Show how many items there were so far and how many a second; each call adds some."""
    from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

    with _bar(SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), transient=True) as bar:
        task, begun, done = bar.add_task(title, total=None), time.monotonic(), 0

        def so_far(seconds: float) -> str:
            return f"{done:,} {title}, {done / max(seconds, 1e-9):,.0f} a second"

        def add(number: int) -> None:
            nonlocal done
            done += number
            bar.update(task, description=so_far(time.monotonic() - begun))

        with _said_regularly(so_far, bar.disable):
            yield add


@contextlib.contextmanager
def _said_regularly(line: Callable[[float], str], is_wanted: bool) -> Iterator[None]:
    """Say, if wanted, each half minute of the block what `line` makes of the seconds since it began."""
    if not is_wanted:
        yield
        return

    def watch(over: threading.Event) -> None:
        begun = time.monotonic()
        while not over.wait(_SAY_EVERY_S):
            _say(line(time.monotonic() - begun))

    with _beside(watch):
        yield


def stepwise(num_steps: int, title: str) -> Iterator[int]:
    """Yield 0 to `num_steps` - 1 and show a bar."""
    with _bar() as bar:
        yield from bar.track(range(num_steps), description=title)


def _console() -> Console:
    from rich.console import Console

    return Console(stderr=True)


def _bar(*columns: ProgressColumn, transient: bool = False) -> Progress:
    from rich.progress import Progress

    console = _console()
    return Progress(*columns, console=console, transient=transient, disable=not console.is_terminal)


def _watch(curve: Path, bar: Progress, task: TaskID, is_narrow: bool, over: threading.Event) -> None:
    size = -1
    while not over.wait(_LOOK_EVERY_S):
        if curve.exists() and curve.stat().st_size != size:
            size = curve.stat().st_size
            last = _last_step(curve)
            if last:
                number = "" if is_narrow else f"step {last.number:,}, "
                bar.update(task, completed=last.progress, figures=number + last.figures(is_narrow))


def _last_step(curve: Path) -> _Step | None:
    """The step of the last whole line with training figures."""
    for line in reversed(curve.read_text(encoding="utf-8").splitlines()):
        with contextlib.suppress(ValueError):  # the writer may be in the middle of the last one
            step = _Step.from_line(line)
            if step is not None:
                return step
    return None
