"""A classifier of one network as ONNX, which onnxruntime runs.

The folder is one that `headstart predict` and `serve` read as any other classifier.
"""

from __future__ import annotations

import importlib.util
import json
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from models.heads import Classifier, pool, segments_of
from pipeline.artifacts.model_folder import load_classifier
from pipeline.artifacts.tensor_folder import STATE_FILE
from pipeline.corpus.tokenizer_kinds import tokenizer_file_in
from pipeline.files.atomic import atomic_folder
from pipeline.files.manifest import write_manifest
from pipeline.inference.onnx_network import NETWORK_FILE, OnnxSession
from pipeline.training.cards import ModelCard, form_of

_OPSET = 17
_CHECKED = 32  # made-up documents, of all lengths
_MOST_DIFFERENT = 1e-4  # of probabilities
_CARD = Path("reports/model_card.md")


def write_onnx(classifier: Path, folder: Path, *, int8: bool) -> float:
    """Write the fine-tuned classifier in the folder `classifier` as ONNX; return how exact it is.

    That is the largest difference of a probability to the original's, on made-up documents of all lengths.

    Args:
        int8: weights in eight bits, products in integers. They are not exact, and not refused.

    Raises:
        ValueError: `folder` holds something, the packages are missing, there is no such classifier, or the
            probabilities of a network in float32 differ by more than 1e-4.
    """
    check_installed()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder} is not empty; name a folder that does not exist yet")
    model, card, head = load_classifier(classifier)
    if head.beside is not None:
        raise ValueError(
            f"{classifier} reads the features of {head.beside} beside its own, which has no ONNX form; train "
            "one with finetune_classifier.beside null"
        )
    with atomic_folder(folder) as aside:
        difference = _checked_network(model, card, aside / NETWORK_FILE, int8)
        tokenizer = tokenizer_file_in(classifier)
        names = [NETWORK_FILE, STATE_FILE, tokenizer.name]
        (aside / tokenizer.name).write_bytes(tokenizer.read_bytes())
        state = {"kind": "onnx", "int8": int8, "card": asdict(card)}
        (aside / STATE_FILE).write_text(json.dumps(state, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        if _CARD.exists():
            about = f"This folder holds the network in {classifier} as ONNX. The card is of what ships.\n\n"
            (aside / _CARD.name).write_text(about + _CARD.read_text(encoding="utf-8"), encoding="utf-8")
            names.append(_CARD.name)
        write_manifest(aside, names)
    return difference


def _checked_network(model: Classifier, card: ModelCard, file: Path, int8: bool) -> float:
    from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidArgument, RuntimeException

    assert card.head is not None
    of_what = f"a {card.family} with the pooling {card.head.pooling}"
    try:
        _write_network(model, card, file)
        if int8:
            _quantise(file)
        difference = _largest_difference(model, card, file)
    except (torch.onnx.errors.OnnxExporterError, Fail, InvalidArgument, RuntimeException) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"{of_what} cannot be exported as ONNX: {reason}") from error
    if difference > _MOST_DIFFERENT and not int8:
        raise ValueError(
            f"as ONNX {of_what} gives probabilities that differ by {difference:.2g}: its context does not "
            f"hold a text of max_tokens ({card.head.max_tokens}), and a graph has no chunks; with fewer it "
            "can be exported"
        )
    return difference


def check_installed() -> None:
    missing = [name for name in ("onnx", "onnxruntime") if importlib.util.find_spec(name) is None]
    if missing:
        raise ValueError(f'{" and ".join(missing)} not installed; run pip install "headstart[onnx]"')


class _InOneChunk(nn.Module):
    """A classifier that reads a text at once: the loop over chunks has no place in a graph of any length."""

    def __init__(self, model: Classifier) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids_BT: Tensor, mask_BT: Tensor) -> Tensor:
        model = self.model
        of_one_row = model.encoder.initial_state(1)
        state = tuple(tensor.expand(ids_BT.shape[0], *tensor.shape[1:]) for tensor in of_one_row)
        more = {}
        if model.encoder.has_segments and model.delimiter_id is not None:
            more["segments_BT"] = segments_of(ids_BT, model.delimiter_id)
        encoded = model.encoder(ids_BT, mask_BT, state, None, **more)
        features = (
            encoded.features if model.layers.is_top else model.layers.put_together(encoded.layers, model.mix)
        )
        return model.scored(self._pooled(features, ids_BT, mask_BT))

    def _pooled(self, features_BTF: Tensor, ids_BT: Tensor, mask_BT: Tensor) -> Tensor:
        """As `Classifier.pool`, which counts the rows by a number that a graph would keep."""
        model = self.model
        if model.pooling not in ("last", "concat"):
            return model.pool(features_BTF, ids_BT, mask_BT)
        last_B11 = (mask_BT.sum(1) - 1)[:, None, None]
        pooled_BF = features_BTF.gather(1, last_B11.expand(-1, -1, features_BTF.shape[2]))[:, 0]
        if model.pooling == "concat":
            mean_BF, max_BF = pool(features_BTF, mask_BT, "mean_max").chunk(2, dim=1)
            pooled_BF = torch.cat([pooled_BF, max_BF, mean_BF], dim=1)
        if model.choices or model.rows_each == 1:
            return pooled_BF
        return pooled_BF.view(-1, model.rows_each, pooled_BF.shape[1]).sum(1)


def _write_network(model: Classifier, card: ModelCard, file: Path) -> None:
    ids, mask = _made_up(card, [9, 5])
    sizes = {"ids": {0: "rows", 1: "tokens"}, "mask": {0: "rows", 1: "tokens"}, "logits": {0: "rows"}}
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # of traced branches and a batch's size, which are checked below
        torch.onnx.export(
            _InOneChunk(model).eval(), (ids, mask), str(file), dynamo=False, input_names=["ids", "mask"],
            output_names=["logits"], dynamic_axes=sizes, opset_version=_OPSET,
        )  # fmt: skip


def _quantise(file: Path) -> None:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    whole = file.with_suffix(".float32")
    file.rename(whole)
    quantize_dynamic(str(whole), str(file), weight_type=QuantType.QInt8)
    whole.unlink()


@torch.no_grad()
def _largest_difference(model: Classifier, card: ModelCard, file: Path) -> float:
    session, most = OnnxSession.open(file), form_of(card).max_tokens
    lengths = [max(1, most * k // _CHECKED) for k in range(1, _CHECKED + 1)]
    worst = 0.0
    for some in (lengths[:1], lengths, lengths[:3]):
        ids, mask = _made_up(card, some)
        expected = model(ids, mask).double().softmax(1).numpy()
        probs = torch.from_numpy(session.logits(ids.numpy(), mask.numpy())).double().softmax(1).numpy()
        worst = max(worst, float(np.abs(expected - probs).max()))
    return worst


def _made_up(card: ModelCard, lengths: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Rows of drawn tokens, padded; as many as the documents of several rows need."""
    rows_each, generator = form_of(card).rows_each, torch.Generator().manual_seed(1)
    lengths = [length for length in lengths for _ in range(rows_each)]
    ids = torch.randint(card.vocab_size, (len(lengths), max(lengths)), generator=generator)
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return ids.masked_fill(~mask, card.pad_id), mask
