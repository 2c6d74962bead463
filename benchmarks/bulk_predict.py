"""`headstart predict --input`: speed beside the classifier's own, and peak memory by the size of the input.

    PYTHONPATH=. python benchmarks/bulk_predict.py --text FILE.parquet [--model data/classifier ...]

Speed: in one process, by turns, the classifier on texts that lie in memory (`Predictor.probabilities`), and
the same texts from a file of each format into a parquet file. Loading the classifier is left out of both.
Memory and whole time: the command in a process of its own, on files of growing size, with the last classifier
that is named. The documents are drawn with replacement from FILE (column `text`) with a fixed seed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl

FORMATS = ("parquet", "csv", "ndjson")


def write(texts: list[str], file: Path) -> None:
    frame = pl.DataFrame({"text": texts})
    writers: dict[str, Callable[[Path], Any]] = {
        ".parquet": frame.write_parquet, ".csv": frame.write_csv, ".ndjson": frame.write_ndjson,
    }  # fmt: skip
    writers[file.suffix](file)


def speeds(model: Path, texts: list[str], scratch: Path, rounds: int) -> dict[str, Any]:
    """Documents a second in each round, and those of files as a share of those in memory."""
    from pipeline.inference.bulk import label_files
    from pipeline.inference.bulk_input import Request
    from pipeline.inference.predict import Predictor, in_batches

    predictor = Predictor.load(model)
    files = {form: scratch / f"in.{form}" for form in FORMATS}
    for file in files.values():
        write(texts, file)

    def in_memory() -> None:
        for batch in in_batches(texts):
            predictor.probabilities(batch)

    def from_file(form: str) -> None:
        output = scratch / "out.parquet"
        output.unlink(missing_ok=True)
        label_files(Request([str(files[form])], ("text",), (model,)), output, predictor)

    predictor.probabilities(texts[:1000])  # what is made at the first call
    rates: dict[str, list[float]] = {name: [] for name in ("in memory", *FORMATS)}
    for _ in range(rounds):
        for name in rates:
            begun = time.perf_counter()
            in_memory() if name == "in memory" else from_file(name)
            rates[name].append(len(texts) / (time.perf_counter() - begun))
    base = statistics.median(rates["in memory"])
    return {
        "documents": len(texts),
        "documents_per_second": rates,
        "share": {form: statistics.median(rates[form]) / base for form in FORMATS},
    }


def whole_run(model: Path, file: Path, scratch: Path) -> dict[str, float]:
    """Seconds and peak resident memory of the command."""
    output = scratch / "whole.parquet"
    output.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pipeline", "predict", "--model", str(model), "--input", str(file),
               "--output", str(output)]  # fmt: skip
    begun = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    assert status == 0, status
    return {
        "mb_of_text": file.stat().st_size / 1e6,
        "seconds": time.perf_counter() - begun,
        "peak_mb": usage.ru_maxrss / 1e3,
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--text", type=Path, required=True)
    arguments.add_argument("--model", type=Path, nargs="+", default=[Path("data/classifier")])
    arguments.add_argument("--seconds", type=float, default=20.0, help="about how long a round takes")
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--sizes", type=float, nargs="+", default=[1, 100, 400], help="MB, for memory")
    arguments.add_argument("--out", type=Path, default=Path("reports/benchmarks/bulk_predict.json"))
    given = arguments.parse_args()
    known = [text for text in pl.read_parquet(given.text)["text"].to_list() if text and text.strip()]
    draw = random.Random(1)
    figures: dict[str, Any] = {"speed": {}, "memory": []}
    with tempfile.TemporaryDirectory(prefix="headstart-bulk-") as folder:
        scratch = Path(folder)
        for model in given.model:
            num_documents = int(given.seconds * rate_of(model, known[:2000]))
            texts = draw.choices(known, k=num_documents)
            figures["speed"][str(model)] = speeds(model, texts, scratch, given.rounds)
            print(model, json.dumps(figures["speed"][str(model)]), flush=True)
        mean_bytes = statistics.fmean(len(text.encode()) for text in known)
        for size in given.sizes:
            file = scratch / "large.csv"
            write(draw.choices(known, k=int(size * 1e6 / mean_bytes)), file)
            # Its own process: a child's peak begins at what its parent holds.
            figures["memory"].append(in_a_small_process(given.model[-1], file))
            print(json.dumps(figures["memory"][-1]), flush=True)
    given.out.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


def rate_of(model: Path, texts: list[str]) -> float:
    from pipeline.inference.predict import Predictor

    predictor = Predictor.load(model)
    begun = time.perf_counter()
    predictor.probabilities(texts)
    return len(texts) / (time.perf_counter() - begun)


def in_a_small_process(model: Path, file: Path) -> dict[str, float]:
    code = (
        "import json, sys; from pathlib import Path; from benchmarks.bulk_predict import whole_run; "
        "print(json.dumps(whole_run(*map(Path, sys.argv[1:]))))"
    )
    words = [sys.executable, "-c", code, str(model), str(file), str(file.parent)]
    done = subprocess.run(words, text=True, capture_output=True, check=True)
    measured: dict[str, float] = json.loads(done.stdout)
    return measured


if __name__ == "__main__":
    main()
