"""The fingerprint files, which tell DVC that a stage's code or packages have changed."""

from __future__ import annotations

from pathlib import Path

from pipeline.files.atomic import atomic_write_text
from pipeline.identity.fingerprint import Fingerprint, fingerprint_of
from pipeline.project import stages
from pipeline.project.params import Params


def write_fingerprints(params: Params, out: Path) -> list[Path]:
    """Write a file for each stage, or for each of its corpora, into `out`; return those that changed.

    A file that would say the same is not written again.
    """
    changed = []
    for stage in stages.names():
        corpora = ("general", "target") if "corpus" in stages.arguments(stage) else (None,)
        for corpus in corpora:
            file = out / f"{stage}{f'-{corpus}' if corpus else ''}.json"
            text = stage_fingerprint(stage, params, corpus).to_json()
            if not file.exists() or file.read_text(encoding="utf-8") != text:
                atomic_write_text(file, text)
                changed.append(file)
    return changed


def stage_fingerprint(stage: str, params: Params, corpus: str | None = None) -> Fingerprint:
    """The fingerprint of a stage, for one corpus where it reads one."""
    source = getattr(params.corpus, corpus).source if corpus in ("general", "target") else None
    return fingerprint_of(
        f"pipeline.stages.{stage}",
        family=params.model.family,
        trains=stages.describe(stage).is_training,
        reads_packages=source is not None and source.kind == "pydocs",
    )


def trials_digest(params: Params) -> str:
    """The digest of the code and packages that make the outcome of a sweep's trial.

    The figures that a sweep draws from its trials are not in it. Sweeps share it, as they share outcomes.
    """
    parts = ("pipeline.stages._points", "pipeline.stages._search_jobs")
    return fingerprint_of(*parts, family=params.model.family, trains=True).digest
