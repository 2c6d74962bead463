"""Links from head starts to their tokens: one small file per head start and corpus.

DVC cannot follow a head start's tokenizer to the folder of its tokens. So each training stage depends on such
a file, which changes with the content of that folder, and with no other. The file of the general corpus also
changes with the content of the head start's `weights`, and with the settings of the head start that trains
its embedding; both files change with the settings of its teacher.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class TokenLink:
    tokens: str  # folder of shards
    tokenizer: str  # folder of the tokenizer that made them
    sha256: str  # of the shards' manifest
    weights_sha256: str | None = None  # of the word vectors that `pretrain_lm` imports, if it does
    embedding_sha256: str | None = None  # of the settings that train the embedding first, if any do
    teacher_sha256: str | None = None  # of the settings of the teacher, and of how it is learned from

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
