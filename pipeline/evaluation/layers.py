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
from torch import Tensor

from models.family import Encoder
from models.mixing import ScalarMix
from pipeline.evaluation.metrics import log_loss
from pipeline.evaluation.probe import Reading, fit_probe, pooled_features
from pipeline.evaluation.settings import Pooling, Probe
from pipeline.figures.studies import LayerProbe

_LAST = 4  # layers, as in BERT's table
_MIX_ITERATIONS, _MIX_STRENGTH = 100, 10.0  # the latter as scikit-learn's C


@dataclass(frozen=True)
class LabelledDocuments:
    """Documents of token ids with their labels."""

    tokens: Sequence[np.ndarray]
    labels: np.ndarray


def ways_of(widths: Sequence[int]) -> list[tuple[str, Probe]]:
    """Return each layer alone, from the lowest, then what several make; sums only of layers of one width."""
    ways = [(_name_of(layer, len(widths)), [layer], "concat") for layer in range(len(widths))]
    last = list(range(max(0, len(widths) - _LAST), len(widths)))
    every = list(range(len(widths)))
    if 1 < len(last) < len(every):
        if len({widths[layer] for layer in last}) == 1:
            ways.append((f"last {len(last)}, summed", last, "sum"))
        ways.append((f"last {len(last)}, concatenated", last, "concat"))
    if len(every) > 1:
        if len(set(widths)) == 1:
            ways.append(("all, summed", every, "sum"))
        ways.append(("all, concatenated", every, "concat"))
    return [
        (name, Probe.model_validate({"layers": layers, "combine": combine, "pooling": ["mean"]}))
        for name, layers, combine in ways
    ]


def _name_of(layer: int, num_layers: int) -> str:
    ends = {0: " (the lowest)", num_layers - 1: " (the top)"} if num_layers > 1 else {}
    return f"{layer}{ends.get(layer, '')}"


def compare_layers(
    encoder: Encoder,
    training: LabelledDocuments,
    judged: LabelledDocuments,
    poolings: Sequence[Pooling],
    reading: Reading,
    idf_V: np.ndarray,
    num_classes: int,
    seed: int,
    device: torch.device,
) -> list[LayerProbe]:
    """Fit a probe on each way to read the layers, and return its error on the judged documents.

    Each document is read once. Pooled layers are put together afterwards, which is the same for every pooling
    but the maximum: it is taken layer by layer.
    """
    widths = encoder.layer_widths
    whole = Probe.model_validate({"layers": "all", "combine": "concat", "pooling": list(poolings)})
    ends = np.cumsum(widths)[:-1].tolist()
    by_layer = [
        np.split(pooled_features(encoder, part.tokens, whole, reading, idf_V, device), ends, axis=2)
        for part in (training, judged)
    ]

    def judge(name: str, layers: Sequence[int], combine: str, weights: list[float] | None) -> LayerProbe:
        train, test = (_put_together([parts[k] for k in layers], combine, weights) for parts in by_layer)
        probs = fit_probe([train], training.labels, num_classes, seed).probabilities([test])
        error = float((probs.argmax(1) != judged.labels).mean())
        spread = float(np.sqrt(error * (1 - error) / len(judged.labels)))
        nats = log_loss(judged.labels, probs)
        return LayerProbe(
            name=name, layers=list(layers), combine=combine, error=error, standard_error=spread,
            log_loss=nats, weights=weights,
        )  # fmt: skip

    every = range(len(widths))
    probes = [
        judge(name, every if way.layers == "all" else way.layers, way.combine, None)
        for name, way in ways_of(widths)
    ]
    if len(widths) > 1 and len(set(widths)) == 1:
        weights = fitted_mix(by_layer[0], training.labels, num_classes)
        probes.append(judge("all, a learned mean", every, "mix", weights))
    return probes


def _put_together(parts: Sequence[np.ndarray], combine: str, weights: Sequence[float] | None) -> np.ndarray:
    """Return pooled features (N, P, F) of pooled layers."""
    if combine == "concat":
        return np.concatenate(parts, axis=2)
    return np.tensordot(weights or [1.0] * len(parts), np.stack(parts), axes=1)


def fitted_mix(layers_LNPF: Sequence[np.ndarray], labels: np.ndarray, num_classes: int) -> list[float]:
    """Return the weights of the layers, of sum one, that serve logistic regression on their mean best.

    Source: Peters et al. 2018 (arXiv 1802.05365), equation 1. The factor there goes up in the scaling of
    features to length one.
    """
    stacked_LNPF = torch.from_numpy(np.stack(layers_LNPF))
    target_N = torch.from_numpy(labels)
    mix = ScalarMix(len(layers_LNPF))
    linear = torch.nn.Linear(stacked_LNPF[0, 0].numel(), num_classes)
    for weight in linear.parameters():
        torch.nn.init.zeros_(weight)
    weights = [mix.scores, *linear.parameters()]
    optimizer = torch.optim.LBFGS(weights, max_iter=_MIX_ITERATIONS, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        units = torch.nn.functional.normalize(mix(list(stacked_LNPF)), dim=2).flatten(1)
        nats = torch.nn.functional.cross_entropy(linear(units), target_N)
        total: Tensor = nats + linear.weight.square().sum() / (2 * _MIX_STRENGTH * len(labels))
        total.backward()
        return total

    optimizer.step(loss)
    weights_L: list[float] = mix.weights.tolist()
    return weights_L
