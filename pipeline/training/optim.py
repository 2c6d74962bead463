"""Optimizers over layer groups, NT-ASGD averaging (AWD-LSTM's Algorithm 1) and early stopping."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from pipeline.training.settings import Optimizer


def make_optimizer(settings: Optimizer, groups: Sequence[Sequence[nn.Parameter]]) -> torch.optim.Optimizer:
    """Make an optimizer with one parameter group per layer group, in order. `set_rates` sets the rates."""
    param_groups = [{"params": list(group), "lr": 0.0} for group in groups]
    if settings.kind == "adamw":
        return torch.optim.AdamW(
            param_groups,
            lr=0.0,
            betas=(settings.momentum, settings.beta2),
            weight_decay=settings.weight_decay,
            fused=True,
        )
    return torch.optim.SGD(
        param_groups, lr=0.0, momentum=settings.momentum, weight_decay=settings.weight_decay, fused=True
    )


def freeze(optimizer: torch.optim.Optimizer, lrs: Sequence[float]) -> None:
    """Require gradients in the layer groups whose rate is not 0, and in no others."""
    for group, lr in zip(optimizer.param_groups, lrs, strict=True):
        for parameter in group["params"]:
            parameter.requires_grad_(lr > 0)


def set_rates(optimizer: torch.optim.Optimizer, lrs: Sequence[float], scale: float) -> None:
    """Set the rate of each layer group for the next update, times `scale`."""
    for group, lr in zip(optimizer.param_groups, lrs, strict=True):
        group["lr"] = lr * scale


def check_groups(model: nn.Module, groups: Sequence[Sequence[nn.Parameter]]) -> None:
    """Check that each parameter is in exactly one layer group; one in none would silently never train."""
    grouped = [id(parameter) for group in groups for parameter in group]
    assert len(grouped) == len(set(grouped)), "a parameter is in two layer groups"
    lost = [name for name, parameter in model.named_parameters() if id(parameter) not in set(grouped)]
    assert not lost, f"no layer group holds {', '.join(lost)}"


@dataclass
class NonMonotoneAverage:
    """The weight average of NT-ASGD and its trigger.

    Source: Merity et al. 2017, Algorithm 1, as in the authors' code. Each evaluation compares the validation
    loss with the best loss of more than `interval` evaluations ago. Once it is worse, the weights of all
    later steps are averaged, and the average is the model.
    """

    interval: int
    losses: list[float] = field(default_factory=list)
    num_averaged: int = 0
    weights: dict[str, Tensor] = field(default_factory=dict)
    started: bool = False

    def observe(self, loss: float) -> None:
        """Record an evaluation, and start averaging if the loss is worse than the best earlier one."""
        earlier = self.losses[: -self.interval] if len(self.losses) > self.interval else []
        self.started = self.started or (bool(earlier) and loss > min(earlier))
        self.losses.append(loss)

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Add the weights after a step to the mean, if averaging has started."""
        if not self.started:
            return
        self.num_averaged += 1
        for name, parameter in model.named_parameters():
            if name in self.weights:
                self.weights[name].lerp_(parameter.detach(), 1 / self.num_averaged)
            else:
                self.weights[name] = parameter.detach().clone()

    @torch.no_grad()
    def swap(self, model: nn.Module) -> None:
        """Swap the model's weights with the averaged ones; a second call swaps them back."""
        for name, parameter in model.named_parameters():
            if name in self.weights:
                held = parameter.detach().clone()
                parameter.copy_(self.weights[name])
                self.weights[name].copy_(held)


@dataclass
class EarlyStop:
    """The weights of the best evaluation, and the decision to stop once too many others failed to beat it."""

    patience: int | None  # in evaluations; None: train to the end and keep the last weights
    loss: float = math.inf
    num_since: int = 0  # evaluations since the best
    weights: dict[str, Tensor] = field(default_factory=dict)

    @property
    def due(self) -> bool:
        return self.patience is not None and self.num_since >= self.patience

    @torch.no_grad()
    def observe(self, loss: float, model: nn.Module) -> None:
        """Record an evaluation. Keeps buffers too, since batch normalisation evaluates with them."""
        if self.patience is None:
            return
        if loss < self.loss:
            self.loss, self.num_since = loss, 0
            self.weights = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
        else:
            self.num_since += 1

    def restore(self, model: nn.Module) -> None:
        if self.weights:
            model.load_state_dict(self.weights)
