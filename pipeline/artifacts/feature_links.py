"""Links from head starts to the features beside their classifiers' own: one small file per head start.

DVC cannot follow `finetune_classifier.beside` to the features of another head start. So the stage
`finetune_classifier` depends on such a file, which changes with these features, and with no others.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from pipeline.files.manifest import content_hash
from pipeline.settings.loader import typed


@dataclass(frozen=True)
class FeatureLink:
    headstart: str
    features: str  # folder of its features
    target_lm: str  # folder of the language model that made them
    tokens: str  # link to the tokens that it reads
    sha256: str  # of the content of both folders


def digest_of(features: Path, target_lm: Path) -> str:
    """The hash of the content of both folders."""
    return hashlib.sha256("\n".join(map(content_hash, (features, target_lm))).encode()).hexdigest()


def check_content(link: FeatureLink) -> None:
    """Raise ValueError if a folder is gone, or has other content than when the link was written."""
    folders = Path(link.features), Path(link.target_lm)
    for folder in folders:
        if not folder.is_dir():
            raise ValueError(
                f"{folder}: no such folder, but {link.headstart} is read from there; run `dvc repro` with "
                f"{link.headstart} in run.headstarts"
            )
    if digest_of(*folders) != link.sha256:
        raise ValueError(
            f"the features of {link.headstart}, in {folders[0]}, are others than when the stage "
            "`choose_features` looked; run it again"
        )


def write_feature_link(file: Path, link: FeatureLink | None) -> None:
    """None: no features stand beside the head start's own."""
    content = None if link is None else asdict(link)
    file.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def read_feature_link(file: Path) -> FeatureLink | None:
    """Raises ValueError if the file is missing or damaged."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        if content is not None and not isinstance(content, dict):
            raise ValueError("it holds no object")
        return None if content is None else typed(FeatureLink, content, where="the link")
    except OSError as error:
        raise ValueError(f"{file}: no such file; run `dvc repro` first") from error
    except ValueError as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"{file}: damaged ({reason}); run the stage `choose_features` again") from error
