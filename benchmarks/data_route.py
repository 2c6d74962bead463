"""Megabytes of text per second from parquet to token shards: this project, fastai, Hugging Face, the limit.

    python benchmarks/data_route.py [--text FILE.parquet] [--megabytes 50] [--rounds 3]

The corpus is drawn with replacement from the documents of FILE (column `text`; by default the built-in
general text). This project's figure covers its stages `prepare` (normalisation, splits) and `encode`,
including the files between them; the others go from the same file to token ids in one pass. The limit is
sentencepiece alone, on texts in memory. Tokenizer training is not timed. fastai gets 2 MB, and its time
includes starting two processes.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.prepare_memory import make_corpus, project_of
from benchmarks.side_by_side import Contestant, arguments_of, compare, markdown, publish, spread


def main() -> None:
    parser = arguments_of(__doc__, "data_route.json")
    parser.add_argument("--text", default="pydocs", help="parquet file to draw documents from")
    parser.add_argument("--megabytes", type=float, default=50.0)
    parser.add_argument("--make", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.make:
        make(arguments.make, arguments.text, arguments.megabytes)
        return
    with tempfile.TemporaryDirectory(prefix="headstart-data-") as folder:
        # In a separate process: a child's peak memory starts at its parent's.
        command = [sys.executable, __file__, "--make", folder, "--text", arguments.text]
        subprocess.run([*command, "--megabytes", str(arguments.megabytes)], check=True)
        of_corpus = ["--corpus", f"{folder}/corpus.parquet"]
        ours = [*of_corpus, "--tokenizer", f"{folder}/pieces"]
        hugging_face = "data_hugging_face.py"
        by_contestant = compare(
            [
                Contestant("sentencepiece alone", "data_sentencepiece.py", ours),
                Contestant("headstart", "data_headstart.py", ours),
                Contestant("Hugging Face, BPE", hugging_face, [*of_corpus, "--kind", "bpe"], peer=True),
                Contestant(
                    "Hugging Face, unigram", hugging_face, [*of_corpus, "--kind", "unigram"], peer=True
                ),
                Contestant("fastai, spaCy", "data_fastai.py", of_corpus, peer=True),
            ],
            arguments.rounds,
        )
    rows = []
    for name, figures in by_contestant.items():
        rows.append([name, spread(figures["megabytes_per_second"], ".1f"), _peak(figures)])
        for stage in ("prepare", "encode"):
            if speed := figures.get(f"{stage}_megabytes_per_second"):
                rows.append([f"{name}: {stage}", spread(speed, ".1f"), ""])
    if any("/" in word for word in sys.argv[1:]):  # keep machine paths out of the report
        sys.argv[1:] = [Path(word).name if "/" in word else word for word in sys.argv[1:]]
    title = "From parquet to token shards"
    publish(arguments.out, markdown(title, ["", "MB a second", "peak, MB"], rows), {"figures": by_contestant})


def _peak(figures: dict[str, dict[str, float]]) -> str:
    return f"{figures['peak_megabytes']['median']:,.0f}" if "peak_megabytes" in figures else ""


def make(folder: Path, text: str, size_mb: float) -> None:
    """Write the corpus, and a tokenizer for it."""
    from pipeline.stages import prepare, train_tokenizer

    corpus = folder / "corpus.parquet"
    make_corpus(text, "parquet", size_mb, corpus)
    project = project_of("parquet", corpus)
    documents = folder / "documents"
    prepare.run(project, corpus="general", out=documents / "general")
    train_tokenizer.run(project, tokenizer="pieces", documents=documents, out=folder / "pieces")


if __name__ == "__main__":
    main()
