"""Parquet to token numbers as fastai does by default: its rules, spaCy on all cores, Numericalize."""

from __future__ import annotations

import argparse
import os
import time
from collections import Counter
from pathlib import Path

from fastai.text.core import SpacyTokenizer, defaults, parallel_tokenize
from fastai.text.data import Numericalize, make_vocab

from benchmarks.contestants._text import megabytes, texts_of
from benchmarks.contestants._timing import tell

parser = argparse.ArgumentParser()
parser.add_argument("--corpus", type=Path, required=True)
parser.add_argument("--megabytes", type=float, default=2.0)  # it would take minutes for all
arguments = parser.parse_args()

sample: list[str] = []
for texts in texts_of(arguments.corpus):
    for text in texts:
        if megabytes(sample) < arguments.megabytes:
            sample.append(text)

start = time.perf_counter()
outputs = parallel_tokenize(
    sample, tok=SpacyTokenizer("en"), rules=defaults.text_proc_rules, n_workers=len(os.sched_getaffinity(0))
)
tokens = [document for _, document in sorted(outputs, key=lambda pair: pair[0])]
counts = Counter(token for document in tokens for token in document)
numericalize = Numericalize(make_vocab(counts))
for document in tokens:
    numericalize(document)
seconds = time.perf_counter() - start
tell(megabytes_per_second=megabytes(sample) / seconds)  # its memory is in other processes
