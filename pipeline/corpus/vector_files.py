"""Word vectors from elsewhere: GloVe's and word2vec's files, NumPy arrays, safetensors with a tokenizer.

| file                                   | words                                                             |
|----------------------------------------|-------------------------------------------------------------------|
| text, also `.gz`                       | first on each line (GloVe), with or without word2vec's header     |
| `.bin`, also `.bin.gz`                 | before each row (word2vec's binary form)                          |
| `.npy`                                 | beside it: a parquet with one column of text, or a word a line    |
| `.safetensors`                         | beside it: the vocabulary of a `tokenizer.json`                   |

Files are read row by row, and only rows of wanted words are kept. Nothing is unpickled. A word that is not
UTF-8 or contains a space (GloVe 840B has some of these) is skipped and counted; a file in which over one word
in a hundred is such has another encoding, and is refused.

Shapes: V words, E embedding.
"""

from __future__ import annotations

import glob
import gzip
import re
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from io import BufferedIOBase, BufferedReader
from pathlib import Path
from tokenize import TokenError
from zipfile import BadZipFile

import numpy as np

from pipeline.corpus.tokenizer_json import read_vocabulary, words_of_pieces

_MAX_LINE_BYTES = 2**20
_MAX_WORD_BYTES = 2**10
_MAX_WIDTH = 2**16
_CHUNK_BYTES = 2**20
_MAX_SKIPPED = 0.01  # of the words
_DAMAGED = (EOFError, OSError, zlib.error)  # raised by gzip
_NUMPY_ERRORS = (ValueError, EOFError, OSError, OverflowError, SyntaxError, TokenError, BadZipFile)
_AGAIN = "fetch or convert the file again"
_HEADER = re.compile(rb"(\d{1,12}) (\d{1,12})")


@dataclass(frozen=True)
class Vectors:
    """Words and their vectors (V, E), float32. The first of several equal words counts."""

    words: list[str]
    matrix: np.ndarray
    num_skipped: int = 0  # words that are not UTF-8 or contain a space


def read_vectors(path: Path, wanted: Collection[str] | None = None, *, of_pieces: bool = False) -> Vectors:
    """Read vectors from a file, or from the one such file in a folder and below it.

    Args:
        wanted: if given, only these words are kept, whatever their case; memory holds no others.
        of_pieces: they are of a tokenizer's pieces, which are taken as they are spelled, case included.

    Raises:
        ValueError: the file is missing, damaged or of another kind, or has none of the wanted words.
    """
    file = _file_in(path) if path.is_dir() else path
    if not file.is_file():
        raise ValueError(f"{file}: no such file; name a file or folder of word vectors")
    reader = _READERS.get(Path(file.name.removesuffix(".gz")).suffix, _read_text)
    kept = _Kept(file, wanted, of_pieces)
    try:
        reader(file, path if path.is_dir() else file.parent, kept)
    except _DAMAGED as error:
        raise ValueError(f"{file}: cut or damaged ({error}); {_AGAIN}") from error
    return kept.vectors()


