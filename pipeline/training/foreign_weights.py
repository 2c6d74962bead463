"""Networks from elsewhere: a folder as Hugging Face's `transformers` writes it, in our shapes and names.

The folder holds `config.json` and `model.safetensors`, or several files that `model.safetensors.index.json`
lists. Pickled weights are refused: loading them runs whatever code they hold.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from models.foreign import ARCHITECTURES, Architecture, Entry, Settings, TheirConfig, our_tensor

CONFIG_FILE, WEIGHTS_FILE = "config.json", "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
_PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt")
_SIZES = ("embedding_dim", "feedforward_dim", "num_layers", "num_heads", "context", "num_segments")
_OLD_NAMES = {"gamma": "weight", "beta": "bias"}  # of norms, in files that began as TensorFlow's
_SHOWN = 5


@dataclass(frozen=True)
class ForeignNetwork:
    """A network in our names."""

    family: str
    config: Settings
    tensors: dict[str, Tensor]  # float32: `encoder.*`, and of the decoder what there was
    begins_anew: tuple[str, ...]  # parts that the folder lacks: the decoder, next sentence prediction
    vocab_size: int
    theirs: dict[str, str]  # the names in the folder of what made each tensor


def read_network(folder: Path) -> ForeignNetwork:
    """Read a network.

    Raises:
        ValueError: it is no such folder, a file is damaged, the architecture is unknown, or a tensor is
            missing, superfluous or of another shape; the message names the file and says what to do.
    """
    their_config = _read_json(folder, CONFIG_FILE)
    architecture = _architecture_of(folder, their_config)
    theirs = _as_named_today(_read_tensors(folder, their_config), architecture)
    config = _config_of(folder, architecture, their_config)
    if config["num_layers"] > len(theirs):
        raise ValueError(
            f"{folder / CONFIG_FILE}: it has {config['num_layers']:,} layers, but there are {len(theirs)} "
            "tensors; fetch the folder again"
        )
    entries = list(architecture.entries(config["num_layers"]))
    absent = _absent_parts(folder, entries, theirs)
    wanted = [entry for entry in entries if entry.part not in absent]
    if architecture.family == "bert":
        config["pooler"] = any(entry.part == "pooler" for entry in wanted)
    _refuse_superfluous(folder, wanted, theirs, architecture)
    decoder = Entry("decoder_weight", (architecture.decoder,))
    for entry in [*wanted, *([decoder] if architecture.decoder in theirs else [])]:
        _check(folder, entry, theirs)
    tensors = {entry.name: our_tensor(entry, theirs, architecture.first_position) for entry in wanted}
    own_decoder = _own_decoder(theirs.get(architecture.decoder), tensors["encoder.embedding.weight"])
    if architecture.family == "gpt":
        config["tie_weights"] = own_decoder is None
    elif own_decoder is not None:
        raise ValueError(
            f"{folder}: its decoder, {architecture.decoder}, is another matrix than its embedding, which is "
            f"not known here for a {architecture.model_type}; save its encoder alone: "
            f"{_conversion(folder, {})}"
        )
    if own_decoder is not None:
        tensors["decoder_weight"] = own_decoder
    return ForeignNetwork(
        architecture.family,
        config,
        tensors,
        tuple(sorted(absent - {"pooler"})),
        len(tensors["encoder.embedding.weight"]),
        {entry.name: ", ".join(entry.theirs) for entry in [*wanted, decoder]},
    )


def _read_json(folder: Path, name: str) -> dict[str, Any]:
    file = folder / name
    if not file.is_file():
        raise ValueError(
            f"{folder} holds no {name}; name a folder as Hugging Face's `transformers` writes it, with "
            f"{CONFIG_FILE} and {WEIGHTS_FILE}"
        )
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file}: damaged ({error}); fetch it again") from error
    if not isinstance(content, dict):
        raise ValueError(f"{file}: expected an object of settings; fetch it again")
    return content


def _architecture_of(folder: Path, their_config: TheirConfig) -> Architecture:
    known = {architecture.model_type: architecture for architecture in ARCHITECTURES}
    kind = their_config.get("model_type")
    if not isinstance(kind, str) or kind not in known:
        raise ValueError(
            f"{folder / CONFIG_FILE}: its model_type is {kind!r}, which is not known here; known: "
            f"{', '.join(known)}"
        )
    return known[kind]


def _config_of(folder: Path, architecture: Architecture, their_config: TheirConfig) -> Settings:
    """Our config. Raises ValueError if a setting is missing, of another type, or not known."""
    file = folder / CONFIG_FILE
    try:
        config = architecture.settings(their_config)
    except KeyError as error:
        raise ValueError(f"{file}: it has no {error}; fetch the folder again") from error
    except (TypeError, ValueError) as error:
        raise ValueError(f"{file}: {error}; take another model, or one trained here") from error
    for name, value in config.items():
        least = 0 if name == "num_segments" else 1
        wrong = not isinstance(value, int) or isinstance(value, bool) or value < least
        if name in _SIZES and wrong:
            raise ValueError(
                f"{file}: its {name} is {value!r}, no number of at least {least}; fetch it again"
            )
    epsilon = config["norm_epsilon"]
    if not isinstance(epsilon, float) or not 0 < epsilon < 1:
        raise ValueError(f"{file}: its norm_epsilon is {epsilon!r}, no number from 0 to 1; fetch it again")
    return config


def _read_tensors(folder: Path, their_config: TheirConfig) -> dict[str, Tensor]:
    files = [folder / WEIGHTS_FILE]
    if not files[0].is_file() and (folder / INDEX_FILE).is_file():  # as `transformers` chooses
        names = _read_json(folder, INDEX_FILE).get("weight_map")
        if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
            raise ValueError(f"{folder / INDEX_FILE}: it has no weight_map of files; fetch it again")
        if outside := [name for name in names.values() if Path(name).name != name]:
            raise ValueError(f"{folder / INDEX_FILE}: {outside[0]!r} is no file of the folder")
        files = [folder / name for name in sorted(set(names.values()))]
    tensors: dict[str, Tensor] = {}
    for file in files:
        tensors |= _read_file(folder, file, their_config)
    return tensors


def _read_file(folder: Path, file: Path, their_config: TheirConfig) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not file.is_file():
        pickled = sorted(path.name for pattern in _PICKLED for path in folder.glob(pattern))
        if pickled:
            raise ValueError(
                f"{folder} holds {pickled[0]}, which is pickled: loading it would run whatever code it "
                f"holds. Convert it where you trust it: {_conversion(folder, their_config)}"
            )
        raise ValueError(f"{file}: no such file; fetch it again")
    try:
        return load_file(file)
    except (SafetensorError, ValueError, OSError) as error:
        raise ValueError(f"{file}: no valid safetensors file ({error}); fetch it again") from error


def _conversion(folder: Path, their_config: TheirConfig) -> str:
    """A command that keeps what the model has: its class is the one that wrote the folder."""
    named = their_config.get("architectures")
    name = named[0] if isinstance(named, list) and named else ""
    kind = name if isinstance(name, str) and name.isidentifier() else "AutoModel"
    code = (
        f"from transformers import AutoTokenizer, {kind} as M; f, t = '{folder}', '{folder}-safe'; "
        "M.from_pretrained(f).save_pretrained(t); AutoTokenizer.from_pretrained(f).save_pretrained(t)"
    )
    return f'python -c "{code}"'


def _as_named_today(tensors: Mapping[str, Tensor], architecture: Architecture) -> dict[str, Tensor]:
    """Names without the prefix of the whole model, and those of norms as PyTorch has them, not TensorFlow."""
    renamed = {}
    for name, tensor in tensors.items():
        start, _, last = name.removeprefix(architecture.prefix).rpartition(".")
        renamed[".".join(filter(None, (start, _OLD_NAMES.get(last, last))))] = tensor
    return renamed


def _check(folder: Path, entry: Entry, theirs: Mapping[str, Tensor]) -> None:
    """Raise ValueError for a tensor that is no weight: of another rank, of integers, or not finite."""
    rank = 1 if entry.ours.endswith(("bias", "norm.weight")) else 2
    for name in entry.theirs:
        tensor, first = theirs[name], theirs[entry.theirs[0]]
        if tensor.dim() != rank or tensor.shape != first.shape:
            expected = f"one like that of {entry.theirs[0]}" if tensor.dim() == rank else f"{rank} dimensions"
            raise ValueError(
                f"{folder}: its tensor {name} has the shape {tuple(tensor.shape)}, and not {expected}; fetch "
                "the folder again"
            )
        if not tensor.is_floating_point():
            raise ValueError(f"{folder}: its tensor {name} is of {tensor.dtype}; weights are floating-point")
        if not bool(tensor.isfinite().all()):
            raise ValueError(
                f"{folder}: its tensor {name} holds numbers that are not finite; fetch the folder again"
            )


def _own_decoder(decoder_VE: Tensor | None, embedding_VE: Tensor) -> Tensor | None:
    """The decoder's matrix in float32 if it is another one than the embedding."""
    if decoder_VE is None or torch.equal(decoder_VE.float(), embedding_VE):
        return None
    return decoder_VE.float()


