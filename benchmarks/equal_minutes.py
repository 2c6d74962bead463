"""Bits per byte of language models after equal minutes of training on the same text.

    python benchmarks/equal_minutes.py --tokens data/tokens/general/pieces [--minutes 3] [--seeds 1 2]
        [--headstarts ulmfit gpt transformer_xl]

Each head start has its own settings of `pretrain_lm`; a short training tells how many epochs fill the
minutes. An embedding that word vectors train first is left out, so all begin with random numbers.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.side_by_side import ROOT, arguments_of, markdown, publish

_TRIAL_STEPS = 20


def job_of(name: str, tokens: Path, epochs: float, seed: int) -> Any:
    from pipeline.project.project import Project
    from pipeline.training.language_model import make_language_model_job

    head_start = Project.load(ROOT / "params.yaml").head_starts[name]
    settings = head_start.pretrain_lm
    training = settings.training.model_copy(update={"epochs": epochs, "evaluations_per_epoch": 1})
    return make_language_model_job(
        replace(settings, training=training),
        head_start.model,
        stage="pretrain_lm",
        tokens=tokens,
        start=None,
        seed=seed,
    )


def seconds_per_step(job: Any, context: Any) -> float:
    from pipeline.training.loop import Training

    training = Training(job.task(context), context)
    training.train_step()
    began = time.perf_counter()
    for _ in range(_TRIAL_STEPS):
        training.train_step()
    return (time.perf_counter() - began) / _TRIAL_STEPS


def after(name: str, arguments: argparse.Namespace, seed: int) -> dict[str, float]:
    import torch

    from pipeline.training.context import Context
    from pipeline.training.loop import train
    from pipeline.training.precision import fast_dtype

    context = Context(precision=fast_dtype(torch.device("cpu")))
    one = job_of(name, arguments.tokens, 1.0, seed)
    steps_of_an_epoch = one.task(context).plan.num_steps
    epochs = 60 * arguments.minutes / seconds_per_step(one, context) / steps_of_an_epoch
    task = job_of(name, arguments.tokens, epochs, seed).task(context)
    weights = sum(weight.numel() for weight in task.model.parameters())
    began = time.perf_counter()
    metrics = train(task, context)
    return {
        "bits_per_byte": metrics["validation/bits_per_byte"],
        "epochs": epochs,
        "minutes": (time.perf_counter() - began) / 60,  # with the evaluation at the end
        "weights": weights,
    }


def main() -> None:
    import torch

    from pipeline.distributed.worker import prepare_torch

    parser = arguments_of(__doc__, "equal_minutes.json")
    parser.add_argument("--tokens", type=Path, required=True, help="folder of shards")
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--headstarts", nargs="+", default=["ulmfit", "gpt", "transformer_xl"])
    arguments = parser.parse_args()
    prepare_torch(torch.get_num_threads())
    figures: dict[str, list[dict[str, float]]] = {name: [] for name in arguments.headstarts}
    for seed in arguments.seeds:
        for name in arguments.headstarts:
            figures[name].append(after(name, arguments, seed))
            print(name, seed, figures[name][-1], flush=True)
    rows = [
        [
            name,
            f"{runs[0]['weights'] / 1e6:.1f}",
            f"{statistics.mean(run['epochs'] for run in runs):.2f}",
            f"{statistics.mean(run['minutes'] for run in runs):.1f}",
            *(f"{run['bits_per_byte']:.3f}" for run in runs),
        ]
        for name, runs in figures.items()
    ]
    columns = [
        "head start",
        "weights, millions",
        "epochs",
        "minutes",
        *(f"seed {k}" for k in arguments.seeds),
    ]
    title = "Bits per byte after equal minutes of pretraining"
    publish(arguments.out, markdown(title, columns, rows), {"headstarts": figures})


if __name__ == "__main__":
    main()