class _Kept:
    """The rows of a file that are wanted, and what else was seen."""

    def __init__(self, file: Path, wanted: Collection[str] | None, of_pieces: bool) -> None:
        self._file = file
        self.of_pieces = of_pieces
        self._wanted = None if wanted is None else set(map(self._spelled, wanted))
        self._rows: dict[str, np.ndarray] = {}
        self.num_seen = self.num_skipped = 0

    def _spelled(self, word: str) -> str:
        return word if self.of_pieces else word.lower()

    def word(self, raw: bytes) -> str | None:
        """Return the next word if its row is wanted, and count it."""
        self.num_seen += 1
        try:
            word = raw.decode("utf-8")
        except UnicodeDecodeError:
            word = ""
        if not word or " " in word:
            self.num_skipped += 1
            return None
        is_wanted = self._wanted is None or self._spelled(word) in self._wanted
        return word if is_wanted and word not in self._rows else None

    def add(self, word: str, row: np.ndarray, position: str) -> None:
        """Keep a row (E,), in float32."""
        with np.errstate(over="ignore"):
            self._rows[word] = row = row.astype(np.float32)
        if not np.isfinite(row).all():
            raise ValueError(
                f"{self._file}: {position}, {word[:40]!r}: NaN, infinity or beyond float32; {_AGAIN}"
            )

    def vectors(self) -> Vectors:
        if self.num_skipped > _MAX_SKIPPED * self.num_seen:
            raise ValueError(
                f"{self._file}: {self.num_skipped:,} of {self.num_seen:,} words are not UTF-8 or contain a "
                "space; convert the file to UTF-8, a word and its numbers a line"
            )
        if not self._rows:
            looked_for = "" if self._wanted is None else f" {len(self._wanted):,} wanted words, such as "
            examples = ", ".join(map(repr, sorted(self._wanted or ())[:3]))
            advice = (
                "take the tokenizer that came with them"
                if self.of_pieces
                else "take vectors of the text's language and of words, not of pieces"
            )
            raise ValueError(
                f"{self._file}: none of the{looked_for}{examples} is among its {self.num_seen:,} words; "
                f"{advice}"
            )
        return Vectors(list(self._rows), np.stack(list(self._rows.values())), self.num_skipped)


# Text


def _read_text(file: Path, folder: Path, kept: _Kept) -> None:
    """Read `word number number ...` lines, after word2vec's header if there is one."""
    with _opened(file) as stream:
        lines = _lines(stream, file)
        _, first = next(lines, (0, b""))
        header = _HEADER.fullmatch(first)
        width = int(header[2]) if header else first.count(b" ")
        if not 0 < width <= _MAX_WIDTH:
            raise ValueError(f"{file}: line 1 begins no word vectors (`word number number ...`); {_AGAIN}")
        if not header:
            _read_line(first, 1, width, file, kept)
        for number, line in lines:
            _read_line(line, number, width, file, kept)
    if header and kept.num_seen != int(header[1]):
        raise ValueError(
            f"{file}: line 1 says {int(header[1]):,} words, but {kept.num_seen:,} follow; {_AGAIN}"
        )


def _lines(stream: BufferedIOBase, file: Path) -> Iterator[tuple[int, bytes]]:
    """Yield number and content of each line, without the spaces that word2vec writes at its end."""
    for number, line in enumerate(iter(lambda: stream.readline(_MAX_LINE_BYTES), b""), start=1):
        if len(line) == _MAX_LINE_BYTES:
            raise ValueError(f"{file}: line {number:,} is over {_MAX_LINE_BYTES:,} bytes long; {_AGAIN}")
        yield number, line.rstrip(b" \r\n")


def _read_line(line: bytes, number: int, width: int, file: Path, kept: _Kept) -> None:
    raw, _, numbers = line.partition(b" ")
    if (num_numbers := line.count(b" ")) != width:
        raw = _word_of_several(line, width)
        if not raw:
            raise ValueError(
                f"{file}: line {number:,} has {num_numbers} numbers after its word, expected {width}; "
                f"{_AGAIN}"
            )
    word = kept.word(raw)
    if word is None:
        return
    try:
        row = np.array(numbers.split(b" "), dtype="S").astype(np.float64)
    except ValueError as error:
        raise ValueError(f"{file}: line {number:,}: {error}; {_AGAIN}") from error
    kept.add(word, row, f"line {number:,}")


def _word_of_several(line: bytes, width: int) -> bytes:
    """Return the word with its spaces, or nothing if the line has too few or too many numbers instead."""
    fields = line.split(b" ")
    parts = fields[: max(0, len(fields) - width)]
    return b"" if len(parts) < 2 or any(map(_is_number, parts[1:])) else b" ".join(parts)


def _is_number(field: bytes) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True


def _opened(file: Path) -> gzip.GzipFile | BufferedReader:
    return gzip.open(file) if file.suffix == ".gz" else file.open("rb")


# word2vec's binary form


