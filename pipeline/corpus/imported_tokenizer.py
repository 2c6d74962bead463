"""Tokenizers that came with weights from elsewhere: `tokenizer.json`, or a sentencepiece model."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from pipeline.corpus import sentencepiece_tokenizer
from pipeline.corpus.settings import ImportedTokenizer as Settings
from pipeline.corpus.tokenizer import LIBRARY_MODULE, Tokenizer

_JSON, _MODEL = "tokenizer.json", "*.model"


def import_tokenizer(settings: Settings, key: str) -> Tokenizer:
    """Read the tokenizer of `settings.file`, and give it the special pieces that it lacks.

    Its own tokens keep their ids. `key` is that of the settings.

    Raises:
        ValueError: there is no such file, or it holds no tokenizer; the message names the key.
    """
    file = _file_of(Path(settings.file), key)
    module = import_module(LIBRARY_MODULE) if file.suffix == ".json" else sentencepiece_tokenizer
    try:
        tokenizer: Tokenizer = module.completed(file.read_bytes())
    except ValueError as error:
        raise ValueError(f"`{key}.file` is {file}: {error}") from error
    return tokenizer


def _file_of(path: Path, key: str) -> Path:
    if path.is_file():
        if path.suffix in (".json", ".model"):
            return path
        raise ValueError(f"`{key}.file` is {path}; expected a {_JSON} or a sentencepiece model ({_MODEL})")
    if not path.exists():
        raise ValueError(f"`{key}.file` is {path}, which does not exist; put a {_JSON} or {_MODEL} there")
    if (path / _JSON).is_file():
        return path / _JSON
    found = sorted(path.glob(_MODEL))
    if len(found) != 1:
        held = ", ".join(each.name for each in found) or f"no {_JSON} and no {_MODEL}"
        raise ValueError(f"`{key}.file` is the folder {path}, which holds {held}; name one file")
    return found[0]
