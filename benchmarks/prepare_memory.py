"""Peak memory of `prepare` and `encode` by corpus size, which it must not grow with.

    python benchmarks/prepare_memory.py [--text FILE.parquet] [--sizes 100 400] [--formats parquet csv]

The corpora are drawn with replacement from the documents of FILE (column `text`; by default the built-in
general text) until the size is reached. Each measurement is the peak resident memory of a separate process.
This process stays small, as a child's figure starts at its parent's.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

BATCH_DOCUMENTS = 1_000


def make_corpus(source: str, form: str, size_mb: float, file: Path) -> None:
    """Write a corpus of `size_mb` of text without holding it in memory."""
    import random

    import pyarrow as pa
    import pyarrow.parquet as pq

    texts = [" ".join(text.split()) for text in _texts(source)]
    draw, written, limit = random.Random(0), 0, size_mb * 1e6
    schema = pa.schema([("text", pa.string())])
    parquet = pq.ParquetWriter(file, schema, compression="zstd") if form == "parquet" else None
    plain = None if parquet else file.open("w", encoding="utf-8")
    if plain and form == "csv":
        plain.write("text\n")
    while written < limit:
        batch = draw.choices(texts, k=BATCH_DOCUMENTS)
        written += sum(len(text.encode()) for text in batch)
        if parquet:
            parquet.write_table(pa.table({"text": batch}, schema=schema))
        elif plain:
            plain.writelines(_line(text, form) for text in batch)
    for handle in (parquet, plain):
        if handle:
            handle.close()


def _line(text: str, form: str) -> str:
    match form:
        case "csv":
            return '"' + text.replace('"', '""') + '"\n'
        case "ndjson":
            return json.dumps({"text": text}, ensure_ascii=False) + "\n"
        case _:
            return text + "\n"


def _texts(source: str) -> list[str]:
    if source == "pydocs":
        from pipeline.corpus.pydocs import extract_general

        return extract_general(5).texts
    import polars as pl

    return [text for text in pl.read_parquet(source, columns=["text"])["text"].to_list() if text]


def project_of(form: str, file: Path) -> Any:
    from types import SimpleNamespace

    from pipeline.corpus.settings import (
        Corpora,
        Corpus,
        FilesSource,
        Normalise,
        SentencepieceTokenizer,
        Split,
    )

    source = FilesSource(
        kind="files", format=form, train=[str(file)], validation=[], test=[], unlabelled=[],  # type: ignore[arg-type]
        text_column="text", label_column=None, label_names=None, encoding_errors="refuse",
    )  # fmt: skip
    normalise = Normalise(
        unicode="NFC", html_breaks=True, control_characters=True, collapse_whitespace=True, lowercase=False
    )
    corpus = Corpus(
        source=source, split=Split(validation=0.02, test=0.0), normalise=normalise, max_documents=None
    )
    tokenizer = SentencepieceTokenizer(
        kind="unigram",
        vocab_size=8000,
        character_coverage=0.9995,
        byte_fallback=True,
        sample_mb=5.0,
        threads=2,
    )
    corpora = Corpora(general=corpus, target=corpus)
    params = SimpleNamespace(run=SimpleNamespace(seed=0), corpus=corpora, tokenizers={"pieces": tokenizer})
    return SimpleNamespace(params=params)


def step(name: str, source: str, form: str, size_mb: float, folder: Path) -> dict[str, float]:
    """Do one step in this process; return its seconds and its peak memory in MB."""
    from pipeline.stages import encode, prepare, train_tokenizer

    documents, tokenizer = folder / "documents" / "general", folder.parent / "pieces"
    project = project_of(form, folder / f"corpus.{form}")
    start = time.perf_counter()
    match name:
        case "make":
            make_corpus(source, form, size_mb, folder / f"corpus.{form}")
        case "prepare":
            prepare.run(project, corpus="general", out=documents)
        case "train_tokenizer":
            train_tokenizer.run(project, tokenizer="pieces", documents=documents.parent, out=tokenizer)
        case "encode":
            encode.run(project, documents=documents, tokenizer=tokenizer, out=folder / "tokens")
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"seconds": round(time.perf_counter() - start, 1), "peak_mb": round(peak_kib * 1024 / 1e6)}


def measure(arguments: argparse.Namespace, root: Path) -> list[dict[str, Any]]:
    """Run every step of every corpus in a separate process; print the table as it grows."""
    rows = []
    print(
        f"{'format':8} {'MB':>5} {'prepare s':>10} {'peak MB':>8} {'encode s':>9} {'peak MB':>8}", flush=True
    )
    for form in arguments.formats:
        for size_mb in arguments.sizes:
            folder = root / f"{form}-{size_mb:g}"
            folder.mkdir()
            row: dict[str, Any] = {"format": form, "text_mb": size_mb}
            for name in ("make", "prepare", "train_tokenizer", "encode"):
                if name == "train_tokenizer" and (root / "pieces").exists():
                    continue  # one for all
                row[name] = _in_child(name, arguments.text, form, size_mb, folder)
            prepared, encoded = row["prepare"], row["encode"]
            print(
                f"{form:8} {size_mb:5g} {prepared['seconds']:10} {prepared['peak_mb']:8} "
                f"{encoded['seconds']:9} {encoded['peak_mb']:8}",
                flush=True,
            )
            rows.append({key: row[key] for key in ("format", "text_mb", "prepare", "encode")})
    return rows


def _in_child(name: str, source: str, form: str, size_mb: float, folder: Path) -> dict[str, float]:
    command = [sys.executable, __file__, "--step", name, "--text", source, "--formats", form]
    command += ["--sizes", str(size_mb), "--folder", str(folder)]
    finished = subprocess.run(command, check=True, capture_output=True, text=True)
    result: dict[str, float] = json.loads(finished.stdout.splitlines()[-1])
    return result


def _settings(arguments: argparse.Namespace) -> list[str]:
    """Return the command line without this machine's paths."""
    text = arguments.text if arguments.text == "pydocs" else Path(arguments.text).name
    sizes = (f"{size:g}" for size in arguments.sizes)
    return ["--text", text, "--sizes", *sizes, "--formats", *arguments.formats]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", default="pydocs", help="parquet file to draw documents from")
    parser.add_argument("--sizes", type=float, nargs="+", default=[100, 400], help="MB of text")
    parser.add_argument("--formats", nargs="+", default=["parquet", "csv", "ndjson", "text"])
    parser.add_argument("--out", type=Path, default=Path("reports/benchmarks/prepare_memory.json"))
    parser.add_argument("--step", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.step:
        form, size_mb = arguments.formats[0], arguments.sizes[0]
        print(json.dumps(step(arguments.step, arguments.text, form, size_mb, arguments.folder)))
        return
    with tempfile.TemporaryDirectory(prefix="headstart-memory-") as root:
        rows = measure(arguments, Path(root))
    result = {
        "command": " ".join(["python benchmarks/prepare_memory.py", *_settings(arguments)]),
        "peak": "resident memory of a process of its own, MB",
        "rows": rows,
        "versions": {name: version(name) for name in ("polars", "pyarrow", "sentencepiece")},
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
