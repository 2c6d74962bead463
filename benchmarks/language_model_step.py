"""Tokens per second in training AWD-LSTM: this project, fastai, a GPT-2 of equal size, the limit.

    python benchmarks/language_model_step.py [--sizes a b c] [--rounds 3] [--steps 3]

A step includes forward with all dropouts, AR and TAR, backward, clipping and Adam, and for this project also
building the batch, which fastai does before its clock starts. The GPT-2 is Hugging Face's. Sampled words (an
eighth of the vocabulary) change the loss: see models/sampling.py, and quality.py for the cost in quality. The
limit is the time of a step's matrix products at torch's fastest rate here, measured in the same rounds.
"""

from __future__ import annotations

from benchmarks.contestants._timing import SIZES
from benchmarks.side_by_side import Contestant, arguments_of, compare, markdown, publish, spread


def contestants(size: str, steps: int) -> list[Contestant]:
    of_size = ["--size", size, "--steps", str(steps)]
    ours = "language_model_headstart.py"
    sampled = ["--sampled-words", str(SIZES[size].vocab_size // 8)]
    return [
        Contestant("matrix products", "gemm.py", []),
        Contestant("headstart bf16", ours, [*of_size, "--precision", "bf16"]),
        Contestant("headstart fp32", ours, [*of_size, "--precision", "fp32"]),
        Contestant("headstart bf16, sampled words", ours, [*of_size, "--precision", "bf16", *sampled]),
        Contestant("fastai", "language_model_fastai.py", of_size, peer=True),
        Contestant("Hugging Face GPT-2", "language_model_hugging_face.py", of_size, peer=True),
    ]


def main() -> None:
    parser = arguments_of(__doc__, "language_model_step.json")
    parser.add_argument("--sizes", nargs="+", choices=["a", "b", "c", "tiny"], default=["a", "b", "c"])
    parser.add_argument("--steps", type=int, default=3)
    arguments = parser.parse_args()
    figures = {
        size: compare(contestants(size, arguments.steps), arguments.rounds) for size in arguments.sizes
    }
    columns = ["", "tokens a second", "times fastai", "GFLOP/s", "of the limit", "peak, MB"]
    rows = []
    for size, by_contestant in figures.items():
        peer = by_contestant.get("fastai", {}).get("tokens_per_second", {}).get("median")
        for name, of_one in by_contestant.items():
            if name == "matrix products":
                rows += [
                    [f"{size}: limit, {precision}", "", "", spread(of_one[precision]), "", ""]
                    for precision in ("bf16", "fp32")
                ]
                continue
            precision = "bf16" if name.endswith("bf16") else "fp32"
            rate, gflops = of_one["tokens_per_second"], of_one.get("gflop_per_second")  # of the same products
            limit = by_contestant["matrix products"][precision]["median"]
            rows.append([
                f"{size}: {name}",
                spread(rate),
                f"{rate['median'] / peer:.2f}" if peer else "",
                f"{gflops['median']:,.0f}" if gflops else "",
                f"{gflops['median'] / limit:.0%}" if gflops else "",
                f"{of_one['peak_megabytes']['median']:,.0f}",
            ])  # fmt: skip
    publish(arguments.out, markdown("Training step of a language model", columns, rows), {"sizes": figures})


if __name__ == "__main__":
    main()
