"""Tiny models of the families that come with the project, and settings of their own. Not a test itself."""

from __future__ import annotations

from typing import Any

from models.family import lookup
from pipeline.objectives.lookup import objective_of
from pipeline.training.settings import LanguageModelSettings, Model, Training

_DROPOUTS = {
    "embedding_dropout": 0.1, "input_dropout": 0.2, "hidden_dropout": 0.2, "output_dropout": 0.2,
    "weight_dropout": 0.3,
}  # fmt: skip
_LAYERS = {
    "embedding_dim": 8, "feedforward_dim": 12, "num_layers": 2, "num_heads": 2, "embedding_dropout": 0.1,
    "attention_dropout": 0.2, "residual_dropout": 0.2,
}  # fmt: skip
_TRANSFORMER = {**_LAYERS, "context": 14}
MODELS = {
    "awd_lstm": Model(
        family="awd_lstm",
        config={"embedding_dim": 6, "hidden_dim": 8, "num_layers": 2, "tie_weights": True, **_DROPOUTS},
    ),
    "word_vectors": Model(
        family="word_vectors",
        config={"algorithm": "skip_gram", "embedding_dim": 6, "embedding_dropout": 0.1},
    ),
    "gpt": Model(family="gpt", config=_TRANSFORMER),
    "bert": Model(family="bert", config=_TRANSFORMER),
    "transformer_xl": Model(
        family="transformer_xl", config={**_LAYERS, "memory": 9, "evaluation_memory": 20}
    ),
    "elmo": Model(
        family="elmo",
        config={
            "embedding_dim": 4,
            "filters": [3, 5, 4],
            "num_highway": 1,
            "projection_dim": 5,
            "hidden_dim": 7,
            "num_layers": 2,
            "max_characters": 6,
            "softmax_words": 12,
            "input_dropout": 0.1,
            "hidden_dropout": 0.2,
            "output_dropout": 0.1,
        },
    ),
    "cove": Model(
        family="cove",
        config={
            "embedding_dim": 5,
            "hidden_dim": 4,
            "num_layers": 2,
            "input_dropout": 0.1,
            "hidden_dropout": 0.2,
            "output_dropout": 0.1,
        },
    ),
    "ntm": Model(
        family="ntm",
        config={
            "embedding_dim": 6,
            "hidden_dim": 7,
            "num_slots": 5,
            "slot_dim": 4,
            "input_dropout": 0.1,
            "output_dropout": 0.2,
        },
    ),
}
FAMILIES = list(MODELS)
TEXTS = {"cove": 2}  # of a document that its language-model stages learn from; of others one
# What the objective of each family adds to what all share: an epoch of a few hundred tokens has ten steps.
_CAUSAL = {
    "batch_rows": 5, "bptt": 6, "variable_bptt": False, "ar_alpha": 2.0, "tar_beta": 1.0,
    "sampled_words": None,
}  # fmt: skip
OWN: dict[str, dict[str, Any]] = {
    "bert": {
        "batch_rows": 5, "row_tokens": 12, "masked_share": 0.3, "whole_words": False, "next_sentence": False,
    },
    "awd_lstm": {**_CAUSAL, "variable_bptt": True},
    "word_vectors": {
        "batch_rows": 5, "row_tokens": 8, "window": 3, "negatives": 2, "shared_negatives": 4,
        "subsample": 0.03, "count_cap": 3.0,
    },
    "gpt": _CAUSAL,
    "transformer_xl": _CAUSAL,
    "ntm": _CAUSAL,
    "elmo": {"batch_rows": 5, "row_tokens": 12, "sampled_words": 6},
    "cove": {"batch_pairs": 5, "max_tokens": 9},
}  # fmt: skip


def model_of(family: str, **config: Any) -> Model:
    """The tiny model of a family, with changes of its config."""
    model = MODELS[family]
    return Model(family=family, config={**model.config, **config})


def language_model_settings(family: str, common: dict[str, Any], **own: Any) -> LanguageModelSettings:
    """Settings of a language-model stage: those that all families share, and changes of the family's own."""
    objective = objective_of(lookup(family))
    return LanguageModelSettings(Training(**common), objective.Settings(**{**OWN[family], **own}))
