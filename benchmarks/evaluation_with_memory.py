"""Tokens per second in evaluation with a memory, and by reading the context anew, by its length.

    python benchmarks/evaluation_with_memory.py [--contexts 64 128 256 512] [--size 4x256] [--rounds 3]

Source of the comparison: Dai et al. 2019, section 4.6. The decoder is left out: it is the same for all.
"""

from __future__ import annotations

from benchmarks.side_by_side import Contestant, arguments_of, compare, markdown, publish, spread

WAYS = ("recomputed", "half a context", "memory")


def main() -> None:
    parser = arguments_of(__doc__, "evaluation_with_memory.json")
    parser.add_argument("--contexts", type=int, nargs="+", default=[64, 128, 256, 512])
    parser.add_argument("--size", default="4x256")
    arguments = parser.parse_args()
    figures, rows = {}, []
    for context in arguments.contexts:
        of_context = ["--size", arguments.size, "--context", str(context)]
        contestants = [
            Contestant(way, "evaluation_transformers.py", [*of_context, "--way", way]) for way in WAYS
        ]
        by_way = compare(contestants, arguments.rounds)
        figures[str(context)] = by_way
        recomputed, half, memory = (by_way[way]["tokens_per_second"] for way in WAYS)
        rows.append([
            str(context),
            spread(recomputed),
            spread(half),
            spread(memory),
            f"{memory['median'] / recomputed['median']:,.0f}",
            f"{memory['median'] / half['median']:.2f}",
        ])  # fmt: skip
    columns = [
        "context or memory, tokens",
        "GPT, context anew for each token",
        "GPT, chunks of half a context",
        "Transformer-XL, memory",
        "times the first",
        "times the second",
    ]
    publish(arguments.out, markdown("Tokens a second in evaluation", columns, rows), {"contexts": figures})


if __name__ == "__main__":
    main()
