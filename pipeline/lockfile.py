"""What dvc.lock says of the stages: from which settings and inputs their outputs were made.

A recipe is a hash of both. A stage's own, before it runs, can be held against the recorded one: equal
recipes mean that DVC would not have run it, had nobody asked for it (`dvc repro --force`) and were its
code the same; and a run of MLflow with the recorded recipe is the one whose outputs DVC kept.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


class LockFile:
    def __init__(self, root: Path) -> None:
        from pipeline.params import read_yaml

        path = root / "dvc.lock"
        self._stages: dict[str, Any] = read_yaml(path).get("stages", {}) if path.exists() else {}
        self._outputs = {
            out["path"]: out.get("md5") for stage in self._stages.values() for out in stage.get("outs", [])
        }

    def recipes(self) -> dict[str, str]:
        """Of each stage that DVC has run, by its name."""
        return {name: self._recorded(stage) for name, stage in self._stages.items()}

    def outputs(self) -> dict[str, str]:
        """The hash of each output that DVC knows."""
        return {path: digest for path, digest in sorted(self._outputs.items()) if digest}

    def upcoming(self, params: Mapping[str, Any], inputs: Iterable[Path]) -> str:
        """The recipe of a stage that is about to run: its values of params.yaml, by dotted path."""
        known = {str(path): self._outputs[str(path)] for path in inputs if str(path) in self._outputs}
        return _digest(params, known)

    def _recorded(self, stage: Mapping[str, Any]) -> str:
        words = set(stage["cmd"].split())  # the inputs, as the stage was given them
        inputs = {
            dep["path"]: dep.get("md5")
            for dep in stage.get("deps", [])
            if dep["path"] in self._outputs and dep["path"] in words
        }
        return _digest(stage.get("params", {}).get("params.yaml", {}), inputs)


def _digest(params: Mapping[str, Any], inputs: Mapping[str, str | None]) -> str:
    content = json.dumps([_plain(params), inputs], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def _plain(value: Any) -> Any:
    """Without what two writings of the same YAML may differ in: 1 and 1.0."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value
