"""Tokenizers that came with weights from elsewhere: of the `tokenizers` library, or a sentencepiece model."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from pipeline.corpus import sentencepiece_tokenizer
from pipeline.corpus.settings import ImportedTokenizer as Settings
from pipeline.corpus.tokenizer import LIBRARY_MODULE, Tokenizer

_JSON, _MODEL, _WORDPIECES, _BPE = "tokenizer.json", "*.model", "vocab.txt", ("vocab.json", "merges.txt")
_IN_A_FOLDER = ((_JSON,), (_WORDPIECES,), _BPE)  # in this order
_EXPECTED = f"a {_JSON}, a {_WORDPIECES}, a {' with a '.join(_BPE)}, or a sentencepiece model ({_MODEL})"


def import_tokenizer(settings: Settings, key: str) -> Tokenizer:
    """Read the tokenizer of `settings.file`, and give it the special pieces that it lacks.

    Its own tokens keep their ids. `key` is that of the settings.

    Raises:
        ValueError: there is no such file, or it holds no tokenizer; the message names the key.
    """
    file = _file_of(Path(settings.file), key)
    try:
        return _read(file)
    except ValueError as error:
        raise ValueError(f"`{key}.file` is {file}: {error}") from error


def holds_tokenizer(folder: Path) -> bool:
    """Whether there is one of the `tokenizers` library."""
    return any(all((folder / name).is_file() for name in names) for names in _IN_A_FOLDER)


def _read(file: Path) -> Tokenizer:
    tokenizer: Tokenizer
    if file.suffix == ".model":
        tokenizer = sentencepiece_tokenizer.completed(file.read_bytes())
        return tokenizer
    library = import_module(LIBRARY_MODULE)
    if file.name == _WORDPIECES:
        content = library.of_wordpieces(file)
    elif file.name in _BPE:
        content = library.of_byte_pairs(*(file.with_name(name) for name in _BPE))
    else:
        content = file.read_bytes()
    tokenizer = library.completed(content)
    return tokenizer


def _file_of(path: Path, key: str) -> Path:
    if path.is_file():
        if path.suffix in (".json", ".model") or path.name == _WORDPIECES:
            return path
        raise ValueError(f"`{key}.file` is {path}; expected {_EXPECTED}")
    if not path.exists():
        raise ValueError(f"`{key}.file` is {path}, which does not exist; put {_EXPECTED} there")
    for names in _IN_A_FOLDER:
        if all((path / name).is_file() for name in names):
            return path / names[0]
    models = sorted(path.glob(_MODEL))
    if len(models) == 1:
        return models[0]
    if models:
        listed = ", ".join(model.name for model in models)
        raise ValueError(f"`{key}.file` is the folder {path}, which holds {listed}; name one file")
    raise ValueError(f"`{key}.file` is the folder {path}, which has no tokenizer; put {_EXPECTED} there")
