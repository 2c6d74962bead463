"""Imports a language model of fastai's, such as its WikiText-103 one, as the general language model.

fastai's AWD_LSTM has the same layers under other names. Its vocabulary consists of words, ours of
sentencepiece's pieces: a piece takes the row of the word that it spells, or else the mean of all rows.

Shapes: V tokens of either vocabulary, E embedding, H hidden.
"""

from __future__ import annotations

import pickletools
import re
import struct
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError

import torch
from torch import Tensor

from pipeline.artifacts.model_folder import export_model
from pipeline.corpus.tokenizer_kinds import load_tokenizer
from pipeline.project.headstarts import ResolvedHeadStart
from pipeline.project.project import Project
from pipeline.training.cards import ModelCard, build_encoder, build_language_model

_SPACE = "\u2581"  # begins the first piece of a word in sentencepiece
_MAX_MB, _MAX_VOCABULARY_MB = 4_000, 64  # a larger file is no AWD-LSTM or vocabulary of one
_MAX_PARTS = 1_000  # tensors in a model, and files in an archive
# Raised by torch for damaged or foreign files.
_LOAD_ERRORS = (
    UnpicklingError, RuntimeError, EOFError, ValueError, KeyError, IndexError, TypeError,
    AttributeError, OverflowError, struct.error, MemoryError,
)  # fmt: skip
# Pickle instructions: push a text, store it in the memo, fetch it from there, make a list, ignored ones.
_TEXTS = {"UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"}
_STORE, _FETCH = {"PUT", "BINPUT", "LONG_BINPUT"}, {"GET", "BINGET", "LONG_BINGET"}
_LISTS = {"LIST", "EMPTY_LIST"}
_IGNORED = {"PROTO", "FRAME", "MARK", "APPEND", "APPENDS", "STOP"}
_LAYER = re.compile(r"0\.rnns\.(\d+)\.weight_hh_l0_raw")


@dataclass(frozen=True)
class VocabularyMatch:
    """How much of the vocabulary fastai's model covers."""

    num_pieces: int
    num_found: int  # spelled by a word of fastai's; the others start from the mean row
    num_words: int  # in fastai's vocabulary


def import_language_model(
    weights: Path, vocabulary: Path, tokenizers: Path, project: Project, headstart: str, out: Path
) -> VocabularyMatch:
    """Write a model folder as `pretrain_lm` does. Raises ValueError if files or sizes do not fit."""
    if out.exists() and not (out / "state.json").exists():
        raise ValueError(f"{out} exists and is no model folder; choose another --out")
    tensors = language_model_tensors(read_weights(weights), weights)
    head_start = _head_start(project, headstart)
    words, ours = read_vocabulary(vocabulary), load_tokenizer(tokenizers / head_start.tokenizer)
    if len(words) != len(tensors["decoder_bias"]):
        raise ValueError(
            f"{vocabulary} has {len(words):,} words, but {weights} has rows for "
            f"{len(tensors['decoder_bias']):,}; use the vocabulary that belongs to it"
        )
    _check_sizes(tensors, head_start, weights)
    pieces = [ours.raw_piece(token) for token in range(ours.vocab_size)]
    specials = {ours.pad_id: "xxpad", ours.bos_id: "xxbos", ours.unk_id: "xxunk"}
    sources = rows_of_pieces(pieces, specials, words)
    moved = {
        name: move_rows(tensor, sources) if len(tensor) == len(words) and _has_row_per_token(name) else tensor
        for name, tensor in tensors.items()
    }
    card = ModelCard(
        kind="language_model",
        family="awd_lstm",
        config=head_start.model.config,
        vocab_size=ours.vocab_size,
        pad_id=ours.pad_id,
        direction=head_start.model.config["direction"],
        tokenizer_sha256=ours.sha256,
        stage="import_fastai",
        key="",
    )
    model = build_language_model(build_encoder(card)[0], card)
    try:
        model.load_state_dict(moved)
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{weights} does not fit the network of params.yaml: {reason}") from error
    try:
        export_model(out, model.state_dict(), card)
    except OSError as error:
        raise ValueError(f"{out} cannot be written: {error}") from error
    return VocabularyMatch(len(pieces), sum(source is not None for source in sources), len(words))


