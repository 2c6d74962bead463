"""A language model of fastai's, such as its WikiText-103 one, taken as this project's general language model.

fastai's AWD_LSTM has the same layers under other names. Its vocabulary is of words, ours of sentencepiece's
pieces: a piece takes the row of the word that it spells, and the mean of all rows where there is none.

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

from pipeline.corpus.tokenizer import Tokenizer
from pipeline.params import Direction, Params
from pipeline.training.export import ModelCard, build_encoder, build_language_model, export_model

_SPACE = "\u2581"  # sentencepiece's, before the first piece of a word
_MOST_MB, _MOST_VOCABULARY_MB = 4_000, 64  # of a file: what is larger is no AWD-LSTM, no list of its words
_MOST_PARTS = 1_000  # tensors of a model, and files of an archive
# What damaged or foreign bytes raise when torch reads them.
_NO_WEIGHTS = (
    UnpicklingError, RuntimeError, EOFError, ValueError, KeyError, IndexError, TypeError,
    AttributeError, OverflowError, struct.error, MemoryError,
)  # fmt: skip
# Of a pickle: texts, what remembers one, what recalls it; what makes a list; what means nothing here.
_TEXTS = {"UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"}
_REMEMBER, _RECALL = {"PUT", "BINPUT", "LONG_BINPUT"}, {"GET", "BINGET", "LONG_BINGET"}
_LISTS = {"LIST", "EMPTY_LIST"}
_SILENT = {"PROTO", "FRAME", "MARK", "APPEND", "APPENDS", "STOP"}
_LAYER = re.compile(r"0\.rnns\.(\d+)\.weight_hh_l0_raw")


@dataclass(frozen=True)
class Moved:
    """What became of the vocabulary."""

    num_pieces: int
    num_found: int  # spelled by a word of fastai's; the others start from the mean
    num_words: int  # of fastai's vocabulary


def import_language_model(
    weights: Path, vocabulary: Path, tokenizer: Path, params: Params, direction: Direction, out: Path
) -> Moved:
    """Write a model folder as `pretrain_lm` does. Raises ValueError for files or sizes that do not fit."""
    if out.exists() and not (out / "state.json").exists():
        raise ValueError(f"{out} exists and is no model's folder; give another for --out")
    tensors = language_model_tensors(read_weights(weights), weights)
    words, ours = read_vocabulary(vocabulary), Tokenizer.load(tokenizer)
    if len(words) != len(tensors["decoder_bias"]):
        raise ValueError(
            f"{vocabulary} has {len(words):,} words, but {weights} has rows for "
            f"{len(tensors['decoder_bias']):,}; give the vocabulary that goes with it"
        )
    _check_sizes(tensors, params, weights)
    pieces = [ours.raw_piece(token) for token in range(ours.vocab_size)]
    specials = {ours.pad_id: "xxpad", ours.bos_id: "xxbos", ours.unk_id: "xxunk"}
    sources = rows_of_pieces(pieces, specials, words)
    moved = {
        name: move_rows(tensor, sources) if len(tensor) == len(words) and _of_vocabulary(name) else tensor
        for name, tensor in tensors.items()
    }
    card = ModelCard(
        kind="language_model",
        family="awd_lstm",
        config=dict(params.model.config),
        vocab_size=ours.vocab_size,
        pad_id=ours.pad_id,
        direction=direction,
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
    return Moved(len(pieces), sum(source is not None for source in sources), len(words))


def read_weights(file: Path) -> dict[str, Tensor]:
    """A `.pth` of `Learner.save` or of the published models: tensors alone, nothing that could run."""
    _check_file(file, _MOST_MB)
    try:
        _check_archive(file)
        content = torch.load(file, map_location="cpu", weights_only=True)
    except OSError as error:
        raise ValueError(f"{file} cannot be read: {error}") from error
    except _NO_WEIGHTS as error:
        raise ValueError(
            f"{file} holds more than weights, or is no file of torch's. fastai's Learner.save puts the "
            "optimizer beside them: save with with_opt=False"
        ) from error
    if isinstance(content, Mapping) and isinstance(content.get("model"), Mapping):
        content = content["model"]  # beside the optimizer's state
    if not isinstance(content, Mapping) or not all(
        isinstance(name, str) and isinstance(each, Tensor) for name, each in content.items()
    ):
        raise ValueError(
            f"{file} holds no weights by name; save it with fastai's Learner.save, with_opt=False"
        )
    _check_tensors(content, file)
    return dict(content)


def _check_file(file: Path, most_mb: int) -> None:
    if not file.is_file():
        raise ValueError(f"{file}: no such file")
    if file.stat().st_size > most_mb * 1e6:
        raise ValueError(f"{file} is larger than {most_mb:,} MB, which none of an AWD-LSTM is")


def _check_archive(file: Path) -> None:
    """Since torch 1.6 a `.pth` is a zip file. Raises ValueError for one that unpacks to more than it is."""
    if not zipfile.is_zipfile(file):
        return
    try:
        parts = zipfile.ZipFile(file).infolist()
    except (zipfile.BadZipFile, NotImplementedError) as error:
        raise ValueError(str(error)) from error
    packed = any(part.compress_type != zipfile.ZIP_STORED for part in parts)  # torch does not
    if packed or len(parts) > _MOST_PARTS or sum(part.file_size for part in parts) > file.stat().st_size:
        raise ValueError("it unpacks to more than it is")


def _check_tensors(tensors: Mapping[str, Tensor], file: Path) -> None:
    """Raises ValueError for tensors that say to be more than the file holds: broadcast or sparse ones."""
    if len(tensors) > _MOST_PARTS:
        raise ValueError(f"{file} holds {len(tensors):,} tensors, which no AWD-LSTM has")
    num_bytes = 0
    for name, tensor in tensors.items():
        if tensor.layout != torch.strided or tensor.device.type != "cpu" or not tensor.is_floating_point():
            raise ValueError(f"{file}: {name[:80]!r} is no plain tensor of floating-point numbers")
        num_bytes += tensor.numel() * tensor.element_size()
    if num_bytes > 4 * file.stat().st_size:  # fastai's three names of the embedding share one storage
        raise ValueError(f"{file} says to hold {num_bytes:,} bytes of weights, far more than it has")


def read_vocabulary(file: Path) -> list[str]:
    """Words in the order of their rows: a pickled list (fastai's `itos.pkl`), or text, a word a line."""
    _check_file(file, _MOST_VOCABULARY_MB)
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
    """The texts of a pickled list, from its instructions: none of them is carried out.

    Raises ValueError for a pickle that is anything else, KeyError where it recalls what it did not keep.
    """
    remembered: dict[int, str | None] = {}
    last: str | None = None  # a text; None: the list
    num_lists = 0
    for instruction, argument, _ in pickletools.genops(content):
        place = argument if isinstance(argument, int) else -1
        match instruction.name:
            case name if name in _TEXTS:
                last = str(argument)
                yield last
            case name if name in _REMEMBER:
                remembered[place] = last
            case "MEMOIZE":
                remembered[len(remembered)] = last
            case name if name in _RECALL:
                found = remembered[place]
                if found is None:
                    raise ValueError("it holds itself")
                yield found
            case name if name in _LISTS and num_lists == 0:
                last, num_lists = None, 1
            case name if name not in _SILENT:
                raise ValueError(f"it has the instruction {name}, and only a list of texts is read")
    if num_lists == 0:
        raise ValueError("it holds no list")


def language_model_tensors(theirs: Mapping[str, Tensor], file: Path) -> dict[str, Tensor]:
    """fastai's weights under our names, float32; its two LSTM biases as their sum.

    The decoder is the embedding (tied), as in fastai's own configuration. Raises ValueError where a weight
    is missing, naming it.
    """
    depths = sorted(int(found[1]) for name in theirs if (found := _LAYER.fullmatch(name)))
    if depths != list(range(len(depths))) or not depths:
        raise ValueError(
            f"{file} is no language model on fastai's AWD_LSTM: it has no `0.rnns.0.weight_hh_l0_raw`"
        )

    def weight(name: str, *sizes: int | None) -> Tensor:
        """Of these sizes; None: any."""
        if name not in theirs:
            raise ValueError(f"{file} is no language model on fastai's AWD_LSTM: it has no `{name}`")
        found = list(theirs[name].shape)
        if len(found) != len(sizes) or any(b not in (None, a) for a, b in zip(found, sizes, strict=True)):
            raise ValueError(f"{file} is no language model on fastai's AWD_LSTM: `{name}` has shape {found}")
        return theirs[name].float()

    embedding = weight("0.encoder.weight", None, None)
    if not torch.equal(embedding, weight("1.decoder.weight", *embedding.shape)):
        raise ValueError(f"{file} has a decoder of its own; only models with tied weights are read")
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
    """For each piece the row of the word that it spells; None where there is none.

    A vocabulary of sentencepiece's own, of which a tenth begins words, has the piece as it is. Among words, a
    piece that begins one is looked up as written, then in lower case, as fastai writes all words; one within
    a word is found only where it is no letter, for a comma is a word of its own and `ing` is not.
    """
    row_of = {word: row for row, word in reversed(list(enumerate(words)))}

    of_pieces = 10 * sum(word.startswith(_SPACE) for word in words) > len(words)

    def spelled(piece: str) -> int | None:
        if of_pieces:
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
    """Rows (V, ...) for another vocabulary: those found, and the mean of all for the others.

    Source: Howard & Ruder's code, `imdb_scripts/finetune_lm.py`; fastai's `match_embeds`.
    """
    mean = old.mean(0)
    return torch.stack([mean if source is None else old[source] for source in sources])


def _of_vocabulary(name: str) -> bool:
    return name in ("encoder.embedding.weight", "decoder_bias")


def _check_sizes(tensors: Mapping[str, Tensor], params: Params, file: Path) -> None:
    """Raises ValueError where params.yaml asks for another network, with what it would have to say."""
    layers = [name for name in tensors if name.endswith("weight_hh")]
    theirs = {
        "embedding_dim": tensors["encoder.embedding.weight"].shape[1],
        "hidden_dim": tensors["encoder.layers.0.weight_hh"].shape[1],
        "num_layers": len(layers),
        "tie_weights": True,
    }
    if params.model.family != "awd_lstm":
        raise ValueError(f"model.family is {params.model.family}; fastai's language models are awd_lstm")
    ours = {name: params.model.config.get(name) for name in theirs}
    if ours != theirs:
        wanted = ", ".join(f"model.config.{name}: {value}" for name, value in theirs.items())
        raise ValueError(f"{file} is another network than params.yaml asks for; set {wanted}")
