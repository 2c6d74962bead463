"""The record of stages in dvc.lock: what made their outputs.

A record is a hash of a stage's inputs, of which its recipe is one (`pipeline.execution.recipes`). A folder
that holds outputs of several stages, such as `data/classifiers`, is not: only DVC knows its hash. Before it
runs, a stage compares its record with that of dvc.lock. If they are equal, DVC runs it because of `dvc repro
--force`, or because its output was removed or altered. The MLflow run with the record of dvc.lock is the one
whose outputs DVC kept.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any


class LockFile:
    def __init__(self, root: Path) -> None:
        from pipeline.settings.loader import read_yaml

        path = root / "dvc.lock"
        self._stages: dict[str, Any] = read_yaml(path).get("stages", {}) if path.exists() else {}
        self._outputs = {
            out["path"]: out.get("md5") for stage in self._stages.values() for out in stage.get("outs", [])
        }

    def records(self) -> dict[str, str]:
        """The record of each stage that DVC has run, by stage name."""
        return {name: self._recorded(stage) for name, stage in self._stages.items()}

    def outputs(self) -> dict[str, str]:
        """The hash of each output that DVC knows, by path."""
        return {path: digest for path, digest in sorted(self._outputs.items()) if digest}

    def settings(self) -> dict[str, Any]:
        """The settings that the recipes were written from, nested; empty if they never were."""
        recorded: dict[str, Any] = self._stages.get("recipes", {}).get("params", {}).get("params.yaml", {})
        return recorded

    def recipes(self) -> dict[str, str]:
        """The hash of the recipe that each stage ran by, by the recipe's name."""
        recipes = {}
        for stage in self._stages.values():
            hashes = {dep["path"]: dep.get("md5") for dep in stage.get("deps", [])}
            for flag, path in pairwise(stage["cmd"].split()):
                if flag == "--recipe" and hashes.get(path):
                    recipes[Path(path).stem] = hashes[path]
        return recipes

    def upcoming(self, inputs: Iterable[Path]) -> str:
        """The record of a stage that is about to run on these inputs, its recipe among them."""
        found = {str(path): self._outputs.get(str(path)) or _md5(path) for path in inputs}
        return _digest({path: digest for path, digest in found.items() if digest})

    def _recorded(self, stage: Mapping[str, Any]) -> str:
        words = set(stage["cmd"].split())  # the inputs, as the stage was given them
        inputs = {dep["path"]: dep.get("md5") for dep in stage.get("deps", []) if dep["path"] in words}
        known = {path: md5 for path, md5 in inputs.items() if path in self._outputs or not _is_folder(md5)}
        return _digest(known)


def _digest(inputs: Mapping[str, str | None]) -> str:
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:16]


def _is_folder(md5: str | None) -> bool:
    return md5 is None or md5.endswith(".dir")


def _md5(path: Path) -> str | None:
    """The hash by which DVC knows a file; None for a folder."""
    return md5_of(path.read_bytes()) if path.is_file() else None


def md5_of(content: bytes) -> str:
    """The hash by which DVC knows a file of this content."""
    return hashlib.md5(content, usedforsecurity=False).hexdigest()