def read_weights(file: Path) -> dict[str, Tensor]:
    """Read a `.pth` of `Learner.save` or of the published models: only tensors, and no code is run."""
    _check_file(file, _MAX_MB)
    if not file.stat().st_size:
        raise ValueError(f"{file} is empty; fetch or save it again")
    try:
        _check_archive(file)
        content = torch.load(file, map_location="cpu", weights_only=True)
    except OSError as error:
        raise ValueError(f"{file} cannot be read: {error}") from error
    except _LOAD_ERRORS as error:
        raise ValueError(
            f"{file} holds more than weights, or is no file of torch's. fastai's Learner.save adds the "
            "optimizer's state: save with with_opt=False"
        ) from error
    if isinstance(content, Mapping) and isinstance(content.get("model"), Mapping):
        content = content["model"]  # next to the optimizer's state
    if not isinstance(content, Mapping) or not all(
        isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in content.items()
    ):
        raise ValueError(
            f"{file} holds no weights by name; save it with fastai's Learner.save, with_opt=False"
        )
    _check_tensors(content, file)
    return dict(content)


def _check_file(file: Path, max_mb: int) -> None:
    if not file.is_file():
        raise ValueError(f"{file}: no such file")
    if file.stat().st_size > max_mb * 1e6:
        raise ValueError(f"{file} is larger than {max_mb:,} MB, too large for an AWD-LSTM")


def _check_archive(file: Path) -> None:
    """Raises ValueError for a `.pth` (a zip file since torch 1.6) that unpacks to more than its size."""
    if not zipfile.is_zipfile(file):
        return
    try:
        parts = zipfile.ZipFile(file).infolist()
    except (zipfile.BadZipFile, NotImplementedError) as error:
        raise ValueError(str(error)) from error
    packed = any(part.compress_type != zipfile.ZIP_STORED for part in parts)  # torch never compresses
    if packed or len(parts) > _MAX_PARTS or sum(part.file_size for part in parts) > file.stat().st_size:
        raise ValueError("it unpacks to more than its size")


def _check_tensors(tensors: Mapping[str, Tensor], file: Path) -> None:
    """Raises ValueError for tensors that claim more than the file holds, such as broadcast or sparse ones."""
    if len(tensors) > _MAX_PARTS:
        raise ValueError(f"{file} holds {len(tensors):,} tensors, which no AWD-LSTM has")
    num_bytes = 0
    for name, tensor in tensors.items():
        if tensor.layout != torch.strided or tensor.device.type != "cpu" or not tensor.is_floating_point():
            raise ValueError(f"{file}: {name[:80]!r} is no dense floating-point tensor")
        num_bytes += tensor.numel() * tensor.element_size()
    if num_bytes > 4 * file.stat().st_size:  # fastai has three names for the embedding, which share storage
        raise ValueError(f"{file} claims {num_bytes:,} bytes of weights, far more than its size")


def read_vocabulary(file: Path) -> list[str]:
    """Read words in row order, from a pickled list (fastai's `itos.pkl`) or a text with one word per line."""
    _check_file(file, _MAX_VOCABULARY_MB)
    try:
        content = file.read_bytes()
    except OSError as error:
        raise ValueError(f"{file} cannot be read: {error}") from error
    if file.suffix != ".pkl":
        try:
            return content.decode("utf-8").removesuffix("\n").split("\n")
        except UnicodeDecodeError as error:
            raise ValueError(f"{file} is not UTF-8: {error}") from error
    try:
        return list(_pickled_texts(content))
    except (ValueError, KeyError) as error:
        raise ValueError(f"{file} is no pickled list of words: {error}") from error


def _pickled_texts(content: bytes) -> Iterator[str]:
    """Yield the texts of a pickled list by parsing its instructions; none is executed.

    Raises ValueError for any other pickle, KeyError if it fetches what it never stored.
    """
    memo: dict[int, str | None] = {}
    last: str | None = None  # a text; None: the list
    num_lists = 0
    for instruction, argument, _ in pickletools.genops(content):
        slot = argument if isinstance(argument, int) else -1
        match instruction.name:
            case name if name in _TEXTS:
                last = str(argument)
                yield last
            case name if name in _STORE:
                memo[slot] = last
            case "MEMOIZE":
                memo[len(memo)] = last
            case name if name in _FETCH:
                text = memo[slot]
                if text is None:
                    raise ValueError("the list contains itself")
                yield text
            case name if name in _LISTS and num_lists == 0:
                last, num_lists = None, 1
            case name if name not in _IGNORED:
                raise ValueError(f"it has the instruction {name}, which a list of texts does not need")
    if num_lists == 0:
        raise ValueError("it contains no list")


