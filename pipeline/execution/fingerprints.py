"""The fingerprint files, which tell DVC that a stage's code or packages have changed."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from pipeline.corpus.distributions import text_versions
from pipeline.corpus.settings import PydocsSource
from pipeline.corpus.tokenizer import LIBRARY_MODULE
from pipeline.files.atomic import atomic_write_text
from pipeline.identity.fingerprint import Fingerprint, fingerprint_of, is_family
from pipeline.project import stages
from pipeline.project.params import Params
from pipeline.project.project import Project
from pipeline.project.relations import code_of

# Which of several settings of a head start holds, and how a trial varies them.
RESOLUTION = ("pipeline.project.headstarts", "pipeline.project.project")


def write_fingerprints(project: Project, out: Path) -> list[Path]:
    """Write a file for each stage, or for each of its corpora or head starts, into `out`.

    Returns those that changed. A file that would say the same is not written again. One of a head start that
    is no longer trained is removed.
    """
    changed, wanted = [], set()
    for stage in stages.names():
        for item in _items(stage, project.params):
            file = out / f"{'-'.join([stage, *item.values()])}.json"
            wanted.add(file)
            text = stage_fingerprint(stage, project, **item).to_json()
            if not file.exists() or file.read_text(encoding="utf-8") != text:
                atomic_write_text(file, text)
                changed.append(file)
    for file in set(out.glob("*.json")) - wanted:
        file.unlink()
    return changed


def _items(stage: str, params: Params) -> list[dict[str, str]]:
    """The corpora or head starts whose code differs."""
    flags = stages.arguments(stage)
    if "headstart" in flags:
        return [{"headstart": name} for name in params.run.headstarts]
    return [{"corpus": corpus} for corpus in params.corpus.names] if "corpus" in flags else [{}]


def stage_fingerprint(
    stage: str, project: Project, corpus: str | None = None, headstart: str | None = None
) -> Fingerprint:
    """The fingerprint of a stage, for one corpus or one head start where it reads one.

    Raises ValueError for an unknown family.
    """
    params = project.params
    source = getattr(params.corpus, corpus).source if corpus in params.corpus.names else None
    names = [headstart] if headstart is not None else params.run.headstarts
    modules, trained = code_of(params, names, stage)
    families = sorted({params.headstarts[name].family for name in trained})
    if not all(map(is_family, families)):
        list(project.head_starts.values())  # resolving them names the key
    return fingerprint_of(
        f"pipeline.stages.{stage}",
        *(RESOLUTION if _reads_head_starts(stage) else ()),
        *modules,
        *([LIBRARY_MODULE] if stage in ("train_tokenizer", "encode") and _has_imported(params) else []),
        families=families,
        trains=stages.describe(stage).is_training,
        text=text_versions(source.part) if isinstance(source, PydocsSource) else None,
    )


def _reads_head_starts(stage: str) -> bool:
    """Whether the numbers of a stage depend on how a head start's settings are layered."""
    described = stages.describe(stage)
    return described.kind != "reports" and any(path.startswith("headstarts") for path in described.sections)


def _has_imported(params: Params) -> bool:
    return any(tokenizer.kind == "imported" for tokenizer in params.tokenizers.values())


@cache
def trials_digest(family: str | None) -> str:
    """The digest of the code and packages that make the outcome of a sweep's trial, by its family.

    The figures that a sweep draws from its trials are not in it. Sweeps share it, as they share outcomes.
    """
    parts = ("pipeline.stages._points", "pipeline.stages._search_jobs", *RESOLUTION)
    return fingerprint_of(*parts, families=[family] if family else [], trains=True).digest
