"""Tokens a second in training by this checkout and by that of an earlier commit, in turns.

    python benchmarks/since.py COMMIT [--rounds 5] [--steps 5]

AWD-LSTM of size c, GPT-2 and BERT with 4 layers of width 256: a ratio above 1 is faster than before.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.side_by_side import ROOT, arguments_of, markdown, publish

if TYPE_CHECKING:
    from collections.abc import Iterator

STEPS = {
    "AWD-LSTM c": ["language_model_headstart.py", "--size", "c", "--precision", "fp32"],
    "GPT-2 4x256": ["transformer_headstart.py", "--family", "gpt", "--size", "4x256", "--precision", "fp32"],
    "BERT 4x256": ["transformer_headstart.py", "--family", "bert", "--size", "4x256", "--precision", "fp32"],
}


@contextmanager
def checkout_of(commit: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        checkout = Path(folder) / "before"
        subprocess.run(["git", "worktree", "add", "--detach", checkout, commit], cwd=ROOT, check=True)
        try:
            yield checkout
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", checkout], cwd=ROOT, check=True)


def tokens_per_second(checkout: Path, command: list[str]) -> float:
    script, *arguments = command
    done = subprocess.run(
        [sys.executable, checkout / "benchmarks/contestants" / script, *arguments],
        env={"PYTHONPATH": str(checkout), "PYTHONWARNINGS": "ignore"}, cwd=checkout, text=True, check=True,
        stdout=subprocess.PIPE,
    )  # fmt: skip
    return float(json.loads(done.stdout.splitlines()[-1])["tokens_per_second"])


def main() -> None:
    parser = arguments_of(__doc__, "since.json", rounds=5)
    parser.add_argument("commit")
    parser.add_argument("--steps", type=int, default=5)
    arguments = parser.parse_args()
    ratios: dict[str, list[float]] = {name: [] for name in STEPS}
    with checkout_of(arguments.commit) as before:
        for number in range(arguments.rounds):
            for name, command in STEPS.items():
                checkouts = (ROOT, before) if number % 2 else (before, ROOT)
                rates = {
                    checkout: tokens_per_second(checkout, [*command, "--steps", str(arguments.steps)])
                    for checkout in checkouts
                }
                ratios[name].append(rates[ROOT] / rates[before])
                print(f"round {number + 1}, {name}: {ratios[name][-1]:.3f}", file=sys.stderr, flush=True)
    rows = [
        [name, f"{statistics.median(found):.3f}", f"{min(found):.3f} to {max(found):.3f}"]
        for name, found in ratios.items()
    ]
    table = markdown(f"Training speed since {arguments.commit}", ["", "times as fast", "rounds"], rows)
    publish(arguments.out, table, {"commit": arguments.commit, "ratios": ratios})


if __name__ == "__main__":
    main()
