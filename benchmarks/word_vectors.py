"""Word vectors beside gensim's: words a second in training, and the test errors of classifiers on top.

    python benchmarks/word_vectors.py --data TRAIN.parquet TEST.parquet [--epochs 5] [--rounds 3]

Both libraries learn skip-gram vectors from the training texts alone, with a thread a core and the same width,
window, negatives, epochs and threshold of subsampling (gensim's formula is word2vec.c's, which keeps a little
more than the paper's). Further rows are this project with its own number of epochs and threshold, by words
and by pieces of words, and real vectors from elsewhere, which train nothing.
"""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.contestants._topics import SIZES
from benchmarks.side_by_side import Contestant, arguments_of, compare, markdown, publish, spread


def contestants(data: list[Path], epochs: int) -> list[Contestant]:
    files = ["--data", *map(str, data)]
    equal = [*files, "--epochs", str(epochs), "--subsample", "0.001"]
    ours, imported = "word_vectors_headstart.py", "word_vectors_imported.py"
    return [
        Contestant("gensim", "word_vectors_gensim.py", equal, peer=True),
        Contestant("headstart fp32", ours, equal),
        Contestant("headstart bf16", ours, [*equal, "--precision", "bf16"]),
        Contestant("headstart, CBOW", ours, [*equal, "--algorithm", "cbow"]),
        Contestant("headstart, its defaults", ours, files),
        Contestant("headstart, its defaults, GloVe", ours, [*files, "--algorithm", "glove"]),
        Contestant("headstart, its defaults, 8,000 pieces", ours, [*files, "--pieces", "8000"]),
        Contestant("GloVe 6B, 50 wide, imported", imported, [*files, "--package", "glove"], peer=True),
        Contestant("wordllama, 256 wide, imported", imported, [*files, "--package", "wordllama"], peer=True),
    ]


def main() -> None:
    parser = arguments_of(__doc__, "word_vectors.json")
    parser.add_argument("--data", type=Path, nargs=2, required=True, help="parquet files: text and label")
    parser.add_argument("--epochs", type=int, default=5)
    arguments = parser.parse_args()
    by_contestant = compare(contestants(arguments.data, arguments.epochs), arguments.rounds)
    peer = by_contestant.get("gensim", {}).get("words_per_second", {}).get("median")
    columns = ["", "words a second", "times gensim", "seconds", *(f"error, {n:,} labels" for n in SIZES)]
    rows = []
    for name, figures in by_contestant.items():
        speed = figures.get("words_per_second")
        rows.append([
            name,
            spread(speed) if speed else "",
            f"{speed['median'] / peer:.2f}" if speed and peer else "",
            spread(figures["seconds"], ".1f"),
            *(f"{figures[f'error_{size}']['median']:.1f} %" for size in SIZES),
        ])  # fmt: skip
    sys.argv[1:] = [Path(word).name if "/" in word else word for word in sys.argv[1:]]
    publish(arguments.out, markdown("Word vectors", columns, rows), {"figures": by_contestant})


if __name__ == "__main__":
    main()
