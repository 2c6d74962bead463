"""One identity: what makes two training runs the same.

The key of a stage is a hash of its name, its settings, the content of its inputs, and the source of
the code it imports. It names the run in `run.storage` and tags it in MLflow: the same key goes on
from its last checkpoint, another starts afresh.
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pipeline.files import sha256_of

_ROOT = Path(__file__).resolve().parent.parent
_PACKAGES = ("pipeline", "models")
TRIALS_FILE = "trials.json"  # below the key of a stage of many trainings, in `run.storage`: their keys


def run_key(stage: str, settings: Mapping[str, Any], inputs: Mapping[str, str], code: str) -> str:
    """16 hexadecimal digits that stand for a run."""
    content = json.dumps([stage, settings, inputs, code], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def content_hash(path: Path) -> str:
    """SHA-256 of a file, or of the names and contents of all files below a folder.

    Raises ValueError where there is nothing.
    """
    if path.is_file():
        return sha256_of(path)
    if not path.is_dir():
        raise ValueError(f"{path}: no such file or folder; run the stage that makes it (`dvc repro`) first")
    files = sorted(file for file in path.rglob("*") if file.is_file())
    listing = [f"{file.relative_to(path).as_posix()}\0{sha256_of(file)}" for file in files]
    return hashlib.sha256("\n".join(listing).encode()).hexdigest()


def code_hash(*modules: str) -> str:
    """SHA-256 of the source of some modules and of all modules of ours that they import."""
    listing = [f"{file.relative_to(_ROOT).as_posix()}\0{sha256_of(file)}" for file in code_files(*modules)]
    return hashlib.sha256("\n".join(listing).encode()).hexdigest()


def code_files(*modules: str) -> list[Path]:
    """Source files of modules of ours, and of those that they import, directly or not, sorted."""
    found: set[str] = set()
    waiting = list(modules)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += imports_of(name)
    return sorted(source_of(name) for name in found)


def source_of(module: str) -> Path:
    base = _ROOT.joinpath(*module.split("."))
    return base / "__init__.py" if base.is_dir() else base.with_suffix(".py")


@cache
def imports_of(module: str) -> tuple[str, ...]:
    """Modules of ours that a module imports anywhere in its source, read without importing it."""
    tree = ast.parse(source_of(module).read_text(encoding="utf-8"))
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module)
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return tuple(
        sorted(name for name in names if name.split(".")[0] in _PACKAGES and source_of(name).is_file())
    )
