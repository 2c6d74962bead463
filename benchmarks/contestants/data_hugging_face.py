"""Parquet to a file of token numbers with Hugging Face's tokenizers, on all cores."""

from __future__ import annotations

import argparse
import os
import tempfile
import time
import unicodedata
from itertools import islice
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from benchmarks.contestants._text import megabytes, texts_of
from benchmarks.contestants._timing import peak_megabytes, tell

parser = argparse.ArgumentParser()
parser.add_argument("--corpus", type=Path, required=True)
parser.add_argument("--kind", choices=["bpe", "unigram"], required=True)
parser.add_argument("--vocab-size", type=int, default=8000)
arguments = parser.parse_args()

if arguments.kind == "bpe":
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=arguments.vocab_size, show_progress=False)
else:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=arguments.vocab_size, show_progress=False, unk_token="<unk>", special_tokens=["<unk>"]
    )


def normalised(text: str) -> str:
    """As this project does by default. In Python: the library's own normalizers take far longer."""
    return " ".join(unicodedata.normalize("NFC", text).replace("<br />", " ").split())


sample = [text for texts in islice(texts_of(arguments.corpus), 1) for text in texts]
tokenizer.train_from_iterator(sample, trainer)

size = sum(map(megabytes, texts_of(arguments.corpus)))
os.environ["TOKENIZERS_PARALLELISM"] = "true"
with tempfile.TemporaryFile() as out:
    start = time.perf_counter()
    for texts in texts_of(arguments.corpus):
        for encoded in tokenizer.encode_batch_fast([normalised(text) for text in texts]):
            out.write(np.array(encoded.ids, dtype=np.uint16).data)
    seconds = time.perf_counter() - start
tell(megabytes_per_second=size / seconds, peak_megabytes=peak_megabytes())