def _absent_parts(folder: Path, entries: Iterable[Entry], theirs: Mapping[str, Tensor]) -> set[str]:
    """The optional parts that are missing as a whole. Raises ValueError for a tensor missing on its own."""
    names: dict[str, list[str]] = {}
    for entry in entries:
        names.setdefault(entry.part, []).extend(entry.theirs)
    absent = set()
    for part, wanted in names.items():
        missing = [name for name in wanted if name not in theirs]
        if part != "encoder" and len(missing) == len(wanted):
            absent.add(part)
        elif missing:
            raise ValueError(f"{folder}: its weights lack {_some(missing)}; fetch the folder again")
    return absent


def _refuse_superfluous(
    folder: Path, entries: Iterable[Entry], theirs: Mapping[str, Tensor], architecture: Architecture
) -> None:
    known = {name for entry in entries for name in entry.theirs}
    ignored = (architecture.decoder, *architecture.ignored)
    unknown = [name for name in theirs if name not in known and not name.endswith(ignored)]
    if unknown:
        raise ValueError(
            f"{folder}: its weights hold {_some(unknown)}, which a {architecture.model_type} as in "
            f"{CONFIG_FILE} does not have. It may be a model for another task; save its encoder alone: "
            f"{_conversion(folder, {})}"
        )


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(sorted(names)[:_SHOWN]) + more
