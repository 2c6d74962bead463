"""Exports a language model as a folder that Hugging Face's `transformers` loads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from models import bert, gpt
from models.config import FamilyConfig
from models.family import lookup
from models.foreign import ARCHITECTURES, Architecture, Entry, TheirConfig, their_tensors
from pipeline.artifacts.model_folder import load_model
from pipeline.corpus.tokenizer import Tokenizer
from pipeline.corpus.tokenizer_kinds import load_tokenizer
from pipeline.corpus.tokenizers_tokenizer import TokenizersTokenizer
from pipeline.files.atomic import atomic_folder
from pipeline.training.cards import ModelCard
from pipeline.training.foreign_weights import CONFIG_FILE, WEIGHTS_FILE

_TOKENIZER_SETTINGS = "tokenizer_config.json"


def export_network(model: Path, tokenizer: Path, folder: Path) -> list[str]:
    """Write the language model in the folder `model` to `folder`; return sentences on what differs there.

    The tokenizer goes with it if it is one of the `tokenizers` library; `transformers` reads no other.

    Raises:
        ValueError: there is no such model, its family has no counterpart, or `folder` holds something.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        state = "not empty" if folder.is_dir() else "a file"
        raise ValueError(f"{folder} is {state}; name a folder that does not exist yet")
    tensors, card = load_model(model)
    config = lookup(card.family).config(**card.config)
    architecture = _architecture(card.family, config)
    entries = [entry for entry in architecture.entries(config.num_layers) if entry.name in tensors]
    lost = sorted(tensors.keys() - {entry.name for entry in entries} - {"decoder_weight"})
    pieces = load_tokenizer(tokenizer)
    with atomic_folder(folder) as aside:
        their_config = _config_file(architecture, config, card, tensors, pieces)
        (aside / CONFIG_FILE).write_text(json.dumps(their_config, indent=2) + "\n", encoding="utf-8")
        _write_tensors(aside / WEIGHTS_FILE, architecture, entries, tensors)
        if isinstance(pieces, TokenizersTokenizer):
            (aside / "tokenizer.json").write_bytes(pieces.content)
            settings = json.dumps(_tokenizer_settings(pieces, config.context), indent=2, ensure_ascii=False)
            (aside / _TOKENIZER_SETTINGS).write_text(settings + "\n", encoding="utf-8")
    return _differences(lost, tensors, pieces)


def _architecture(family: str, config: FamilyConfig) -> Architecture:
    known = {network.model_type: network for network in ARCHITECTURES}
    if isinstance(config, bert.Config):
        return known["bert" if config.num_segments else "distilbert"]
    if isinstance(config, gpt.Config):
        return known["gpt2" if config.norm_first else "openai-gpt"]
    names = ", ".join(sorted({network.family for network in ARCHITECTURES}))
    raise ValueError(f"the family {family} has no counterpart in `transformers`; known: {names}")


def _config_file(
    architecture: Architecture,
    config: FamilyConfig,
    card: ModelCard,
    tensors: Mapping[str, Tensor],
    pieces: Tokenizer,
) -> TheirConfig:
    name = architecture.class_name
    if architecture.model_type == "bert" and "next_sentence.weight" not in tensors:
        name = "BertForMaskedLM"
    ids = {"pad_token_id": pieces.pad_id, "bos_token_id": pieces.bos_id, "eos_token_id": pieces.eos_id}
    return {
        "architectures": [name],
        "model_type": architecture.model_type,
        "tie_word_embeddings": "decoder_weight" not in tensors,
        **architecture.their_config(config, card.vocab_size),
        **ids,
    }


def _tokenizer_settings(pieces: Tokenizer, context: int) -> dict[str, str | int]:
    """Which piece is which: `transformers` takes those of the architecture, whatever the tokenizer has."""
    ids = {
        "pad": pieces.pad_id, "unk": pieces.unk_id, "bos": pieces.bos_id, "eos": pieces.eos_id,
        "cls": pieces.bos_id, "sep": pieces.eos_id, "mask": pieces.mask_id,
    }  # fmt: skip
    named = {f"{part}_token": pieces.vocabulary[token] for part, token in ids.items() if token is not None}
    return {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": context, **named}


def _write_tensors(
    file: Path, architecture: Architecture, entries: list[Entry], tensors: Mapping[str, Tensor]
) -> None:
    from safetensors.torch import save_file

    theirs: dict[str, Tensor] = {}
    for entry in entries:
        converted = their_tensors(entry, tensors[entry.name], architecture.first_position)
        prefix = "" if entry.part in ("head", "pairs") else architecture.prefix
        theirs |= {prefix + name: tensor for name, tensor in converted.items()}
    if "decoder_weight" in tensors:
        theirs[architecture.decoder] = tensors["decoder_weight"]
    save_file({name: tensor.contiguous() for name, tensor in theirs.items()}, file, metadata={"format": "pt"})


def _differences(lost: list[str], tensors: Mapping[str, Tensor], pieces: Tokenizer) -> list[str]:
    differences = []
    if "decoder_bias" in lost and bool(tensors["decoder_bias"].any()):
        differences.append(
            "the bias of the decoder is left out, as the architecture has none: logits differ by it"
        )
    if not isinstance(pieces, TokenizersTokenizer):
        differences.append(
            f"{pieces.FILE} is not written, as `transformers` does not read it: give the model token ids of "
            "headstart's tokenizer"
        )
    return differences
