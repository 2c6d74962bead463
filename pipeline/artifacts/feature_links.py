"""Links from head starts to the features beside their classifiers' own: one small file per head start.

DVC cannot follow `finetune_classifier.beside` to the features of another head start. So the stage
`finetune_classifier` depends on such a file, which changes with these features, and with no others.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class FeatureLink:
    headstart: str
    features: str  # folder of its features
    target_lm: str  # folder of the language model that made them
    tokens: str  # link to the tokens that it reads
    sha256: str  # of the content of both folders


def write_feature_link(file: Path, link: FeatureLink | None) -> None:
    """None: no features stand beside the head start's own."""
    content = None if link is None else asdict(link)
    file.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def read_feature_link(file: Path) -> FeatureLink | None:
    """Raises ValueError if the file is missing or damaged."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        return None if content is None else FeatureLink(**content)
    except OSError as error:
        raise ValueError(f"{file}: no such file; run `dvc repro` first") from error
    except (ValueError, TypeError) as error:
        raise ValueError(f"{file}: damaged ({error}); run the stage `choose_features` again") from error
