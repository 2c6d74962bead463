"""The code, data and MLflow runs behind the figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Provenance:
    facts: Mapping[str, str] = field(default_factory=dict)  # commit, versions, ...
    data: Mapping[str, str] = field(default_factory=dict)  # output of a stage -> its hash in dvc.lock
    runs: Sequence[Mapping[str, str]] = ()  # stage, run_id, url (may be empty), cached
