"""Stage: raw text of one corpus -> normalised documents in splits."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from pipeline.corpus.data_quality import quality_warnings
from pipeline.corpus.distributions import version_warning
from pipeline.corpus.documents import write_documents
from pipeline.corpus.scanned_files import is_remote
from pipeline.corpus.settings import AlignedSource, Corpora, FilesSource, GettextSource, PydocsSource
from pipeline.corpus.source import SPLITS
from pipeline.corpus.sources import open_source
from pipeline.figures.corpora import PrepareFigures, TextSize
from pipeline.files.atomic import atomic_folder
from pipeline.project.project import Project

log = logging.getLogger(__name__)

_MOST_ORIGINS = 5  # that are named


def run(project: Project, *, corpus: str, out: Path) -> PrepareFigures:
    """Prepare the corpus `general`, `target` or `translation` into the folder `out`; return its sizes.

    Raises:
        ValueError: the source cannot be read, or its labels cannot be trained on.
    """
    if corpus not in Corpora.model_fields:
        raise ValueError(f"corpus is {corpus!r}: it must be {' or '.join(Corpora.model_fields)}")
    settings = getattr(project.params.corpus, corpus)
    if settings is None:
        raise ValueError(f"params.yaml has no corpus.{corpus}")
    key = f"corpus.{corpus}"
    _tell_unwatched(settings.source, Path("sources") / corpus)
    source = open_source(settings.source, f"{key}.source")
    with atomic_folder(out) as folder:
        info = write_documents(source, settings, seed=project.params.run.seed, key=key, folder=folder)
        warnings = quality_warnings(folder, info)
    if isinstance(settings.source, PydocsSource) and (warning := version_warning(settings.source.part)):
        warnings.append(warning)
    if source.origins:
        most = ", ".join(f"{name} {count:,}" for name, count in source.origins.most_common(_MOST_ORIGINS))
        log.info(
            "%s: %s rows from %d sources, most from %s",
            key, f"{source.origins.total():,}", len(source.origins), most,
        )  # fmt: skip
    for warning in warnings:
        log.warning("%s: %s", key, warning)
    return PrepareFigures(
        num_classes=len(info.label_names or ()),
        splits={
            split: TextSize.model_validate(size, from_attributes=True) for split, size in info.splits.items()
        },
        skipped=dict(info.skipped),
        repaired=dict(info.repaired),
        remarks=warnings,
        origins=dict(source.origins.most_common()),
    )


def _tell_unwatched(
    source: FilesSource | PydocsSource | GettextSource | AlignedSource, watched: Path
) -> None:
    """Warn about local files outside the folder that DVC watches: it would not notice a change in them."""
    match source:
        case FilesSource():
            named = [entry for split in SPLITS for entry in getattr(source, split)]
        case AlignedSource():
            named = [*source.sources, *source.translations]
        case _:
            return
    entries = [entry for entry in named if not is_remote(entry)]
    # Without following links: DVC does that when it hashes the folder.
    outside = [
        entry for entry in entries if not Path(os.path.abspath(entry)).is_relative_to(watched.absolute())
    ]
    if outside:
        log.warning(
            "%s: not below %s, so DVC will not notice when they change; copy or link them there",
            ", ".join(outside),
            watched,
        )
