"""Cost of faster modes in quality: the same pretraining in each mode, seed by seed.

    python benchmarks/quality.py --tokens data/tokens/general/pieces [--seeds 1 2 3] [--threads 1]
        [--modes fp32 bf16] [--epochs 0.45]

Each mode overlays params.yaml. Quality is bits per byte of the validation text, always with float32 products
and the full softmax. `language_model_step.py` compares times.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.side_by_side import ROOT, arguments_of, markdown, publish

# Mode -> overlay of params.yaml. The first is the reference for the others.
MODES: dict[str, dict[str, Any]] = {
    "fp32": {"run": {"precision": "fp32"}},
    "bf16": {"run": {"precision": "bf16"}},
    "bf16, 1,000 sampled words": {"run": {"precision": "bf16"}, "pretrain_lm": {"sampled_words": 1000}},
    "bf16, 2,000 sampled words": {"run": {"precision": "bf16"}, "pretrain_lm": {"sampled_words": 2000}},
}


def bits_per_byte(mode: str, seed: int, arguments: argparse.Namespace) -> float:
    """Return the bits per byte of the validation text at the end of training."""
    from pipeline.distributed.launch import fit
    from pipeline.distributed.session import Session
    from pipeline.project.checked_params import checked
    from pipeline.project.project import Project
    from pipeline.settings.loader import overlay, read_yaml
    from pipeline.training.context import no_recorder
    from pipeline.training.language_model import make_language_model_job

    here = {
        "run": {"seed": seed, "workers": 0, "threads_per_worker": arguments.threads, "device": "cpu"},
        "pretrain_lm": {"epochs": arguments.epochs, "evaluations_per_epoch": 1},
    }
    values = overlay(overlay(read_yaml(ROOT / "params.yaml"), MODES[mode]), here)
    settings = checked(values, where=f"the mode {mode}")
    head_start = Project(settings).head_starts["ulmfit"]
    job = make_language_model_job(
        head_start.pretrain_lm,
        head_start.model,
        stage="pretrain_lm",
        tokens=arguments.tokens,
        start=None,
        seed=seed,
    )
    with tempfile.TemporaryDirectory() as folder:
        done = fit(job, settings.run, Session("quality", f"{folder}/run", no_recorder))
    return float(done.state["kept_metrics"]["validation/bits_per_byte"])


def main() -> None:
    parser = arguments_of(__doc__, "quality.json")
    parser.add_argument("--tokens", type=Path, required=True, help="folder of shards")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--modes", nargs="+", choices=list(MODES), default=list(MODES))
    parser.add_argument("--epochs", type=float, default=0.45)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    bits_by_mode: dict[str, list[float]] = {mode: [] for mode in arguments.modes}
    for seed in arguments.seeds:
        for mode in arguments.modes:
            bits = bits_per_byte(mode, seed, arguments)
            bits_by_mode[mode].append(bits)
            print(json.dumps({"mode": mode, "seed": seed, "bits_per_byte": bits}), flush=True)
    columns = ["mode", *(f"seed {seed}" for seed in arguments.seeds), "mean", "change, %"]
    first = statistics.mean(bits_by_mode[arguments.modes[0]])
    rows = [
        [
            mode,
            *(f"{value:.4f}" for value in values),
            f"{statistics.mean(values):.4f}",
            f"{100 * (statistics.mean(values) / first - 1):+.2f}",
        ]
        for mode, values in bits_by_mode.items()
    ]
    publish(arguments.out, markdown("Bits per byte by mode", columns, rows), {"bits_per_byte": bits_by_mode})


if __name__ == "__main__":
    main()
