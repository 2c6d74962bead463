"""The classifier that ships: one exported classifier, or several with weights.

The folder holds `classifier.json`, which names the parts, and a model folder for each part.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pipeline.files.atomic import atomic_folder, atomic_write_text

SHIPPED_FILE = "classifier.json"


@dataclass(frozen=True)
class Part:
    """An exported classifier, and the weight of its probabilities."""

    folder: Path
    weight: float


def ship(folder: Path, name: str, parts: Mapping[Path, float]) -> None:
    """Copy exported classifiers into `folder`, with the weights of their probabilities; these sum to one."""
    with atomic_folder(folder) as aside:
        for source in parts:
            shutil.copytree(source, aside / source.name)
        content = {"name": name, "parts": {source.name: weight for source, weight in parts.items()}}
        atomic_write_text(aside / SHIPPED_FILE, json.dumps(content, indent=2) + "\n")


def parts_of(folder: Path) -> list[Part]:
    """The parts of a shipped classifier; a folder that is none is a single exported one.

    Raises ValueError if `classifier.json` is damaged.
    """
    file = folder / SHIPPED_FILE
    if not file.exists():
        return [Part(folder, 1.0)]
    try:
        found = json.loads(file.read_text(encoding="utf-8"))["parts"]
        return [Part(folder / name, float(weight)) for name, weight in found.items()]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{file} is damaged ({error}); run the stage `evaluate` again") from error
