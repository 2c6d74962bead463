"""Links: small files that name the folders which a stage of a head start reads, and hash their content.

DVC cannot follow a head start's tokenizer to the folder of its tokens, nor `finetune_classifier.beside` to
the features of another head start. So a stage depends on a link, which changes with the content of what it
names and with nothing else: `choose_tokens` writes one for each head start and corpus, `choose_features` one
for each head start.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pipeline.files.atomic import atomic_folder
from pipeline.files.manifest import MANIFEST_FILE, content_hash


@dataclass(frozen=True)
class Link:
    paths: Mapping[str, str]  # by role, such as `tokens`; none: nothing is read
    sha256: str  # of the content of all

    @staticmethod
    def to(paths: Mapping[str, Path]) -> Link:
        """Raises ValueError if one of them is missing."""
        return Link({role: path.as_posix() for role, path in paths.items()}, _hash_of(paths.values()))

    def __getitem__(self, role: str) -> Path:
        return Path(self.paths[role])

    def __bool__(self) -> bool:
        return bool(self.paths)

    def write(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")

    def check(self) -> None:
        """Raise ValueError if what it names is gone, or has other content than when it was written."""
        if _hash_of(map(Path, self.paths.values())) != self.sha256:
            raise ValueError(
                f"the content of {', '.join(self.paths.values())} is another than when the link to it was "
                "written; run `dvc repro`"
            )


def _hash_of(paths: Iterable[Path]) -> str:
    manifests = ((path, path / MANIFEST_FILE) for path in paths)
    hashes = [content_hash(manifest if manifest.exists() else path) for path, manifest in manifests]
    return hashlib.sha256("\n".join(hashes).encode()).hexdigest()


def write_links(recipe: Path, folders: Mapping[str, Path], out: Path) -> None:
    """Write the links that a recipe lists into the folder `out`.

    Args:
        recipe: the file of `headstart recipes`; for each link it names paths below the folders, by role.

    Raises ValueError if the recipe or what a link names is missing.
    """
    with atomic_folder(out) as folder:
        for name, named in _read(recipe).items():
            link = Link.to({role: folders[role] / path for role, path in named.items()})
            link.write(folder / f"{name}.json")


def read_link(file: Path) -> Link:
    """Raises ValueError if the file is missing or damaged."""
    content = _read(file)
    try:
        return Link(dict(content["paths"]), str(content["sha256"]))
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{file}: damaged, it is no link; remove it and run `dvc repro`") from error


def tokens_at(path: Path) -> Path:
    """The folder of shards that a link names, or the path itself if it is one."""
    return path if path.is_dir() else read_link(path)["tokens"]


def _read(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{file}: no such file; run `dvc repro` first") from error
    except ValueError as error:
        raise ValueError(f"{file}: damaged ({error}); remove it and run `dvc repro`") from error
    if not isinstance(content, dict):
        raise ValueError(f"{file}: damaged, it holds no object; remove it and run `dvc repro`")
    return content
