"""Networks as Hugging Face's `transformers` stores them, by architecture: settings and names of tensors.

A table for each architecture says which of their tensors make one of ours, and in which form, so that one
table serves both ways. Reference code: huggingface/transformers, src/transformers/models.

Shapes: E width, F feed-forward width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from models import bert, gpt

# stacked: several of theirs beside one another; transposed: (in, out) in place of (out, in); offset: theirs
# has rows before the first.
Form = Literal["same", "stacked", "transposed", "offset"]
# head: of the decoder, which a model without one lacks as a whole; it begins anew.
Part = Literal["encoder", "pooler", "head", "pairs"]

_ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}
_WEIGHT_AND_BIAS = ("weight", "bias")

TheirConfig = dict[str, Any]  # config.json: border to JSON
Settings = dict[str, Any]  # of our `Config`, without dropouts


@dataclass(frozen=True)
class Entry:
    """A tensor of ours, and the tensors of theirs that make it."""

    ours: str
    theirs: tuple[str, ...]
    form: Form = "same"
    part: Part = "encoder"

    @property
    def name(self) -> str:
        """The name of our tensor in a language model."""
        return f"encoder.{self.ours}" if self.part in ("encoder", "pooler") else self.ours


@dataclass(frozen=True)
class Architecture:
    """A network of theirs."""

    model_type: str  # in config.json
    class_name: str  # of the model with its decoder
    family: str
    prefix: str  # before the names of the encoder's tensors, if there is more than an encoder
    entries: Callable[[int], Iterator[Entry]]  # for a number of layers
    settings: Callable[[TheirConfig], Settings]
    their_config: Callable[[Any, int], TheirConfig]  # our family's `Config` and V -> their config.json
    decoder: str  # the decoder's matrix, which most folders leave out, as it is the embedding
    ignored: tuple[str, ...] = ()  # endings of tensors that hold no weights, or repeat others
    first_position: int = 0  # row of the first position


def our_tensor(entry: Entry, tensors: Mapping[str, Tensor], first_position: int) -> Tensor:
    """Return our tensor of an entry from theirs, in float32."""
    sources = [tensors[name].float() for name in entry.theirs]
    if entry.form == "stacked":
        return torch.cat(sources)
    (tensor,) = sources
    if entry.form == "transposed":
        return tensor.t().contiguous()
    return tensor[first_position:].clone() if entry.form == "offset" else tensor


def their_tensors(entry: Entry, tensor: Tensor, first_position: int) -> dict[str, Tensor]:
    """Return their tensors of an entry from ours."""
    if entry.form == "stacked":
        parts = tensor.chunk(len(entry.theirs))
        return {name: part.contiguous() for name, part in zip(entry.theirs, parts, strict=True)}
    if entry.form == "transposed":
        tensor = tensor.t().contiguous()
    if entry.form == "offset":
        tensor = torch.cat([tensor.new_zeros(first_position, tensor.shape[1]), tensor])
    return {entry.theirs[0]: tensor}


def _both(ours: str, *theirs: str, form: Form = "same", part: Part = "encoder") -> Iterator[Entry]:
    """Weight and bias of a module."""
    for name in _WEIGHT_AND_BIAS:
        own_form: Form = "same" if form == "transposed" and name == "bias" else form
        yield Entry(f"{ours}.{name}", tuple(f"{module}.{name}" for module in theirs), own_form, part)


def _activation(name: Any) -> str:
    if not isinstance(name, str) or name not in _ACTIVATIONS:
        raise ValueError(f"its activation is {name!r}; known: {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[name]


def _their_activation(ours: str) -> str:
    return {"gelu_tanh": "gelu_new"}.get(ours, ours)


# ------------------------------------------------------------------------------------ BERT, RoBERTa


def _bert_encoder(num_layers: int) -> Iterator[Entry]:
    yield Entry("embedding.weight", ("embeddings.word_embeddings.weight",))
    yield Entry("positions.weight", ("embeddings.position_embeddings.weight",), "offset")
    yield Entry("segments.weight", ("embeddings.token_type_embeddings.weight",))
    yield from _both("embedding_norm", "embeddings.LayerNorm")
    for layer in range(num_layers):
        ours, theirs = f"layers.{layer}", f"encoder.layer.{layer}"
        inputs = (f"{theirs}.attention.self.{name}" for name in ("query", "key", "value"))
        yield from _both(f"{ours}.attention.inputs", *inputs, form="stacked")
        yield from _both(f"{ours}.attention.output", f"{theirs}.attention.output.dense")
        yield from _both(f"{ours}.attention_norm", f"{theirs}.attention.output.LayerNorm")
        yield from _both(f"{ours}.expand", f"{theirs}.intermediate.dense")
        yield from _both(f"{ours}.contract", f"{theirs}.output.dense")
        yield from _both(f"{ours}.feedforward_norm", f"{theirs}.output.LayerNorm")
    yield from _both("pooler", "pooler.dense", part="pooler")


def _bert(num_layers: int) -> Iterator[Entry]:
    yield from _bert_encoder(num_layers)
    yield from _both("transform", "cls.predictions.transform.dense", part="head")
    yield from _both("transform_norm", "cls.predictions.transform.LayerNorm", part="head")
    yield Entry("decoder_bias", ("cls.predictions.bias",), part="head")
    yield from _both("next_sentence", "cls.seq_relationship", part="pairs")


def _roberta(num_layers: int) -> Iterator[Entry]:
    yield from _bert_encoder(num_layers)
    yield from _both("transform", "lm_head.dense", part="head")
    yield from _both("transform_norm", "lm_head.layer_norm", part="head")
    yield Entry("decoder_bias", ("lm_head.bias",), part="head")


def _bert_settings(theirs: TheirConfig) -> Settings:
    if theirs.get("is_decoder"):
        raise ValueError("its is_decoder is true: it reads from left to right, which is not known here")
    if theirs.get("position_embedding_type", "absolute") != "absolute":
        raise ValueError(
            f"its positions are {theirs['position_embedding_type']!r}; only absolute ones are known"
        )
    return {
        "embedding_dim": theirs["hidden_size"],
        "feedforward_dim": theirs["intermediate_size"],
        "num_layers": theirs["num_hidden_layers"],
        "num_heads": theirs["num_attention_heads"],
        "context": theirs["max_position_embeddings"],
        "activation": _activation(theirs.get("hidden_act", "gelu")),
        "norm_epsilon": theirs.get("layer_norm_eps", 1e-12),
        "num_segments": theirs.get("type_vocab_size", 2),
    }


def _roberta_settings(theirs: TheirConfig) -> Settings:
    return _bert_settings(theirs) | {"context": theirs["max_position_embeddings"] - ROBERTA_FIRST_POSITION}


def _their_bert(ours: bert.Config, vocab_size: int) -> TheirConfig:
    return {
        "hidden_size": ours.embedding_dim,
        "intermediate_size": ours.feedforward_dim,
        "num_hidden_layers": ours.num_layers,
        "num_attention_heads": ours.num_heads,
        "max_position_embeddings": ours.context,
        "hidden_act": _their_activation(ours.activation),
        "layer_norm_eps": ours.norm_epsilon,
        "type_vocab_size": ours.num_segments,
        "hidden_dropout_prob": ours.residual_dropout,
        "attention_probs_dropout_prob": ours.attention_dropout,
        "vocab_size": vocab_size,
    }


# -------------------------------------------------------------------------------------- DistilBERT


_DISTILBERT_EPSILON = 1e-12


def _distilbert(num_layers: int) -> Iterator[Entry]:
    yield Entry("embedding.weight", ("embeddings.word_embeddings.weight",))
    yield Entry("positions.weight", ("embeddings.position_embeddings.weight",), "offset")
    yield from _both("embedding_norm", "embeddings.LayerNorm")
    for layer in range(num_layers):
        ours, theirs = f"layers.{layer}", f"transformer.layer.{layer}"
        inputs = (f"{theirs}.attention.{name}" for name in ("q_lin", "k_lin", "v_lin"))
        yield from _both(f"{ours}.attention.inputs", *inputs, form="stacked")
        yield from _both(f"{ours}.attention.output", f"{theirs}.attention.out_lin")
        yield from _both(f"{ours}.attention_norm", f"{theirs}.sa_layer_norm")
        yield from _both(f"{ours}.expand", f"{theirs}.ffn.lin1")
        yield from _both(f"{ours}.contract", f"{theirs}.ffn.lin2")
        yield from _both(f"{ours}.feedforward_norm", f"{theirs}.output_layer_norm")
    yield from _both("transform", "vocab_transform", part="head")
    yield from _both("transform_norm", "vocab_layer_norm", part="head")
    yield Entry("decoder_bias", ("vocab_projector.bias",), part="head")


def _distilbert_settings(theirs: TheirConfig) -> Settings:
    return {
        "embedding_dim": theirs["dim"],
        "feedforward_dim": theirs["hidden_dim"],
        "num_layers": theirs["n_layers"],
        "num_heads": theirs["n_heads"],
        "context": theirs["max_position_embeddings"],
        "activation": _activation(theirs.get("activation", "gelu")),
        "norm_epsilon": _DISTILBERT_EPSILON,
        "num_segments": 0,
    }


def _their_distilbert(ours: bert.Config, vocab_size: int) -> TheirConfig:
    if ours.norm_epsilon != _DISTILBERT_EPSILON:
        raise ValueError(
            f"config.norm_epsilon is {ours.norm_epsilon}, but a DistilBERT in `transformers` has "
            f"{_DISTILBERT_EPSILON} always"
        )
    return {
        "dim": ours.embedding_dim,
        "hidden_dim": ours.feedforward_dim,
        "n_layers": ours.num_layers,
        "n_heads": ours.num_heads,
        "max_position_embeddings": ours.context,
        "activation": _their_activation(ours.activation),
        "dropout": ours.residual_dropout,
        "attention_dropout": ours.attention_dropout,
        "vocab_size": vocab_size,
    }


# ----------------------------------------------------------------------------------------- GPT, GPT-2


def _gpt(num_layers: int, token: str, position: str, last: str | None) -> Iterator[Entry]:
    yield Entry("embedding.weight", (token,))
    yield Entry("positions.weight", (position,), "offset")
    for layer in range(num_layers):
        ours, theirs = f"layers.{layer}", f"h.{layer}"
        yield from _both(f"{ours}.attention.inputs", f"{theirs}.attn.c_attn", form="transposed")
        yield from _both(f"{ours}.attention.output", f"{theirs}.attn.c_proj", form="transposed")
        yield from _both(f"{ours}.attention_norm", f"{theirs}.ln_1")
        yield from _both(f"{ours}.expand", f"{theirs}.mlp.c_fc", form="transposed")
        yield from _both(f"{ours}.contract", f"{theirs}.mlp.c_proj", form="transposed")
        yield from _both(f"{ours}.feedforward_norm", f"{theirs}.ln_2")
    if last is not None:
        yield from _both("final_norm", last)


def _gpt2(num_layers: int) -> Iterator[Entry]:
    return _gpt(num_layers, "wte.weight", "wpe.weight", "ln_f")


def _openai_gpt(num_layers: int) -> Iterator[Entry]:
    return _gpt(num_layers, "tokens_embed.weight", "positions_embed.weight", None)


def _gpt2_settings(theirs: TheirConfig) -> Settings:
    for name in ("scale_attn_by_inverse_layer_idx", "add_cross_attention"):
        if theirs.get(name):
            raise ValueError(f"its {name} is true, which is not known here")
    if theirs.get("scale_attn_weights", True) is False:
        raise ValueError("its scale_attn_weights is false, which is not known here")
    return _gpt_sizes(theirs) | {
        "activation": _activation(theirs.get("activation_function", "gelu_new")),
        "feedforward_dim": theirs.get("n_inner") or 4 * theirs["n_embd"],
        "norm_first": True,
    }


def _openai_gpt_settings(theirs: TheirConfig) -> Settings:
    # Their `gelu` is the approximation of the paper's code here.
    activation = {"gelu": "gelu_new"}.get(theirs.get("afn", "gelu"), theirs.get("afn"))
    return _gpt_sizes(theirs) | {
        "activation": _activation(activation),
        "feedforward_dim": 4 * theirs["n_embd"],
        "norm_first": False,
    }


def _gpt_sizes(theirs: TheirConfig) -> Settings:
    return {
        "embedding_dim": theirs["n_embd"],
        "num_layers": theirs["n_layer"],
        "num_heads": theirs["n_head"],
        "context": theirs["n_positions"],
        "norm_epsilon": theirs.get("layer_norm_epsilon", 1e-5),
    }


def _their_gpt2(ours: gpt.Config, vocab_size: int) -> TheirConfig:
    return _their_gpt_sizes(ours, vocab_size) | {
        "activation_function": _their_activation(ours.activation),
        "n_inner": ours.feedforward_dim,
    }


def _their_openai_gpt(ours: gpt.Config, vocab_size: int) -> TheirConfig:
    width, inner, activation = ours.embedding_dim, ours.feedforward_dim, ours.activation
    if inner != 4 * width:
        raise ValueError(
            f"config.feedforward_dim is {inner}, but the first GPT in `transformers` has 4 times its width "
            f"always, {4 * width} here"
        )
    named = {"gelu_tanh": "gelu", "relu": "relu"}
    if activation not in named:
        raise ValueError(
            f"config.activation is {activation}, but the first GPT in `transformers` has {' or '.join(named)}"
        )
    return _their_gpt_sizes(ours, vocab_size) | {"afn": named[activation]}


def _their_gpt_sizes(ours: gpt.Config, vocab_size: int) -> TheirConfig:
    return {
        "n_embd": ours.embedding_dim,
        "n_layer": ours.num_layers,
        "n_head": ours.num_heads,
        "n_positions": ours.context,
        "layer_norm_epsilon": ours.norm_epsilon,
        "embd_pdrop": ours.embedding_dropout,
        "resid_pdrop": ours.residual_dropout,
        "attn_pdrop": ours.attention_dropout,
        "vocab_size": vocab_size,
    }


ROBERTA_FIRST_POSITION = 2  # behind the padding's row, whose number is 1

ARCHITECTURES = (
    Architecture(
        "bert", "BertForPreTraining", "bert", "bert.", _bert, _bert_settings, _their_bert,
        "cls.predictions.decoder.weight",
        ignored=("embeddings.position_ids", "cls.predictions.decoder.bias"),
    ),
    Architecture(
        "roberta", "RobertaForMaskedLM", "bert", "roberta.", _roberta, _roberta_settings,
        lambda ours, vocab_size: _their_bert(ours, vocab_size)
        | {"max_position_embeddings": ours.context + ROBERTA_FIRST_POSITION},
        "lm_head.decoder.weight",
        ignored=("embeddings.position_ids", "lm_head.decoder.bias"),
        first_position=ROBERTA_FIRST_POSITION,
    ),
    Architecture(
        "distilbert", "DistilBertForMaskedLM", "bert", "distilbert.", _distilbert, _distilbert_settings,
        _their_distilbert, "vocab_projector.weight",
    ),
    Architecture(
        "gpt2", "GPT2LMHeadModel", "gpt", "transformer.", _gpt2, _gpt2_settings, _their_gpt2,
        "lm_head.weight", ignored=(".attn.bias", ".attn.masked_bias"),
    ),
    Architecture(
        "openai-gpt", "OpenAIGPTLMHeadModel", "gpt", "transformer.", _openai_gpt, _openai_gpt_settings,
        _their_openai_gpt, "lm_head.weight", ignored=(".attn.bias", "position_ids"),
    ),
)  # fmt: skip
