"""sentencepiece alone, one thread a core: the limit for whatever encodes with it."""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

from benchmarks.contestants._text import megabytes, texts_of
from benchmarks.contestants._timing import peak_megabytes, tell
from pipeline.corpus.tokenizer_kinds import load_tokenizer

parser = argparse.ArgumentParser()
parser.add_argument("--corpus", type=Path, required=True)
parser.add_argument("--tokenizer", type=Path, required=True)
arguments = parser.parse_args()

tokenizer = load_tokenizer(arguments.tokenizer)
size = seconds = 0.0
for texts in texts_of(arguments.corpus):
    start = time.perf_counter()
    tokenizer.encode_batch(texts, threads=len(os.sched_getaffinity(0)))
    seconds += time.perf_counter() - start
    size += megabytes(texts)
tell(megabytes_per_second=size / seconds, peak_megabytes=peak_megabytes())
