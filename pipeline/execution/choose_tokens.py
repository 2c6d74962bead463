"""The links from head starts to their tokens; see `pipeline.corpus.token_links`."""

from __future__ import annotations

import hashlib
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
            pretrains = {
                "weights_sha256": _hash_of_weights(params, name, weights),
                "embedding_sha256": _hash_of_embedding(params, name),
            }
            for corpus in ("general", "target"):
                read = _pretrains_on(params, name) if corpus == "general" else corpus
                shards = tokens / read / tokenizer
                link = TokenLink(
                    tokens=shards.as_posix(),
                    tokenizer=(tokenizers / tokenizer).as_posix(),
                    sha256=content_hash(shards / MANIFEST_FILE),
                    teacher_sha256=_hash_of_teacher(params, name, weights),
                    **(pretrains if corpus == "general" else {}),
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


def _hash_of_embedding(params: Params, name: str) -> str | None:
    """The hash of what trains the embedding first, but for the section `pretrain_lm`, which DVC watches."""
    if (other := params.headstarts[name].embedding_from) is None:
        return None
    settings = params.headstarts[other].model_dump_json(include={"family", "config", "pretrain_lm"})
    return hashlib.sha256(settings.encode()).hexdigest()


def _hash_of_teacher(params: Params, name: str, watched: Path) -> str | None:
    """The hash of what trains the teacher, but for the sections that DVC watches, and of the distillation."""
    if (other := params.headstarts[name].teacher) is None:
        return None
    fields = {"family", "config", "pretrain_lm", "finetune_lm"}
    content = [
        params.headstarts[other].model_dump_json(include=fields),
        params.distillation.model_dump_json(),
        str(_hash_of_weights(params, other, watched)),
        str(_hash_of_embedding(params, other)),
    ]
    return hashlib.sha256("\n".join(content).encode()).hexdigest()


def _hash_of_weights(params: Params, name: str, watched: Path) -> str | None:
    if (path := params.headstarts[name].weights) is None:
        return None
    if not Path(path).exists():
        raise ValueError(
            f"headstarts.{name}.weights is {path}, which does not exist; put the file or folder of weights "
            "there"
        )
    _warn_of_unwatched(f"headstarts.{name}.weights", path, watched)
    return content_hash(Path(path))


def _warn_of_unwatched(key: str, path: str, watched: Path) -> None:
    if not Path(os.path.abspath(path)).is_relative_to(watched.absolute()):
        log.warning(
            "%s is %s, not below %s, so DVC will not notice when it changes; copy or link it there",
            key,
            path,
            watched,
        )
