"""Several layers of an encoder, put together at each token.

Sources: the choices of Devlin et al. 2018 (arXiv 1810.04805), table 7; for `mix` Peters et al. 2018, "Deep
contextualized word representations" (arXiv 1802.05365), equation 1.

Shapes: B rows, T tokens, F features of what is put together, L layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

Combine = Literal["concat", "sum", "mix"]


@dataclass(frozen=True)
class LayerChoice:
    """Which layers are read, and how they are put together."""

    layers: tuple[int, ...] | Literal["all"] = (-1,)  # 0: the lowest; -1: the top one
    combine: Combine = "concat"

    @staticmethod
    def of(layers: Sequence[int] | Literal["all"], combine: Combine) -> LayerChoice:
        """The choice that settings of these names make."""
        return LayerChoice("all" if layers == "all" else tuple(layers), combine)

    @property
    def is_top(self) -> bool:
        """Whether the top layer alone is read, as it is."""
        return self.layers == (-1,) and self.combine != "mix"

    def indices(self, num_layers: int, section: str = "") -> list[int]:
        """Return the layers by their place from the bottom.

        Raises ValueError, naming a key of `section`, if there is no such layer.
        """
        wanted = range(num_layers) if self.layers == "all" else self.layers
        for index in wanted:
            if not -num_layers <= index < num_layers:
                raise ValueError(
                    f"{section}.layers names layer {index}, but the encoder has {num_layers}: 0 to "
                    f"{num_layers - 1} from the bottom, or -1 to {-num_layers} from the top"
                )
        return [index % num_layers for index in wanted]

    def width(self, widths: Sequence[int], section: str = "") -> int:
        """Return F, of layers that are `widths` wide.

        Raises ValueError, naming a key of `section`, for a layer that there is not, and for layers to be
        summed or mixed that differ in width.
        """
        indices = self.indices(len(widths), section)
        chosen = [widths[index] for index in indices]
        if self.combine == "concat":
            return sum(chosen)
        if len(set(chosen)) > 1:
            raise ValueError(
                f"{section}.combine is {self.combine}, but the layers {indices} are "
                f"{', '.join(map(str, chosen))} wide; set it to concat, or choose layers of one width"
            )
        return chosen[0]

    def put_together(self, chosen: Sequence[Tensor], mix: ScalarMix | None = None) -> Tensor:
        """Return (B, T, F) of the chosen layers, in the order of `indices`, each (B, T, F_l)."""
        if self.combine == "concat":
            return torch.cat(list(chosen), dim=-1) if len(chosen) > 1 else chosen[0]
        if self.combine == "sum":
            return torch.stack(list(chosen)).sum(0)
        assert mix is not None
        mixed: Tensor = mix(chosen)
        return mixed


class ScalarMix(nn.Module):
    """gamma * sum_l softmax(s)_l h_l, of which it learns s and gamma."""

    def __init__(self, num_layers: int) -> None:
        super().__init__()
        self.scores = nn.Parameter(torch.zeros(num_layers))
        self.factor = nn.Parameter(torch.ones(()))

    @property
    def weights(self) -> Tensor:
        """The weight of each layer, (L,); they sum to one."""
        return self.scores.softmax(0)

    def forward(self, layers: Sequence[Tensor]) -> Tensor:
        """Return the mean without its factor, which `Classifier.scored` applies."""
        pairs = zip(self.weights, layers, strict=True)
        return torch.stack([weight * layer for weight, layer in pairs]).sum(0)
