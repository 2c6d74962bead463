"""The findings of checks, their time limits, and how they are printed."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from typing import Literal, TypeVar

State = Literal["ok", "warning", "failure"]
T = TypeVar("T")

CHECK_S = 60.0
HANGS = "find out why it hangs: the network, the storage, or a busy machine"


@dataclass(frozen=True)
class Finding:
    check: str
    state: State
    found: str  # one line, with figures
    to_do: str = ""  # empty if the state is ok

    def __post_init__(self) -> None:
        assert (self.state == "ok") == (not self.to_do), f"{self.check}: the finding does not say what to do"


def ok(check: str, found: str) -> Finding:
    return Finding(check, "ok", found)


def warning(check: str, found: str, to_do: str) -> Finding:
    return Finding(check, "warning", found, to_do)


def failure(check: str, found: str, to_do: str) -> Finding:
    return Finding(check, "failure", found, to_do)


def refusal(check: str, error: Exception | str) -> Finding:
    """A failure from an error whose message says what to do after its last semicolon."""
    found, _, to_do = str(error).rpartition("; ")
    return failure(check, found or to_do, to_do if found else "correct it")


def in_background(action: Callable[[], T]) -> Future[T]:
    """Run an action in a daemon thread, which does not keep this process from exiting."""
    future: Future[T] = Future()

    def work() -> None:
        try:
            future.set_result(action())
        except BaseException as error:  # raised by `result`
            future.set_exception(error)

    threading.Thread(target=work, name="doctor", daemon=True).start()
    return future


def bounded(action: Callable[[], T], limit_s: float) -> T:
    """The action's result. Raises TimeoutError after `limit_s`; a hanging action is left to its thread."""
    try:
        return in_background(action).result(limit_s)
    except TimeoutError as error:
        raise TimeoutError(f"no answer within {limit_s:g} s") from error


def checked(
    check: str, action: Callable[[], list[Finding]], limit_s: float = CHECK_S, if_it_hangs: str = HANGS
) -> list[Finding]:
    """The findings of a check; an error and a timeout are findings, too."""
    try:
        return bounded(action, limit_s)
    except TimeoutError as error:
        return [failure(check, str(error), if_it_hangs)]
    except ValueError as error:
        return [refusal(check, error)]
    except OSError as error:
        return [failure(check, str(error).partition("\n")[0][:300], "make sure that this machine reaches it")]


def count(number: float, what: str) -> str:
    """`1 node`, `2 nodes`."""
    return f"{number:g} {what}" if number == 1 else f"{number:g} {what}s"


def as_table(findings: Sequence[Finding]) -> str:
    """A table as wide as the terminal: state, check, what was found, and below it what to do."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    colours = {"ok": "green", "warning": "yellow", "failure": "red"}
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for finding in findings:
        words = Text(finding.found)
        if finding.to_do:
            words.append(f"\n-> {finding.to_do}", style="bold")
        table.add_row(Text(finding.state, style=colours[finding.state]), finding.check, words)
    console = Console()
    with console.capture() as printed:
        console.print(table)
    failures, warnings, oks = (
        sum(each.state == state for each in findings) for state in ("failure", "warning", "ok")
    )
    return f"{printed.get()}\n{count(failures, 'failure')}, {count(warnings, 'warning')}, {oks} ok"


def to_json(findings: Sequence[Finding]) -> str:
    return json.dumps([asdict(finding) for finding in findings], indent=2, ensure_ascii=False)
