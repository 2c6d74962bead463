"""The on-disk form of checkpoints and exported models: a folder of tensors, JSON and a manifest."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from pipeline.artifacts.tensors_file import read_tensors
from pipeline.files.manifest import MANIFEST_FILE, read_manifest, verify, write_manifest

TENSORS_FILE, STATE_FILE = "tensors.safetensors", "state.json"


def write_folder(
    folder: Path,
    tensors: Mapping[str, Tensor],
    state: Mapping[str, Any],
    extra_files: Mapping[str, bytes] = {},
) -> None:
    """Write tensors, JSON, extra files by name, and the manifest of all of them into a folder.

    Raises OSError if the disk is full.
    """
    _write_tensors(folder / TENSORS_FILE, tensors)
    (folder / STATE_FILE).write_text(json.dumps(state, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    for name, content in extra_files.items():
        (folder / name).write_bytes(content)
    write_manifest(folder, [TENSORS_FILE, STATE_FILE, *extra_files])


def _write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    # safetensors refuses tensors that share memory or are not contiguous.
    whole = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}
    try:
        save_file(whole, str(path))
    except SafetensorError as error:
        code = re.search(r"os error (\d+)", str(error))  # the only form in which it gives the errno
        if code is None:
            raise
        number = int(code[1])
        raise OSError(number, os.strerror(number), str(path)) from error


def read_folder(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read tensors and JSON. Raises ValueError if the folder is missing, torn or altered."""
    verify_folder(folder)
    return read_tensors(folder / TENSORS_FILE), _read_json(folder / STATE_FILE)


def read_state(folder: Path) -> dict[str, Any]:
    """Read the JSON alone; the tensors are neither read nor verified. Raises ValueError as `read_folder`."""
    _check_is_finished(folder)
    verify(folder, [STATE_FILE])
    return _read_json(folder / STATE_FILE)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not readable: {error}") from error
    if not isinstance(state, dict):
        raise ValueError(f"{path} holds {type(state).__name__}; expected an object")
    return state


def verify_folder(folder: Path) -> None:
    """Compare a folder with its manifest. Raises ValueError naming the file that differs."""
    _check_is_finished(folder)
    verify(folder, {TENSORS_FILE, STATE_FILE, *read_manifest(folder / MANIFEST_FILE)})


def _check_is_finished(folder: Path) -> None:
    path = folder / MANIFEST_FILE
    if not path.exists():
        raise ValueError(f"{path} is missing: {folder} is no finished checkpoint or model")
