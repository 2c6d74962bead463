"""The links from head starts to their tokens; see `pipeline.corpus.token_links`."""

from __future__ import annotations

from pathlib import Path

from pipeline.corpus.token_links import TokenLink
from pipeline.files.atomic import atomic_folder
from pipeline.files.manifest import MANIFEST_FILE, content_hash
from pipeline.project.params import Params


def choose_tokens(params: Params, tokens: Path, tokenizers: Path, out: Path) -> None:
    """Write `HEAD_START/CORPUS.json` into `out`. Raises ValueError if tokens are missing."""
    with atomic_folder(out) as folder:
        for name in params.run.headstarts:
            (folder / name).mkdir()
            tokenizer = params.headstarts[name].tokenizer
            for corpus in ("general", "target"):
                shards = tokens / corpus / tokenizer
                link = TokenLink(
                    tokens=shards.as_posix(),
                    tokenizer=(tokenizers / tokenizer).as_posix(),
                    sha256=content_hash(shards / MANIFEST_FILE),
                )
                (folder / name / f"{corpus}.json").write_text(link.to_json(), encoding="utf-8")
