"""Words a second of gensim's skip-gram, and the test errors of its vectors."""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

from gensim.models import Word2Vec

from benchmarks.contestants._timing import peak_megabytes, tell
from benchmarks.contestants._topics import errors, read

parser = argparse.ArgumentParser()
parser.add_argument("--data", type=Path, nargs=2, required=True)
parser.add_argument("--epochs", type=int, required=True)
parser.add_argument("--subsample", type=float, required=True)
arguments = parser.parse_args()

train, test = (read(file) for file in arguments.data)
num_words = arguments.epochs * sum(map(len, train[0]))
threads = len(os.sched_getaffinity(0))
model = Word2Vec(
    vector_size=200, window=8, negative=8, sg=1, min_count=1, workers=threads, seed=1,
    sample=arguments.subsample,
)  # fmt: skip
model.build_vocab(train[0])
start = time.perf_counter()
model.train(train[0], total_examples=len(train[0]), epochs=arguments.epochs)
seconds = time.perf_counter() - start
tell(
    words_per_second=num_words / seconds,
    seconds=seconds,
    peak_megabytes=peak_megabytes(),
    **errors(train, test, model.wv.key_to_index, model.wv.vectors),
)
