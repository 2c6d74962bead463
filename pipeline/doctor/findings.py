"""What a check found, and how a check is kept from hanging."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Literal, TypeVar

State = Literal["ok", "warning", "failure"]
T = TypeVar("T")


@dataclass(frozen=True)
class Finding:
    check: str
    state: State
    found: str  # one line, with figures
    to_do: str = ""  # of anything but ok

    def __post_init__(self) -> None:
        assert (self.state == "ok") == (not self.to_do), f"{self.check}: what is to be done about it?"


def ok(check: str, found: str) -> Finding:
    return Finding(check, "ok", found)


def warning(check: str, found: str, to_do: str) -> Finding:
    return Finding(check, "warning", found, to_do)


def failure(check: str, found: str, to_do: str) -> Finding:
    return Finding(check, "failure", found, to_do)


def refusal(check: str, error: Exception) -> Finding:
    """A failure in the words of a refusal, which say what to do behind their last semicolon."""
    found, _, to_do = str(error).rpartition("; ")
    return failure(check, found or to_do, to_do if found else "correct it")


def in_background(action: Callable[[], T]) -> Future[T]:
    """Run it in a thread that the end of this process does not wait for."""
    future: Future[T] = Future()

    def work() -> None:
        try:
            future.set_result(action())
        except BaseException as error:  # raised again where the result is asked for
            future.set_exception(error)

    threading.Thread(target=work, name="doctor", daemon=True).start()
    return future


def bounded(action: Callable[[], T], limit_s: float) -> T:
    """Its result. Raises TimeoutError after so many seconds; what hangs is left behind."""
    try:
        return in_background(action).result(limit_s)
    except TimeoutError as error:
        raise TimeoutError(f"no answer within {limit_s:g} s") from error


def checked(
    check: str, action: Callable[[], list[Finding]], limit_s: float, if_it_hangs: str
) -> list[Finding]:
    """What a check found; a refusal and a hanging are findings too."""
    try:
        return bounded(action, limit_s)
    except TimeoutError as error:
        return [failure(check, str(error), if_it_hangs)]
    except ValueError as error:
        return [refusal(check, error)]
    except OSError as error:
        return [failure(check, str(error).partition("\n")[0][:300], "see that it can be reached from here")]


def count(number: float, what: str) -> str:
    """1 node, 2 nodes."""
    return f"{number:g} {what}" if number == 1 else f"{number:g} {what}s"


def size(num_bytes: float) -> str:
    """For a person to read: 1.5 GB."""
    for unit in ("bytes", "kB", "MB"):
        if abs(num_bytes) < 1000:
            return f"{num_bytes:.3g} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:,.1f} GB"
