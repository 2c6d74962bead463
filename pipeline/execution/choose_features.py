"""The links from head starts to the features beside their own; see `pipeline.artifacts.feature_links`."""

from __future__ import annotations

from pathlib import Path

from pipeline.artifacts.feature_links import FeatureLink, digest_of, write_feature_link
from pipeline.files.atomic import atomic_folder
from pipeline.project.project import Project


def choose_features(project: Project, features: Path, target_lm: Path, tokens: Path, out: Path) -> None:
    """Write `HEAD_START.json` into `out`. Raises ValueError for a head start that is not trained."""
    with atomic_folder(out) as folder:
        for head_start in project.trained:
            other = head_start.finetune_classifier.beside
            link = None if other is None else _link(other, features, target_lm, tokens)
            write_feature_link(folder / f"{head_start.name}.json", link)


def _link(other: str, features: Path, target_lm: Path, tokens: Path) -> FeatureLink:
    folders = features / other, target_lm / other
    for folder in folders:
        if not folder.is_dir():
            raise ValueError(
                f"finetune_classifier.beside is {other}, but {folder} is not there; name {other} in "
                "run.headstarts and run `dvc repro`"
            )
    return FeatureLink(
        headstart=other,
        features=folders[0].as_posix(),
        target_lm=folders[1].as_posix(),
        tokens=(tokens / other / "target.json").as_posix(),
        sha256=digest_of(*folders),
    )
