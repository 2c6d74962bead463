"""Folders that stages write, with one file damaged: refused by name, or read with the same content."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import torch

from pipeline.artifacts.model_folder import export_model, load_classifier
from pipeline.artifacts.tensor_folder import read_folder, write_folder
from pipeline.corpus.document_files import read_documents, read_documents_info
from pipeline.corpus.documents import write_documents
from pipeline.corpus.settings import Corpus, Normalise, SentencepieceTokenizer, Split, WordTokenizer
from pipeline.corpus.sources import open_source
from pipeline.corpus.tokenizer import Tokenizer
from pipeline.corpus.tokens import open_shard, read_info
from pipeline.stages import encode, train_tokenizer
from pipeline.training.cards import HeadCard, ModelCard, build_classifier, build_encoder
from tests.fuzz.corpora import KEY, settings_of
from tests.fuzz.damage import DamagedFolder, refused


@dataclass(frozen=True)
class Written:
    """A folder that a stage wrote, and a function that reads all of it."""

    folder: Path
    read: Callable[[Path], Any]


def write_all(root: Path) -> dict[str, Written]:
    """Write a small folder of each kind."""
    _write_documents(root / "documents")
    params = _Params()
    project: Any = SimpleNamespace(params=params)
    documents = root / "documents"
    for name in params.tokenizers:
        train_tokenizer.run(project, tokenizer=name, documents=root, out=root / name)
    encode.run(project, documents=documents, tokenizer=root / "tokenizer", out=root / "tokens")
    _write_checkpoint(root / "checkpoint")
    _write_model(root / "model", root / "tokenizer" / "tokenizer.model")
    return {
        "documents": Written(root / "documents", _read_documents),
        "tokenizer": Written(root / "tokenizer", _read_tokenizer),
        "words": Written(root / "words", _read_tokenizer),
        "tokens": Written(root / "tokens", _read_tokens),
        "checkpoint": Written(root / "checkpoint", _read_checkpoint),
        "model": Written(root / "model", _read_model),
    }


def check_folder(written: Written, damage: DamagedFolder, scratch: Path) -> bool:
    """Read a damaged copy. Return whether it was refused."""
    copy = scratch / written.folder.name
    damage.make(written.folder, copy)
    no, found = refused(lambda: written.read(copy), f"{copy.name}/")
    assert no or found == written.read(written.folder), (
        f"{damage.file} was damaged, but read with other content"
    )
    return no is not None


_BESIDE: Any = ["documents"]  # the folder of the corpus beside these tokenizers


class _Params:
    """The settings that the stages read."""

    class run:  # noqa: N801
        seed = 0

    tokenizers: ClassVar = {
        "tokenizer": SentencepieceTokenizer.model_construct(
            kind="unigram", corpora=_BESIDE, vocab_size=285, character_coverage=1.0, byte_fallback=True,
            sample_mb=1.0, threads=1,
        ),
        "words": WordTokenizer.model_construct(
            kind="words", corpora=_BESIDE, vocab_size=100, lowercase=True, min_count=1, sample_mb=1.0,
            threads=1,
        ),
    }  # fmt: skip


NORMALISE = Normalise(
    unicode="NFC", html_breaks=True, control_characters=True, collapse_whitespace=True, lowercase=False
)


def _write_documents(folder: Path) -> None:
    folder.mkdir(parents=True)
    raw = folder.with_name("raw.csv")
    rows = [f"a text of number {number} and no more,{'yes' if number % 2 else 'no'}" for number in range(40)]
    raw.write_text("\n".join(["text,label", *rows]) + "\n", encoding="utf-8")
    settings = Corpus(
        source=settings_of([raw], label_column="label"),
        split=Split(validation=0.2, test=0.2),
        normalise=NORMALISE,
        max_documents=None,
    )
    write_documents(open_source(settings.source, KEY), settings, seed=0, key="corpus.general", folder=folder)


def _read_documents(folder: Path) -> Any:
    info = read_documents_info(folder)
    rows = {split: [asdict(rows) for rows in read_documents(folder, split)] for split in info.splits}
    return asdict(info), rows


def _read_tokenizer(folder: Path) -> Any:
    tokenizer = Tokenizer.load(folder)
    return tokenizer.sha256, [tokenizer.raw_piece(piece) for piece in range(tokenizer.vocab_size)]


def _read_tokens(folder: Path) -> Any:
    info = read_info(folder)
    shards = {split: open_shard(folder, split) for split in info.splits}
    return asdict(info), {
        split: [np.asarray(part).tolist() for part in (shard.tokens, shard.offsets, shard.labels)]
        for split, shard in shards.items()
    }


def _write_checkpoint(folder: Path) -> None:
    folder.mkdir()
    tensors = {"weight": torch.arange(12.0).reshape(3, 4), "step": torch.tensor(7)}
    write_folder(folder, tensors, {"rng": [1, 2, 3], "epoch": 0.5})


def _read_checkpoint(folder: Path) -> Any:
    tensors, state = read_folder(folder)
    return {name: tensor.tolist() for name, tensor in tensors.items()}, state


def _write_model(folder: Path, tokenizer: Path) -> None:
    pieces = Tokenizer.load(tokenizer)
    config = {
        "embedding_dim": 4, "hidden_dim": 5, "num_layers": 2, "tie_weights": True, "embedding_dropout": 0.0,
        "input_dropout": 0.0, "hidden_dropout": 0.0, "output_dropout": 0.0, "weight_dropout": 0.0,
    }  # fmt: skip
    head = HeadCard(("no", "yes"), "concat", 5, (0.0, 0.0), 7, 40, NORMALISE.model_dump())
    card = ModelCard(
        "classifier", "awd_lstm", config, pieces.vocab_size, pieces.pad_id, "forward", pieces.sha256,
        "finetune_classifier", "key", head,
    )  # fmt: skip
    torch.manual_seed(0)
    export_model(
        folder, build_classifier(build_encoder(card)[0], head).state_dict(), card, extra_files=[tokenizer]
    )


def _read_model(folder: Path) -> Any:
    model, card, head = load_classifier(folder)
    weights = {name: tensor.tolist() for name, tensor in model.state_dict().items()}
    return weights, asdict(card), asdict(head), Tokenizer.load(folder).sha256
