"""Which layers of a frozen encoder serve a probe best: each alone, and those that are put together.

Sources: Devlin et al. 2018, section 5.3 and table 7; on layers one by one, Tenney et al. 2019 (arXiv
1905.05950).

Shapes: N documents, P poolings, F features of a token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from models.family import Encoder
from pipeline.evaluation.metrics import log_loss
from pipeline.evaluation.probe import Reading, fit_probe, pooled_features
from pipeline.evaluation.settings import Pooling, Probe

_LAST = 4  # layers, as in BERT's table


@dataclass(frozen=True)
class Documents:
    """Documents of token ids with their labels."""

    tokens: Sequence[np.ndarray]
    labels: np.ndarray


@dataclass(frozen=True)
class LayerFigures:
    """A probe on some layers, as `probe.layers` and `probe.combine` name them."""

    name: str
    layers: list[int]
    combine: str
    error: float  # fraction of the judged documents
    standard_error: float  # of that fraction, by the number of judged documents
    log_loss: float  # nats a document


def ways_of(widths: Sequence[int]) -> list[tuple[str, Probe]]:
    """Return each layer alone, from the lowest, then what several make; sums only of layers of one width."""
    found = [(_name_of(layer, len(widths)), [layer], "concat") for layer in range(len(widths))]
    last = list(range(max(0, len(widths) - _LAST), len(widths)))
    every = list(range(len(widths)))
    if 1 < len(last) < len(every):
        if len({widths[layer] for layer in last}) == 1:
            found.append((f"last {len(last)}, summed", last, "sum"))
        found.append((f"last {len(last)}, concatenated", last, "concat"))
    if len(every) > 1:
        if len(set(widths)) == 1:
            found.append(("all, summed", every, "sum"))
        found.append(("all, concatenated", every, "concat"))
    return [
        (name, Probe.model_validate({"layers": layers, "combine": combine, "pooling": ["mean"]}))
        for name, layers, combine in found
    ]


def _name_of(layer: int, num_layers: int) -> str:
    ends = {0: " (the lowest)", num_layers - 1: " (the top)"} if num_layers > 1 else {}
    return f"{layer}{ends.get(layer, '')}"


def compare_layers(
    encoder: Encoder,
    training: Documents,
    judged: Documents,
    poolings: Sequence[Pooling],
    reading: Reading,
    idf_V: np.ndarray,
    num_classes: int,
    seed: int,
    device: torch.device,
) -> list[LayerFigures]:
    """Fit a probe on each way to read the layers, and return its error on the judged documents.

    Each document is read once. Pooled layers are put together afterwards, which is the same for every pooling
    but the maximum: it is taken layer by layer.
    """
    with torch.no_grad():
        encoded = encoder(torch.zeros(1, 1, dtype=torch.int64, device=device))
    widths = [layer.shape[-1] for layer in encoded.layers]
    whole = Probe.model_validate({"layers": "all", "combine": "concat", "pooling": list(poolings)})
    ends = np.cumsum(widths)[:-1].tolist()
    by_layer = [
        np.split(pooled_features(encoder, part.tokens, whole, reading, idf_V, device), ends, axis=2)
        for part in (training, judged)
    ]
    found = []
    for name, way in ways_of(widths):
        assert way.layers != "all"
        features = [[parts[layer] for layer in way.layers] for parts in by_layer]
        train, test = (
            sum(parts[1:], start=parts[0]) if way.combine == "sum" else np.concatenate(parts, axis=2)
            for parts in features
        )
        probs = fit_probe(train, training.labels, num_classes, seed).probabilities(test)
        error = float((probs.argmax(1) != judged.labels).mean())
        spread = float(np.sqrt(error * (1 - error) / len(judged.labels)))
        nats = log_loss(judged.labels, probs)
        found.append(LayerFigures(name, way.layers, way.combine, error, spread, nats))
    return found
