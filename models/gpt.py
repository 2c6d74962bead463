"""GPT and GPT-2: a transformer that reads from left to right.

Sources: Radford et al. 2018, "Improving Language Understanding by Generative Pre-Training"; for `norm_first`
Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", section 2.3. Reference code:
openai/finetune-transformer-lm and openai/gpt-2.

Departure: the decoder has a bias, as all decoders here; one of zeros is none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from models.family import Family
from models.transformer import Activation, Transformer, TransformerConfig, layer_groups


@dataclass(frozen=True)
class Config(TransformerConfig):
    activation: Activation = "gelu_tanh"
    norm_first: bool = True  # GPT-2; false: GPT
    tie_weights: bool = True  # decoder and embedding share one matrix


class GPT(Transformer):
    def __init__(self, config: Config, vocab_size: int) -> None:
        super().__init__(config, vocab_size, is_causal=True, norm_first=config.norm_first)


def _training(**changes: Any) -> dict[str, Any]:
    return {
        "epochs": 0.4,
        "batch_rows": 32,
        "bptt": 128,
        "variable_bptt": False,
        "optimizer": {
            "kind": "adamw",
            "lr": 0.003,
            "momentum": 0.9,
            "beta2": 0.98,
            "weight_decay": 0.01,
            "clip_norm": 1.0,
            "nonmonotone_interval": 5,
            "discriminative_factor": 1.0,
        },
        "schedule": {"kind": "linear", "cut_frac": 0.1, "ratio": 32.0, "span": "run"},
        "unfreeze": "full",
        "epochs_per_unfreezing": 1.0,
        "dropout": 0.1,
        "ar_alpha": 0.0,
        "tar_beta": 0.0,
        "sampled_words": None,
        "evaluations_per_epoch": 2,
        **changes,
    }


_CLASSIFIER: dict[str, Any] = {
    "epochs": 2.0,
    "min_steps": 60,
    "batch_rows": 32,
    "bptt": 128,
    "max_tokens": 128,
    "optimizer": {
        "kind": "adamw",
        "lr": 0.0005,
        "momentum": 0.9,
        "beta2": 0.98,
        "weight_decay": 0.01,
        "clip_norm": 1.0,
        "nonmonotone_interval": 5,
        "discriminative_factor": 1.0,
    },
    "schedule": {"kind": "linear", "cut_frac": 0.1, "ratio": 32.0, "span": "run"},
    "unfreeze": "full",
    "epochs_per_unfreezing": 0.1,
    "dropout": 1.0,
    "pooling": "concat",
    "label_smoothing": 0.0,
}

FAMILY = Family(
    name="gpt",
    config=Config,
    build=GPT,
    layer_groups=layer_groups,
    objective="causal",
    imports_networks=True,
    activations=12.0,
    defaults={
        "pretrain_lm": _training(),
        "finetune_lm": _training(),
        "finetune_classifier": _CLASSIFIER,
    },
    space={
        "finetune_lm.optimizer.lr": {"low": 0.0001, "high": 0.003, "log": True},
        "finetune_classifier.optimizer.lr": {"low": 0.00002, "high": 0.002, "log": True},
        "finetune_classifier.pooling": {"choices": ["last", "concat", "mean"]},
        "config.attention_dropout": {"low": 0.0, "high": 0.3},
        "config.residual_dropout": {"low": 0.0, "high": 0.3},
    },
)
