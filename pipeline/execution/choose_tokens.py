"""The links from head starts to their tokens; see `pipeline.corpus.token_links`."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from models.family import lookup
from pipeline.corpus.settings import ImportedTokenizer
from pipeline.corpus.token_links import TokenLink
from pipeline.files.atomic import atomic_folder
from pipeline.files.manifest import MANIFEST_FILE, content_hash
from pipeline.objectives.lookup import objective_of
from pipeline.project.params import Params
from pipeline.project.relations import digest, related

log = logging.getLogger(__name__)


def choose_tokens(params: Params, tokens: Path, tokenizers: Path, weights: Path, out: Path) -> None:
    """Write `HEAD_START/CORPUS.json` into `out`.

    Args:
        weights: the folder in which DVC notices a change of imported word vectors and tokenizers.

    Raises:
        ValueError: tokens are missing, or the weights of a head start.
    """
    with atomic_folder(out) as folder:
        for name in params.run.headstarts:
            (folder / name).mkdir()
            tokenizer = params.headstarts[name].tokenizer
            if isinstance(settings := params.tokenizers[tokenizer], ImportedTokenizer):
                _warn_of_unwatched(f"tokenizers.{tokenizer}.file", settings.file, weights)
            for corpus, stage in (("general", "pretrain_lm"), ("target", "finetune_lm")):
                read = _pretrains_on(params, name) if corpus == "general" else corpus
                shards = tokens / read / tokenizer
                link = TokenLink(
                    tokens=shards.as_posix(),
                    tokenizer=(tokenizers / tokenizer).as_posix(),
                    sha256=content_hash(shards / MANIFEST_FILE),
                    related=_digests(params, name, stage, weights),
                )
                (folder / name / f"{corpus}.json").write_text(link.to_json(), encoding="utf-8")


def _pretrains_on(params: Params, name: str) -> str:
    """The corpus that `pretrain_lm` reads. Raises ValueError if there is none of that name."""
    family = lookup(params.headstarts[name].family, f"headstarts.{name}.family")
    corpus = objective_of(family).corpus
    if corpus not in params.corpus.names:
        raise ValueError(
            f"the head start {name} learns from corpus.{corpus}, which params.yaml does not have; set it, as "
            "the preset cove does, or leave the head start out of run.headstarts"
        )
    return corpus


def _digests(params: Params, name: str, stage: str, watched: Path) -> dict[str, str]:
    """The hash of each other head start or file that a stage needs, by relation."""
    digests = {}
    for relation, other in related(params, name, stage):
        digests[relation.setting] = digest(params, relation, name, other)
        if relation.needs == "file":
            _warn_of_unwatched(f"headstarts.{name}.{relation.setting}", other, watched)
    return digests


def _warn_of_unwatched(key: str, path: str, watched: Path) -> None:
    if not Path(os.path.abspath(path)).is_relative_to(watched.absolute()):
        log.warning(
            "%s is %s, not below %s, so DVC will not notice when it changes; copy or link it there",
            key,
            path,
            watched,
        )
