"""Documents per second of classifier training and prediction: this project, fastai, Hugging Face, the limit.

    python benchmarks/classifier_step.py [--size a] [--rounds 3] [--steps 2]

Size a has a vocabulary of 60,000, embedding 400, hidden 1,152 and three layers. A training step takes 32
documents of 400 tokens, with gradients for all tokens. fastai predicts 32 documents at once, this project as
many as its batches hold. The limit is the time of the LSTM layers' matrix products at the fastest rate
measured.
"""

from __future__ import annotations

from benchmarks.contestants._timing import SIZES
from benchmarks.side_by_side import Contestant, arguments_of, compare, markdown, publish, spread

TOKENS = 400


def main() -> None:
    parser = arguments_of(__doc__, "classifier_step.json")
    parser.add_argument("--size", choices=list(SIZES), default="a")
    parser.add_argument("--steps", type=int, default=2)
    arguments = parser.parse_args()
    steps = ["--steps", str(arguments.steps), "--tokens", str(TOKENS)]
    of_size = ["--size", arguments.size, *steps]
    ours = "classifier_headstart.py"
    by_contestant = compare(
        [
            Contestant("matrix products", "gemm.py", []),
            Contestant("headstart bf16", ours, [*of_size, "--precision", "bf16"]),
            Contestant("headstart fp32", ours, [*of_size, "--precision", "fp32"]),
            Contestant("fastai", "classifier_fastai.py", of_size, peer=True),
            Contestant("Hugging Face DistilBERT", "classifier_hugging_face.py", steps, peer=True),
        ],
        arguments.rounds,
    )
    flop_per_document = SIZES[arguments.size].flop_per_classified_token * TOKENS
    kinds = {"training_documents_per_second": 3, "prediction_documents_per_second": 1}
    columns = ["", "trained a second", "times fastai", "predicted a second", "times fastai", "peak, MB"]
    rows = []
    for name, figures in by_contestant.items():
        if name == "matrix products":
            for precision in ("bf16", "fp32"):
                gflops = figures[precision]["median"]
                limits = [gflops * 1e9 / (flop_per_document * passes) for passes in kinds.values()]
                rows.append([f"limit, {precision}", f"{limits[0]:.1f}", "", f"{limits[1]:.1f}", "", ""])
            continue
        cells = []
        for kind in kinds:
            peer = by_contestant.get("fastai", {}).get(kind, {}).get("median")
            cells += [spread(figures[kind], ".1f"), f"{figures[kind]['median'] / peer:.2f}" if peer else ""]
        rows.append([name, *cells, f"{figures['peak_megabytes']['median']:,.0f}"])
    publish(
        arguments.out, markdown("Classifier, documents a second", columns, rows), {"figures": by_contestant}
    )


if __name__ == "__main__":
    main()
