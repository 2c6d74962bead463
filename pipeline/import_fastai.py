"""A language model of fastai's, such as its WikiText-103 one, taken as this project's general language model.

fastai's AWD_LSTM has the same layers under other names. Its vocabulary is of words, ours of sentencepiece's
pieces: a piece takes the row of the word that it spells, and the mean of all rows where there is none.

Shapes: V tokens of either vocabulary, E embedding, H hidden.
"""

from __future__ import annotations

import io
import pickle
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pipeline.corpus.tokenizer import Tokenizer
from pipeline.params import Direction, Params
from pipeline.training.export import ModelCard, build_encoder, build_language_model, export_model

_SPACE = "\u2581"  # sentencepiece's, before the first piece of a word
_MOST_MB = 4_000  # of a file: what is larger is no AWD-LSTM
# What damaged or foreign bytes raise when they are unpickled.
_NO_PICKLE = (
    pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError, IndexError, TypeError,
    AttributeError, struct.error, MemoryError,
)  # fmt: skip
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
    if not file.is_file():
        raise ValueError(f"{file}: no such file")
    if file.stat().st_size > _MOST_MB * 1e6:
        raise ValueError(f"{file} is larger than {_MOST_MB:,} MB, which no AWD-LSTM is")
    try:
        content = torch.load(file, map_location="cpu", weights_only=True)
    except OSError as error:
        raise ValueError(f"{file} cannot be read: {error}") from error
    except _NO_PICKLE as error:
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
    return dict(content)


def read_vocabulary(file: Path) -> list[str]:
    """Words in the order of their rows: a pickled list (fastai's `itos.pkl`), or text, a word a line."""
    if not file.is_file():
        raise ValueError(f"{file}: no such file")
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
        words = _OnlyPlain(io.BytesIO(content)).load()
    except _NO_PICKLE as error:
        raise ValueError(f"{file} is no pickled list of words: {error}") from error
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise ValueError(f"{file} is no pickled list of words, but {type(words).__name__}")
    return words


class _OnlyPlain(pickle.Unpickler):
    """Lists, texts and numbers. What a pickle could run, it would have to find first."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, and only a list of texts is read")


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

    def weight(name: str) -> Tensor:
        try:
            return theirs[name].float()
        except KeyError as error:
            raise ValueError(
                f"{file} is no language model on fastai's AWD_LSTM: it has no `{name}`"
            ) from error

    embedding = weight("0.encoder.weight")
    if not torch.equal(embedding, weight("1.decoder.weight")):
        raise ValueError(f"{file} has a decoder of its own; only models with tied weights are read")
    tensors = {"encoder.embedding.weight": embedding, "decoder_bias": weight("1.decoder.bias")}
    for depth in depths:
        theirs_of, ours_of = f"0.rnns.{depth}", f"encoder.layers.{depth}"
        tensors[f"{ours_of}.weight_ih"] = weight(f"{theirs_of}.module.weight_ih_l0")
        tensors[f"{ours_of}.weight_hh"] = weight(f"{theirs_of}.weight_hh_l0_raw")
        tensors[f"{ours_of}.bias"] = weight(f"{theirs_of}.module.bias_ih_l0") + weight(
            f"{theirs_of}.module.bias_hh_l0"
        )
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
