"""Tokens per second in training GPT-2 and BERT: this project and `transformers`, at equal sizes and batches.

    python benchmarks/transformer_step.py [--sizes 4x256 6x384] [--rounds 3] [--steps 5]

A step includes forward with dropout, backward, clipping and AdamW, and for this project also building the
batch. BERT restores 15 % of the tokens. The limit is torch's fastest matrix product here, in the same rounds.
"""

from __future__ import annotations

from benchmarks.side_by_side import Contestant, arguments_of, compare, markdown, publish, spread

_THEIRS = {"gpt": "GPT-2", "bert": "BERT"}


def contestants(family: str, size: str, steps: int) -> list[Contestant]:
    of_size = ["--family", family, "--size", size, "--steps", str(steps)]
    listed = [Contestant("matrix products", "gemm.py", [])]
    for precision in ("fp32", "bf16"):
        given = [*of_size, "--precision", precision]
        listed += [
            Contestant(f"headstart {precision}", "transformer_headstart.py", given),
            Contestant(f"transformers {precision}", "transformer_hugging_face.py", given, peer=True),
        ]
    return listed


def main() -> None:
    parser = arguments_of(__doc__, "transformer_step.json")
    parser.add_argument("--sizes", nargs="+", choices=["4x256", "6x384", "tiny"], default=["4x256", "6x384"])
    parser.add_argument("--families", nargs="+", choices=list(_THEIRS), default=list(_THEIRS))
    parser.add_argument("--steps", type=int, default=5)
    arguments = parser.parse_args()
    columns = ["", "tokens a second", "times transformers", "of the limit", "peak, MB"]
    figures, rows = {}, []
    for family in arguments.families:
        for size in arguments.sizes:
            by_contestant = compare(contestants(family, size, arguments.steps), arguments.rounds)
            figures[f"{family} {size}"] = by_contestant
            limits = by_contestant.pop("matrix products")
            for name, of_one in by_contestant.items():
                precision = name.split()[-1]
                rate, gflops = of_one["tokens_per_second"], of_one.get("gflop_per_second")
                theirs = by_contestant.get(f"transformers {precision}", {}).get("tokens_per_second")
                limit = limits[precision]["median"]
                rows.append([
                    f"{_THEIRS[family]} {size}: {name}",
                    spread(rate),
                    f"{rate['median'] / theirs['median']:.2f}" if theirs else "",
                    f"{gflops['median'] / limit:.0%}" if gflops else "",
                    f"{of_one['peak_megabytes']['median']:,.0f}",
                ])  # fmt: skip
    publish(arguments.out, markdown("Training step of a transformer", columns, rows), {"models": figures})


if __name__ == "__main__":
    main()