def _read_binary(file: Path, folder: Path, kept: _Kept) -> None:
    """Read a line `V E`, then V times a word, a space and E float32 numbers, little-endian."""
    with _opened(file) as stream:
        header = _HEADER.fullmatch(stream.readline(_MAX_WORD_BYTES).rstrip(b" \r\n"))
        if not header or not 0 < int(header[2]) <= _MAX_WIDTH:
            raise ValueError(f"{file}: does not begin with word2vec's line `words width`; {_AGAIN}")
        num_words, row_bytes = int(header[1]), 4 * int(header[2])
        buffer = _Buffer(stream)
        for number in range(1, num_words + 1):
            raw = buffer.until(b" ")
            row = buffer.take(row_bytes)
            if raw is None or len(row) < row_bytes:
                raise ValueError(
                    f"{file}: its header says {num_words:,} words, but word {number:,} is cut; {_AGAIN}"
                )
            word = kept.word(raw.lstrip(b"\n"))  # which word2vec writes after each row, and gensim does not
            if word is not None:
                kept.add(word, np.frombuffer(row, "<f4"), f"word {number:,}")
        if buffer.take(_CHUNK_BYTES).strip():
            raise ValueError(f"{file}: more follows the {num_words:,} words of its header; {_AGAIN}")


class _Buffer:
    """A stream that is read in chunks, up to a byte or by a number of bytes."""

    def __init__(self, stream: BufferedIOBase) -> None:
        self._stream, self._held, self._position = stream, b"", 0

    def until(self, end: bytes) -> bytes | None:
        """Return what precedes `end`, which is passed over; None if it is too far away."""
        index = self._held.find(end, self._position, self._position + _MAX_WORD_BYTES)
        if index < 0:
            self._fill(_MAX_WORD_BYTES)
            index = self._held.find(end, self._position, self._position + _MAX_WORD_BYTES)
        if index < 0:
            return None
        content, self._position = self._held[self._position : index], index + len(end)
        return content

    def take(self, num_bytes: int) -> bytes:
        """Return so many bytes, or the rest."""
        self._fill(num_bytes)
        content = self._held[self._position : self._position + num_bytes]
        self._position += len(content)
        return content

    def _fill(self, num_bytes: int) -> None:
        if len(self._held) - self._position < num_bytes:
            more = self._stream.read(max(num_bytes, _CHUNK_BYTES))
            self._held, self._position = self._held[self._position :] + more, 0


# NumPy


def _read_numpy(file: Path, folder: Path, kept: _Kept) -> None:
    try:
        matrix = np.load(file, mmap_mode="r", allow_pickle=False)
    except _NUMPY_ERRORS as error:
        # Not the error itself, which recommends pickle.
        raise ValueError(f"{file}: no whole NumPy array of plain numbers; {_AGAIN}") from error
    if not isinstance(matrix, np.ndarray) or matrix.ndim != 2 or matrix.dtype.kind != "f":
        raise ValueError(f"{file}: is no matrix of floating-point numbers; save it as a float32 array (V, E)")
    name = glob.escape(file.stem)
    patterns = (f"{name}.parquet", f"{name}.txt", "*.parquet", "*.txt")
    list_file = _one_file(file.parent, patterns, f"the words of {file.name}")
    words = _words_of_parquet(list_file) if list_file.suffix == ".parquet" else _words_of_text(list_file)
    if len(words) != len(matrix):
        raise ValueError(
            f"{list_file} has {len(words):,} words, but {file} has {len(matrix):,} rows; use the list that "
            "belongs to it"
        )
    _keep_rows(words, lambda row: matrix[row], kept)


def _words_of_text(file: Path) -> list[bytes]:
    return file.read_bytes().removesuffix(b"\n").split(b"\n")


