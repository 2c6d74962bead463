"""Parquet to token shards by this project: the stages `prepare` and `encode`, one after the other."""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from benchmarks.contestants._text import megabytes, texts_of
from benchmarks.contestants._timing import peak_megabytes, tell
from benchmarks.prepare_memory import project_of
from pipeline.stages import encode, prepare

parser = argparse.ArgumentParser()
parser.add_argument("--corpus", type=Path, required=True)
parser.add_argument("--tokenizer", type=Path, required=True)
arguments = parser.parse_args()

project = project_of("parquet", arguments.corpus)
size = sum(map(megabytes, texts_of(arguments.corpus)))
with tempfile.TemporaryDirectory() as folder:
    documents, tokens = Path(folder) / "documents", Path(folder) / "tokens"
    start = time.perf_counter()
    prepare.run(project, corpus="general", out=documents)
    prepared = time.perf_counter()
    encode.run(project, documents=documents, tokenizer=arguments.tokenizer, out=tokens)
    encoded = time.perf_counter()
tell(
    megabytes_per_second=size / (encoded - start),
    prepare_megabytes_per_second=size / (prepared - start),
    encode_megabytes_per_second=size / (encoded - prepared),
    peak_megabytes=peak_megabytes(),
)
