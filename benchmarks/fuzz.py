"""Fuzzes with many more inputs than `tests/fuzz`; counts inputs tried, refused and read, and lists failures.

    python benchmarks/fuzz.py [--minutes 10] [--seed 1] [--kinds CSV "params.yaml"]

Each kind gets the same time, in separate processes that restart with another seed after a few hundred inputs.
A process that dies (a crash in a library, out of memory) or hangs counts as a failure. The first input of
each distinct failure is shown, cut short.
"""

from __future__ import annotations

import argparse
import json
import logging
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

CASES_A_PROCESS, MOST_SECONDS_A_PROCESS, MOST_BYTES_SHOWN = 300, 300, 300


def try_many(name: str, seed: int, journal: Path) -> None:
    """Try inputs of a kind in this process; write each to `journal` first, then its outcome."""
    import hypothesis
    from hypothesis import HealthCheck, Phase

    from tests.fuzz.kinds import Kind, all_kinds

    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as root, journal.open("a", encoding="utf-8") as file:
        kind: Kind = all_kinds(Path(root))[name]

        def note(**fields: str) -> None:
            file.write(json.dumps(fields) + "\n")
            file.flush()

        @hypothesis.seed(seed)
        @hypothesis.settings(
            max_examples=CASES_A_PROCESS,
            phases=[Phase.generate],
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        )
        @hypothesis.given(kind.cases)
        def try_one(case: object) -> None:
            note(tried=repr(case)[:MOST_BYTES_SHOWN])
            with tempfile.TemporaryDirectory() as folder:
                try:
                    note(came="refused" if kind.check(case, Path(folder)) else "read")
                except KeyboardInterrupt:
                    raise
                except BaseException as error:  # polars' panics are not Exceptions
                    note(came="failed", how=_way(error))

        try_one()


def _way(error: BaseException) -> str:
    """Describe a failure without the parts that differ from input to input."""
    text = re.sub(r"/\S*/|0x[0-9a-f]+|\d+", "…", str(error).split("\n")[0])
    return f"{type(error).__name__}: {text[:60]}"


def run_for(
    name: str, seconds: float, seed: int, counts: Counter[str], ways: dict[str, tuple[int, str]]
) -> None:
    """Run processes of one kind; fill `counts`, and `ways` with each failure's count and first input."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with tempfile.TemporaryDirectory() as folder:
            journal = Path(folder) / "journal.ndjson"
            command = [
                sys.executable,
                __file__,
                "--child",
                name,
                "--seed",
                str(seed),
                "--journal",
                str(journal),
            ]
            limit = min(MOST_SECONDS_A_PROCESS, end - time.monotonic() + 30)
            try:
                status: int | str = subprocess.run(command, capture_output=True, timeout=limit).returncode
            except subprocess.TimeoutExpired:
                status = "time"
            _count(journal, status, counts, ways, is_last=time.monotonic() >= end)
        seed += 1


def _count(
    journal: Path, status: int | str, counts: Counter[str], ways: dict[str, tuple[int, str]], *, is_last: bool
) -> None:
    lines = journal.read_text(encoding="utf-8").splitlines() if journal.exists() else []
    shown, answered = "", True
    for line in map(json.loads, lines):
        if "tried" in line:
            shown, answered = line["tried"], False
            counts["tried"] += 1
            continue
        answered = True
        counts[line["came"]] += 1
        if "how" in line:
            _add(ways, line["how"], shown)
    if not answered and status == "time" and is_last:  # time ran out
        counts["tried"] -= 1
    elif not answered:
        counts["failed"] += 1
        _add(ways, f"the process died or hung ({status})", shown)


def _add(ways: dict[str, tuple[int, str]], how: str, shown: str) -> None:
    number, first = ways.get(how, (0, shown))
    ways[how] = (number + 1, first)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0, help="in total")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kinds", nargs="+", help="kinds to try, by default all")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--journal", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        try_many(arguments.child, arguments.seed, arguments.journal)
        return
    from tests.fuzz.kinds import NUM_CASES

    kinds = arguments.kinds or list(NUM_CASES)
    print("| kind | tried | refused | read | failed |\n| --- | --- | --- | --- | --- |", flush=True)
    total: Counter[str] = Counter()
    all_ways = {}
    for name in kinds:
        counts: Counter[str] = Counter()
        ways: dict[str, tuple[int, str]] = {}
        run_for(name, arguments.minutes * 60 / len(kinds), arguments.seed, counts, ways)
        total += counts
        all_ways[name] = ways
        _print_row(name, counts)
    _print_row("all", total)
    for name, ways in all_ways.items():
        for how, (number, first) in sorted(ways.items(), key=lambda item: -item[1][0]):
            print(f"\n{name}: {number} x {how}\n    {first}")


def _print_row(name: str, counts: Counter[str]) -> None:
    cells = (f"{counts[column]:,}" for column in ("tried", "refused", "read", "failed"))
    print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
