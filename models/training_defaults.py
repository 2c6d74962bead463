"""Training settings that several families share, for `Family.defaults` and `Family.space`.

Those of transformers fit networks of a few million weights on two cores.
"""

from __future__ import annotations

from typing import Any

Settings = dict[str, Any]  # of a section of params.yaml

SLANTED_TRIANGULAR = {"kind": "slanted_triangular", "cut_frac": 0.1, "ratio": 32.0, "span": "run"}
_LINEAR = {"kind": "linear", "cut_frac": 0.1, "ratio": 32.0, "span": "run"}


def adamw(lr: float) -> Settings:
    """Return the settings of the optimizer."""
    return {
        "kind": "adamw",
        "lr": lr,
        "momentum": 0.9,
        "beta2": 0.98,
        "weight_decay": 0.01,
        "clip_norm": 1.0,
        "nonmonotone_interval": 5,
        "discriminative_factor": 1.0,
    }


def language_model_defaults(lr: float, **own: Any) -> Settings:
    """Return a transformer's settings of a language-model stage; `own`: its objective's, and changes."""
    return {
        "epochs": 0.4,
        "batch_rows": 32,
        "optimizer": adamw(lr),
        "schedule": _LINEAR,
        "unfreeze": "full",
        "epochs_per_unfreezing": 1.0,
        "dropout": 0.1,
        "evaluations_per_epoch": 2,
        **own,
    }


CAUSAL_DEFAULTS = language_model_defaults(
    0.003, bptt=128, variable_bptt=False, ar_alpha=0.0, tar_beta=0.0, sampled_words=None
)


def classifier_defaults(**own: Any) -> Settings:
    """Return a transformer's settings of `finetune_classifier`, with changes."""
    return {
        "epochs": 2.0,
        "min_steps": 60,
        "batch_rows": 32,
        "bptt": 128,
        "max_tokens": 128,
        "optimizer": adamw(0.0005),
        "schedule": _LINEAR,
        "unfreeze": "full",
        "epochs_per_unfreezing": 0.1,
        "dropout": 1.0,
        "layers": [-1],
        "combine": "concat",
        "pooling": "concat",
        "pair_order": "given",
        "label_smoothing": 0.0,
        "language_model_weight": 0.0,
        **own,
    }


def search_space(*poolings: str) -> Settings:
    """Return what `tune` searches for a transformer."""
    return {
        "finetune_lm.optimizer.lr": {"low": 0.0001, "high": 0.003, "log": True},
        "finetune_classifier.optimizer.lr": {"low": 0.00002, "high": 0.002, "log": True},
        "finetune_classifier.pooling": {"choices": list(poolings)},
        "config.attention_dropout": {"low": 0.0, "high": 0.3},
        "config.residual_dropout": {"low": 0.0, "high": 0.3},
    }