def _words_of_parquet(file: Path) -> list[bytes]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(file)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise ValueError(f"{file}: no valid parquet file ({error}); {_AGAIN}") from error
    text_types = (pa.string(), pa.large_string())
    texts = [field.name for field in table.schema if field.type in text_types]
    if len(texts) != 1:
        raise ValueError(f"{file}: has {len(texts)} columns of text; expected one, with the words")
    return [word or b"" for word in table[texts[0]].cast(pa.large_binary()).to_pylist()]


def _keep_rows(words: Sequence[bytes | None], row_of: Callable[[int], np.ndarray], kept: _Kept) -> None:
    """Keep wanted rows of a matrix; a row whose word is None has none."""
    for index, raw in enumerate(words):
        word = None if raw is None else kept.word(raw)
        if word is not None:
            kept.add(word, row_of(index), f"row {index + 1:,}")


# safetensors


def _read_safetensors(file: Path, folder: Path, kept: _Kept) -> None:
    """Read the embedding of a model: one 2-D tensor, or the one that is called so, with a row a token."""
    from safetensors import SafetensorError, safe_open

    vocabulary = _one_file(folder, ("tokenizer.json", "*tokenizer*.json"), f"the vocabulary of {file.name}")
    pieces = read_vocabulary(vocabulary)
    try:
        with safe_open(file, framework="pt") as tensors:
            shapes = {name: tensors.get_slice(name).get_shape() for name in tensors.keys()}  # noqa: SIM118
            matrix = tensors.get_tensor(_embedding_name(shapes, len(pieces), file, vocabulary))
    except SafetensorError as error:
        raise ValueError(f"{file}: no valid safetensors file ({error}); {_AGAIN}") from error
    if not matrix.is_floating_point():
        raise ValueError(f"{file}: its embedding is of {matrix.dtype}, expected floating-point numbers")
    spelled = pieces if kept.of_pieces else words_of_pieces(pieces)
    words = [None if word is None else word.encode(errors="replace") for word in spelled]
    _keep_rows(words, lambda row: matrix[row].float().numpy(), kept)


def _embedding_name(shapes: dict[str, list[int]], num_pieces: int, file: Path, vocabulary: Path) -> str:
    matrices = {name: shape[0] for name, shape in shapes.items() if len(shape) == 2}
    called_so = {name: rows for name, rows in matrices.items() if "embed" in name.lower()}
    # Models often have a few rows more than tokens, so that their number is a multiple of 64.
    fitting = {name: rows for name, rows in (called_so or matrices).items() if rows >= num_pieces}
    exact = [name for name, rows in fitting.items() if rows == num_pieces]
    names = exact if len(exact) == 1 else list(fitting)
    if len(names) != 1:
        listed = ", ".join(f"{name} {list(shape)}" for name, shape in list(shapes.items())[:8])
        raise ValueError(
            f"{file}: which tensor is the embedding of the {num_pieces:,} tokens of {vocabulary}? It has "
            f"{listed or 'none'}; keep one matrix with a row a token, called `embedding.weight`"
        )
    return names[0]


# Which file


_READERS: dict[str, Callable[[Path, Path, _Kept], None]] = {
    ".bin": _read_binary,
    ".npy": _read_numpy,
    ".safetensors": _read_safetensors,
}
_PATTERNS = ("*.npy", "*.safetensors", "*.bin", "*.bin.gz", "*.vec", "*.vec.gz", "*.txt.gz", "*.txt")


def _file_in(folder: Path) -> Path:
    return _one_file(folder, _PATTERNS, "word vectors")


def _one_file(folder: Path, patterns: Sequence[str], what: str) -> Path:
    """Return the one file of the first pattern that matches any, in a folder or in those it contains."""
    for pattern in patterns:
        files = sorted([*folder.glob(pattern), *folder.glob(f"*/{pattern}")])
        if len(files) == 1:
            return files[0]
        if files:
            names = ", ".join(str(file.relative_to(folder)) for file in files[:5])
            raise ValueError(f"{folder}/: which of {names} holds {what}? Put it in a folder of its own")
    raise ValueError(f"{folder}/: no file with {what}; expected {', '.join(dict.fromkeys(patterns))}")
