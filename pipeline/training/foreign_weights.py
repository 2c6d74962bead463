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

from torch import Tensor

from models.foreign import ARCHITECTURES, Architecture, Entry, taken

CONFIG_FILE, WEIGHTS_FILE = "config.json", "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
_PICKLED = ("pytorch_model.bin", "pytorch_model.bin.index.json", "model.pt", "model.pth")
_SHOWN = 5


@dataclass(frozen=True)
class ForeignNetwork:
    """A network in our names."""

    family: str
    config: dict[str, Any]  # settings of the family, without dropouts
    tensors: dict[str, Tensor]  # float32: `encoder.*`, and of the decoder what there was
    begins_anew: tuple[str, ...]  # parts that the folder lacks: the decoder, next sentence prediction
    vocab_size: int


def read_network(folder: Path) -> ForeignNetwork:
    """Read a network.

    Raises:
        ValueError: it is no such folder, a file is damaged, the architecture is unknown, or a tensor is
            missing, superfluous or of another shape; the message names the file and says what to do.
    """
    described = _read_json(folder, CONFIG_FILE)
    architecture = _architecture_of(folder, described)
    theirs = _without_prefix(_read_tensors(folder), architecture)
    try:
        config = architecture.settings(described)
    except (KeyError, TypeError, ValueError) as error:
        reason = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"{folder / CONFIG_FILE}: {reason}; fetch the folder again") from error
    entries = list(architecture.entries(config))
    absent = _absent_parts(folder, entries, theirs)
    wanted = [entry for entry in entries if entry.part not in absent]
    if architecture.family == "bert":
        config["pooler"] = any(entry.part == "pooler" for entry in wanted)
    _refuse_superfluous(folder, wanted, theirs, architecture)
    tensors = {_our_name(entry): taken(entry, theirs, architecture.first_position) for entry in wanted}
    return ForeignNetwork(
        architecture.family,
        config,
        tensors,
        tuple(sorted(absent - {"pooler"})),
        len(tensors["encoder.embedding.weight"]),
    )


def _our_name(entry: Entry) -> str:
    return f"encoder.{entry.ours}" if entry.part in ("encoder", "pooler") else entry.ours


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


def _architecture_of(folder: Path, described: Mapping[str, Any]) -> Architecture:
    known = {each.model_type: each for each in ARCHITECTURES}
    kind = described.get("model_type")
    if kind not in known:
        raise ValueError(
            f"{folder / CONFIG_FILE}: its model_type is {kind!r}, which is not known here; known: "
            f"{', '.join(known)}"
        )
    return known[kind]


def _read_tensors(folder: Path) -> dict[str, Tensor]:
    files = [folder / WEIGHTS_FILE]
    if (folder / INDEX_FILE).is_file():
        names = _read_json(folder, INDEX_FILE).get("weight_map")
        if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
            raise ValueError(f"{folder / INDEX_FILE}: it has no weight_map of files; fetch it again")
        if outside := [name for name in names.values() if Path(name).name != name]:
            raise ValueError(f"{folder / INDEX_FILE}: {outside[0]!r} is no file of the folder")
        files = [folder / name for name in sorted(set(names.values()))]
    tensors: dict[str, Tensor] = {}
    for file in files:
        tensors |= _read_file(folder, file)
    return tensors


def _read_file(folder: Path, file: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not file.is_file():
        pickled = next((name for name in _PICKLED if (folder / name).exists()), None)
        if pickled is not None:
            raise ValueError(
                f"{folder} holds {pickled}, which is pickled: loading it would run whatever code it holds. "
                'Convert it where you trust it: python -c "from transformers import AutoModel; '
                f"AutoModel.from_pretrained('{folder}').save_pretrained('{folder}-safe')\""
            )
        raise ValueError(f"{file}: no such file; fetch it again")
    try:
        return load_file(file)
    except (SafetensorError, ValueError, OSError) as error:
        raise ValueError(f"{file}: no valid safetensors file ({error}); fetch it again") from error


def _without_prefix(tensors: Mapping[str, Tensor], architecture: Architecture) -> dict[str, Tensor]:
    return {name.removeprefix(architecture.prefix): tensor for name, tensor in tensors.items()}


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
    unknown = [name for name in theirs if name not in known and not name.endswith(architecture.ignored)]
    if unknown:
        raise ValueError(
            f"{folder}: its weights hold {_some(unknown)}, which a {architecture.model_type} as in "
            f"{CONFIG_FILE} does not have; it may be a model for another task: save its encoder alone"
        )


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(sorted(names)[:_SHOWN]) + more
