"""Token shards: the encoded documents of a split, memory-mapped.

A folder holds for each split

- `<split>.tokens`: the tokens of all documents one after the other, raw little-endian uint16, or uint32
  where the vocabulary is larger than 65,536;
- `<split>.offsets.npy`: int64, one more than documents; document i is `tokens[offsets[i]:offsets[i + 1]]`;
- `<split>.labels.npy`: int32, -1 for unlabelled;

`tokens.json` with their sizes, and `word_starts.npy`, which tells the tokens that begin a word. A tokenizer
of characters adds `word_parts.npy`, the `WordPart` of each token. Each document is stored as start, pieces,
end. `manifest.json`, written last, has the SHA-256 of every file. Opening a shard verifies the files that it
maps, because a flipped bit would train a model on another text or look up a token that does not exist.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType

import numpy as np

from models.word_parts import WordPart
from pipeline.files.atomic import atomic_write_text
from pipeline.files.manifest import verify, write_manifest

INFO_FILE, WORD_STARTS_FILE, WORD_PARTS_FILE = "tokens.json", "word_starts.npy", "word_parts.npy"
UNLABELLED = -1
_COUNTED_AT_ONCE, _COUNTS = 10_000, 1_000  # tokens in a row, and how often of a shard


@dataclass(frozen=True)
class SplitInfo:
    """Sizes of a split; words (white space) and bytes (UTF-8) are of the normalised text."""

    num_documents: int
    num_tokens: int
    num_words: int
    num_bytes: int


@dataclass(frozen=True)
class TokensInfo:
    """The content of `tokens.json`."""

    vocab_size: int
    tokenizer_sha256: str
    unk_id: int
    bos_id: int
    eos_id: int
    pad_id: int
    label_names: tuple[str, ...] | None
    splits: Mapping[str, SplitInfo]
    mask_id: int | None = None  # None: the tokenizer has no piece for masks
    num_texts: int = 1  # of a labelled document; several are divided by the document-end token

    @property
    def dtype(self) -> np.dtype:
        """Little-endian type of the tokens on disk."""
        return token_dtype(self.vocab_size)


@dataclass(frozen=True)
class TokenShard:
    """The documents of one split. `tokens` and `offsets` stay on disk until they are read."""

    tokens: np.ndarray
    offsets: np.ndarray
    labels: np.ndarray
    num_words: int
    num_bytes: int

    def __len__(self) -> int:
        return len(self.labels)

    def document(self, index: int) -> np.ndarray:
        """Tokens of one document, start and end included."""
        return self.tokens[self.offsets[index] : self.offsets[index + 1]]


def token_counts(texts: Iterable[np.ndarray], vocab_size: int) -> np.ndarray:
    """Count of each token in some texts (vocab_size,), from an even sample of at most ten million."""
    counts = np.zeros(vocab_size, dtype=np.int64)
    for tokens in texts:
        num_tokens = len(tokens)
        step = max(_COUNTED_AT_ONCE, num_tokens // _COUNTS)
        for start in range(0, num_tokens, step):
            counts += np.bincount(tokens[start : start + _COUNTED_AT_ONCE], minlength=vocab_size)
    return counts


def token_dtype(vocab_size: int) -> np.dtype:
    """The smallest type that holds every token number."""
    return np.dtype("<u2" if vocab_size <= 2**16 else "<u4")


class ShardWriter:
    """Appends documents to a split's files as they come; used as a context manager."""

    def __init__(self, folder: Path, split: str, vocab_size: int) -> None:
        self._paths, self._dtype = _files(folder, split), token_dtype(vocab_size)
        self._offsets, self._labels = array("q", [0]), array("i")

    def __enter__(self) -> ShardWriter:
        self._file = self._paths[0].open("wb")
        return self

    def append(self, documents: Iterable[np.ndarray], labels: Iterable[int | None]) -> None:
        """Append encoded documents and their labels."""
        for tokens, label in zip(documents, labels, strict=True):
            self._file.write(tokens.astype(self._dtype).data)
            self._offsets.append(self._offsets[-1] + len(tokens))
            self._labels.append(UNLABELLED if label is None else label)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        if kind is None:
            np.save(self._paths[1], np.frombuffer(self._offsets, dtype=np.int64))
            np.save(self._paths[2], np.frombuffer(self._labels, dtype=np.int32))

    def info(self, num_words: int, num_bytes: int) -> SplitInfo:
        """Sizes of what was appended; the caller gives words and bytes, as the texts are not seen here."""
        return SplitInfo(len(self._labels), self._offsets[-1], num_words, num_bytes)