def language_model_tensors(theirs: Mapping[str, Tensor], file: Path) -> dict[str, Tensor]:
    """Convert fastai's weights to our names and float32; its two LSTM biases become their sum.

    The decoder must be the embedding (tied), as in fastai's own configuration. Raises ValueError naming a
    missing weight.
    """
    depths = sorted(int(layer[1]) for name in theirs if (layer := _LAYER.fullmatch(name)))
    if depths != list(range(len(depths))) or not depths:
        raise ValueError(
            f"{file} is no language model on fastai's AWD_LSTM: it has no `0.rnns.0.weight_hh_l0_raw`"
        )

    def weight(name: str, *sizes: int | None) -> Tensor:
        """Return a weight of the given sizes; None allows any."""
        if name not in theirs:
            raise ValueError(f"{file} is no language model on fastai's AWD_LSTM: it has no `{name}`")
        shape = list(theirs[name].shape)
        if len(shape) != len(sizes) or any(b not in (None, a) for a, b in zip(shape, sizes, strict=True)):
            raise ValueError(f"{file} is no language model on fastai's AWD_LSTM: `{name}` has shape {shape}")
        return theirs[name].float()

    embedding = weight("0.encoder.weight", None, None)
    if not torch.equal(embedding, weight("1.decoder.weight", *embedding.shape)):
        raise ValueError(f"{file} has a separate decoder; only models with tied weights can be imported")
    tensors = {
        "encoder.embedding.weight": embedding,
        "decoder_bias": weight("1.decoder.bias", len(embedding)),
    }
    for depth in depths:
        theirs_of, ours_of = f"0.rnns.{depth}", f"encoder.layers.{depth}"
        recurrent = weight(f"{theirs_of}.weight_hh_l0_raw", None, None)
        num_gates = len(recurrent)
        tensors[f"{ours_of}.weight_ih"] = weight(f"{theirs_of}.module.weight_ih_l0", num_gates, None)
        tensors[f"{ours_of}.weight_hh"] = recurrent
        biases = [weight(f"{theirs_of}.module.bias_{side}_l0", num_gates) for side in ("ih", "hh")]
        tensors[f"{ours_of}.bias"] = biases[0] + biases[1]
    return tensors


def rows_of_pieces(
    pieces: Sequence[str], specials: Mapping[int, str], words: Sequence[str]
) -> list[int | None]:
    """Return for each piece the row of the word that it spells, or None.

    If over a tenth of the vocabulary begins with sentencepiece's space, it consists of pieces, and pieces are
    looked up as they are. In a vocabulary of words, a piece that begins a word is looked up as written, then
    in lower case, as fastai writes all words. A piece within a word is looked up only if it is not made of
    letters: a comma is a word of its own, `ing` is not.
    """
    row_of = {word: row for row, word in reversed(list(enumerate(words)))}

    has_pieces = 10 * sum(word.startswith(_SPACE) for word in words) > len(words)

    def spelled(piece: str) -> int | None:
        if has_pieces:
            return row_of.get(piece)
        if not piece.startswith(_SPACE):
            return None if piece.isalpha() else row_of.get(piece)
        word = piece.removeprefix(_SPACE)
        return row_of.get(word, row_of.get(word.lower()))

    return [
        row_of.get(specials[token]) if token in specials else spelled(piece)
        for token, piece in enumerate(pieces)
    ]


def move_rows(old: Tensor, sources: Sequence[int | None]) -> Tensor:
    """Return rows (V, ...) for another vocabulary: the source rows, or the mean of all rows if there is none.

    Source: Howard & Ruder's code, `imdb_scripts/finetune_lm.py`; fastai's `match_embeds`.
    """
    mean = old.mean(0)
    return torch.stack([mean if source is None else old[source] for source in sources])


def _has_row_per_token(name: str) -> bool:
    return name in ("encoder.embedding.weight", "decoder_bias")


def _head_start(project: Project, name: str) -> ResolvedHeadStart:
    head_start = project.head_start(name, "--headstart")
    if head_start.family.name != "awd_lstm":
        raise ValueError(
            f"headstarts.{name}.family is {head_start.family.name}; fastai's models are awd_lstm"
        )
    return head_start


def _check_sizes(tensors: Mapping[str, Tensor], head_start: ResolvedHeadStart, file: Path) -> None:
    """Raises ValueError if params.yaml describes another network, with the settings that would fit."""
    layers = [name for name in tensors if name.endswith("weight_hh")]
    theirs = {
        "embedding_dim": tensors["encoder.embedding.weight"].shape[1],
        "hidden_dim": tensors["encoder.layers.0.weight_hh"].shape[1],
        "num_layers": len(layers),
        "tie_weights": True,
    }
    ours = {name: head_start.model.config.get(name) for name in theirs}
    if ours != theirs:
        wanted = ", ".join(
            f"headstarts.{head_start.name}.config.{name}: {value}" for name, value in theirs.items()
        )
        raise ValueError(f"{file} is another network than params.yaml describes; set {wanted}")
