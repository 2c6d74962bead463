"""The key of a run: it names the run in `run.storage` and tags it in MLflow."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

TRIALS_FILE = "trials.json"  # in a sweep's folder in `run.storage`: the keys of its trials


def run_key(stage: str, settings: Mapping[str, Any], inputs: Mapping[str, str], code: str) -> str:
    """16 hexadecimal digits that identify a run.

    The same key resumes from the last checkpoint; another key starts afresh.

    Args:
        settings: the flags and sections of params.yaml that the run depends on.
        inputs: SHA-256 of each input's content.
        code: digest of the fingerprint (`pipeline.identity.fingerprint`).
    """
    content = json.dumps([stage, settings, inputs, code], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:16]