def write_info(
    folder: Path,
    info: TokensInfo,
    word_starts: np.ndarray | None = None,
    word_parts: np.ndarray | None = None,
) -> None:
    """Write `tokens.json`, `word_starts` (V,), `word_parts` (V,) if given, and the manifest.

    They make the folder's shards whole. Without `word_starts` each token is a word.
    """
    content = {"dtype": info.dtype.name, **asdict(info)}
    atomic_write_text(folder / INFO_FILE, json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    starts = np.ones(info.vocab_size, dtype=bool) if word_starts is None else word_starts
    np.save(folder / WORD_STARTS_FILE, starts)
    files = [INFO_FILE, WORD_STARTS_FILE]
    if word_parts is not None:
        np.save(folder / WORD_PARTS_FILE, word_parts)
        files.append(WORD_PARTS_FILE)
    files += [file.name for split in info.splits for file in _files(folder, split)]
    write_manifest(folder, files)


def read_info(folder: Path) -> TokensInfo:
    """Read `tokens.json`. Raises ValueError if it is missing or damaged."""
    file = folder / INFO_FILE
    if not file.exists():
        raise ValueError(f"{file}: no such file; run the stage `encode` first")
    _verify(folder, [file])
    content = json.loads(file.read_text(encoding="utf-8"))
    del content["dtype"]  # follows from the vocabulary's size; there for other readers
    names = content.pop("label_names")
    splits = {split: SplitInfo(**sizes) for split, sizes in content.pop("splits").items()}
    return TokensInfo(**content, label_names=None if names is None else tuple(names), splits=splits)


def read_word_starts(folder: Path) -> np.ndarray:
    """Read which tokens begin a word, (V,). Raises ValueError if the file is missing or damaged."""
    _verify(folder, [folder / WORD_STARTS_FILE])
    word_starts: np.ndarray = np.load(folder / WORD_STARTS_FILE, allow_pickle=False)
    return word_starts


def beginnings_of_words(folder: Path) -> np.ndarray:
    """Return which tokens begin a word or are special, bool (V,)."""
    info, begins = read_info(folder), read_word_starts(folder)
    begins[[info.pad_id, info.unk_id, info.bos_id, info.eos_id]] = True
    return begins


def read_word_parts(folder: Path) -> np.ndarray:
    """Return the `WordPart` of each token, uint8 (V,); only those of characters are words by being marks.

    Raises ValueError if a file is missing or damaged.
    """
    if (folder / WORD_PARTS_FILE).exists():
        _verify(folder, [folder / WORD_PARTS_FILE])
        word_parts: np.ndarray = np.load(folder / WORD_PARTS_FILE, allow_pickle=False)
        return word_parts
    info = read_info(folder)
    parts = np.where(read_word_starts(folder), WordPart.BEGINS, WordPart.GOES_ON).astype(np.uint8)
    parts[[info.pad_id, info.unk_id, info.bos_id, info.eos_id]] = WordPart.ALONE
    return parts


def open_shard(folder: Path, split: str) -> TokenShard:
    """Verify the files of a split, then open it memory-mapped.

    Raises:
        ValueError: there is no such split, or a file is missing or damaged; the message names it.
    """
    info = read_info(folder)
    if split not in info.splits:
        raise ValueError(f"{folder}: no split {split!r}; it has {', '.join(info.splits)}")
    sizes = info.splits[split]
    tokens, offsets, labels = files = _files(folder, split)
    _verify(folder, files)
    return TokenShard(
        np.memmap(tokens, dtype=info.dtype, mode="r", shape=(sizes.num_tokens,)),
        np.load(offsets, mmap_mode="r", allow_pickle=False),
        np.load(labels, mmap_mode="r", allow_pickle=False),
        sizes.num_words,
        sizes.num_bytes,
    )


def _verify(folder: Path, files: Sequence[Path]) -> None:
    try:
        verify(folder, [file.name for file in files])
    except ValueError as error:
        raise ValueError(f"{error}; run the stage `encode` again") from error


def _files(folder: Path, split: str) -> tuple[Path, Path, Path]:
    """The files of a split: tokens, offsets and labels."""
    return folder / f"{split}.tokens", folder / f"{split}.offsets.npy", folder / f"{split}.labels.npy"
