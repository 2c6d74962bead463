"""The fingerprint files, which tell DVC that a stage's code or packages have changed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from pipeline.corpus.tokenizer import LIBRARY_MODULE
from pipeline.files.atomic import atomic_write_text
from pipeline.identity.fingerprint import Fingerprint, fingerprint_of, is_family
from pipeline.project import stages
from pipeline.project.params import Params
from pipeline.project.project import Project


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
    teachers = _teachers(params, names) if stage in ("pretrain_lm", "finetune_lm") else []
    names = list(dict.fromkeys([*names, *teachers]))
    embeddings = _embeddings(params, names) if stage == "pretrain_lm" else []
    has_beside = stage == "finetune_classifier" and _has_beside(params, names)
    families = sorted({params.headstarts[name].family for name in [*names, *embeddings]})
    if not all(map(is_family, families)):
        _ = project.head_starts  # which names the key
    return fingerprint_of(
        f"pipeline.stages.{stage}",
        *(_importers(params, names) if stage == "pretrain_lm" else []),
        *(["pipeline.stages._trained_embedding"] if embeddings else []),
        *(["pipeline.stages._teacher"] if teachers else []),
        *(["pipeline.stages._frozen_encoder"] if has_beside else []),
        *([LIBRARY_MODULE] if stage in ("train_tokenizer", "encode") and _has_imported(params) else []),
        families=families,
        trains=stages.describe(stage).is_training,
        reads_packages=source is not None and source.kind == "pydocs",
    )


def _has_beside(params: Params, names: Sequence[str]) -> bool:
    """Whether a classifier's folder holds the encoder of another head start."""
    shared = params.finetune_classifier.beside
    return any(params.headstarts[name].finetune_classifier.get("beside", shared) for name in names)


def _importers(params: Params, names: Sequence[str]) -> list[str]:
    """The modules that bring weights from elsewhere."""
    from models.family import lookup

    families = {params.headstarts[name].family for name in names if params.headstarts[name].weights}
    kinds = {"network" if lookup(family).imports_networks else "vectors" for family in families}
    return [f"pipeline.stages._imported_{kind}" for kind in sorted(kinds)]


def _has_imported(params: Params) -> bool:
    return any(tokenizer.kind == "imported" for tokenizer in params.tokenizers.values())


def _embeddings(params: Params, names: Sequence[str]) -> list[str]:
    """The head starts that train the embeddings of others first."""
    found = (params.headstarts[name].embedding_from for name in names)
    return [other for other in found if other is not None]


def _teachers(params: Params, names: Sequence[str]) -> list[str]:
    """The teachers of head starts, whose code makes their students, too."""
    return [other for name in names if (other := params.headstarts[name].teacher) is not None]


@cache
def trials_digest(family: str | None) -> str:
    """The digest of the code and packages that make the outcome of a sweep's trial, by its family.

    The figures that a sweep draws from its trials are not in it. Sweeps share it, as they share outcomes.
    """
    parts = ("pipeline.stages._points", "pipeline.stages._search_jobs")
    return fingerprint_of(*parts, families=[family] if family else [], trains=True).digest
