"""Links from head starts to their tokens: one small file per head start and corpus.

DVC cannot follow a head start's tokenizer to the folder of its tokens. So each training stage depends on such
a file, which changes with the content of that folder, and with no other. It also changes with what the head
start is related to: its `weights`, the settings that train its embedding, those of its teacher.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class TokenLink:
    tokens: str  # folder of shards
    tokenizer: str  # folder of the tokenizer that made them
    sha256: str  # of the shards' manifest
    related: Mapping[str, str] = field(default_factory=dict)  # SHA-256 by relation of the head start

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1) + "\n"


def read_link(file: Path) -> TokenLink:
    """Raises ValueError if the file is missing or damaged."""
    try:
        return TokenLink(**json.loads(file.read_text(encoding="utf-8")))
    except OSError as error:
        raise ValueError(f"{file}: no such file; run `dvc repro` first") from error
    except (ValueError, TypeError) as error:
        raise ValueError(f"{file}: damaged ({error}); run the stage `choose_tokens` again") from error


def tokens_at(path: Path) -> Path:
    """The folder of shards that a link names, or the path itself if it is one."""
    return path if path.is_dir() else Path(read_link(path).tokens)
