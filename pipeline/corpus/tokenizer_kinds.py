"""The kinds of tokenizers: how one is trained, and how one is loaded, of whichever kind it is."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path

from pipeline.corpus import sentencepiece_tokenizer, word_tokenizer
from pipeline.corpus.sentencepiece_tokenizer import SentencepieceTokenizer
from pipeline.corpus.settings import TrainedTokenizer
from pipeline.corpus.settings import WordTokenizer as WordSettings
from pipeline.corpus.tokenizer import INFO_FILE, LIBRARY_MODULE, MissingPackageError, Tokenizer
from pipeline.corpus.word_tokenizer import WordTokenizer

KINDS: tuple[type[Tokenizer], ...] = (
    SentencepieceTokenizer, WordTokenizer, import_module(LIBRARY_MODULE).TokenizersTokenizer
)  # fmt: skip


def train(texts: Iterable[str], settings: TrainedTokenizer, key: str = "tokenizers") -> Tokenizer:
    """Train a tokenizer of the kind that the settings, those under `key`, ask for.

    Raises:
        ValueError: the text supports no such vocabulary; the message says which key to change.
    """
    if isinstance(settings, WordSettings):
        return word_tokenizer.train(texts, settings, key)
    return sentencepiece_tokenizer.train(texts, settings, key)


def load_tokenizer(path: Path) -> Tokenizer:
    """Load a tokenizer's file, or the one in a folder, of whichever kind it is.

    Raises:
        ValueError: the file is missing, no tokenizer, or not the one that was written.
    """
    file = tokenizer_file_in(path) if path.is_dir() else path
    kind = next((kind for kind in KINDS if Path(kind.FILE).suffix == file.suffix), None)
    if kind is None:
        raise ValueError(f"{file}: a tokenizer's file is called {_file_names()}")
    try:
        content = file.read_bytes()
    except FileNotFoundError as error:
        raise ValueError(f"{file}: no such file; run the stage `train_tokenizer` first") from error
    if path.is_dir():
        _check_whole(content, file)
    try:
        return kind(content)
    except MissingPackageError as error:
        raise ValueError(f"{file}: {error}") from error
    except ValueError as error:
        raise ValueError(f"{file}: {error}; run the stage `train_tokenizer` again") from error


def tokenizer_file_in(folder: Path) -> Path:
    """Return the path of the tokenizer in a folder. Raises ValueError if there is none, or several."""
    files = [folder / kind.FILE for kind in KINDS if (folder / kind.FILE).exists()]
    if not files:
        raise ValueError(f"{folder}/: holds no {_file_names()}; run the stage `train_tokenizer` first")
    if len(files) > 1:
        raise ValueError(
            f"{folder}/: holds {' and '.join(file.name for file in files)}; keep the one that is meant"
        )
    return files[0]


def _file_names() -> str:
    *others, last = (kind.FILE for kind in KINDS)
    return f"{', '.join(others)} or {last}"


def _check_whole(content: bytes, file: Path) -> None:
    """Compare a tokenizer with the SHA-256 beside it, if any (a classifier's is in its manifest)."""
    info_file = file.with_name(INFO_FILE)
    if not info_file.exists():
        return
    try:
        expected = json.loads(info_file.read_text(encoding="utf-8"))["sha256"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{info_file}: damaged ({error}); run the stage `train_tokenizer` again") from error
    if hashlib.sha256(content).hexdigest() != expected:
        raise ValueError(
            f"{file}: damaged, or not the one that {INFO_FILE} describes; run the stage `train_tokenizer` "
            "again"
        )
