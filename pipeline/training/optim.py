"""Optimizers over layer groups, NT-ASGD averaging (AWD-LSTM's Algorithm 1) and early stopping."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from pipeline.training.settings import Optimizer

ADAM_EPSILON = 1e-8
ADAGRAD_EPSILON = 1e-10


@dataclass
class LayerGroup:
    """Parameters that share a rate."""

    parameters: list[nn.Parameter]
    lr: float = 0.0


class GroupOptimizer(ABC):
    """An optimizer over layer groups, in order. `set_rates` sets the rates.

    The updates are torch's fused ones. It is not a `torch.optim.Optimizer`, the first use of which loads
    torch's compiler: more than a second of each process that trains.
    """

    def __init__(self, settings: Optimizer, groups: Sequence[Sequence[nn.Parameter]]) -> None:
        self.settings = settings
        self.groups = [LayerGroup(list(group)) for group in groups]
        self.state: dict[nn.Parameter, dict[str, Tensor]] = {}

    def zero_grad(self) -> None:
        for group in self.groups:
            for parameter in group.parameters:
                parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Update the parameters that have a gradient."""
        for group in self.groups:
            parameters = [parameter for parameter in group.parameters if parameter.grad is not None]
            for parameter in parameters:
                if parameter not in self.state:
                    self.state[parameter] = self._fresh_state(local_part(parameter))
            if parameters:
                grads = [local_part(parameter.grad) for parameter in parameters if parameter.grad is not None]
                states = [self.state[parameter] for parameter in parameters]
                self._update([local_part(parameter) for parameter in parameters], grads, states, group.lr)

    @abstractmethod
    def _fresh_state(self, numbers: Tensor) -> dict[str, Tensor]: ...

    @abstractmethod
    def _update(
        self, parameters: list[Tensor], grads: list[Tensor], states: list[dict[str, Tensor]], lr: float
    ) -> None:
        """Update the numbers of parameters that this worker holds, in place, and their states."""


class AdamW(GroupOptimizer):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019, Algorithm 2)."""

    def _fresh_state(self, numbers: Tensor) -> dict[str, Tensor]:
        return {
            "step": torch.zeros((), dtype=torch.float32, device=numbers.device),
            "exp_avg": torch.zeros_like(numbers),
            "exp_avg_sq": torch.zeros_like(numbers),
        }

    def _update(
        self, parameters: list[Tensor], grads: list[Tensor], states: list[dict[str, Tensor]], lr: float
    ) -> None:
        from torch.optim.adam import adam

        exp_avgs, exp_avg_sqs, steps = (
            [state[name] for state in states] for name in ("exp_avg", "exp_avg_sq", "step")
        )
        adam(
            parameters, grads, exp_avgs, exp_avg_sqs, [], steps,
            fused=True, decoupled_weight_decay=True, amsgrad=False, maximize=False, lr=lr,
            beta1=self.settings.momentum, beta2=self.settings.beta2,
            weight_decay=self.settings.weight_decay, eps=ADAM_EPSILON,
        )  # fmt: skip


class SGD(GroupOptimizer):
    """Stochastic gradient descent with momentum, without dampening."""

    def _fresh_state(self, numbers: Tensor) -> dict[str, Tensor]:
        # From zeros the first update is the gradient itself.
        return {"momentum_buffer": torch.zeros_like(numbers)} if self.settings.momentum else {}

    def _update(
        self, parameters: list[Tensor], grads: list[Tensor], states: list[dict[str, Tensor]], lr: float
    ) -> None:
        from torch.optim.sgd import sgd

        momentum = self.settings.momentum
        buffers: list[Tensor | None] = [None] * len(parameters)
        if momentum:
            buffers = [state["momentum_buffer"] for state in states]
        sgd(
            parameters, grads, buffers, fused=True, lr=lr, momentum=momentum,
            weight_decay=self.settings.weight_decay, dampening=0.0, nesterov=False, maximize=False,
        )  # fmt: skip


class AdaGrad(GroupOptimizer):
    """AdaGrad with diagonal matrices (Duchi, Hazan and Singer 2011, Figure 1). `momentum` is ignored."""

    def _fresh_state(self, numbers: Tensor) -> dict[str, Tensor]:
        return {
            "step": torch.zeros((), dtype=torch.float32),
            "sum": torch.zeros_like(numbers),
        }

    def _update(
        self, parameters: list[Tensor], grads: list[Tensor], states: list[dict[str, Tensor]], lr: float
    ) -> None:
        from torch.optim.adagrad import adagrad

        adagrad(
            parameters, grads, [state["sum"] for state in states], [state["step"] for state in states],
            fused=parameters[0].device.type == "cpu", foreach=parameters[0].device.type != "cpu",
            lr=lr, weight_decay=self.settings.weight_decay, lr_decay=0.0, eps=ADAGRAD_EPSILON,
            maximize=False,
        )  # fmt: skip


def local_part(tensor: Any) -> Tensor:
    """The numbers of a tensor that this worker holds: all, unless it is in shards (`layout`)."""
    local: Tensor = tensor.to_local() if is_shard(tensor) else tensor
    return local


def is_shard(tensor: Tensor) -> bool:
    return hasattr(tensor, "placements")


def make_optimizer(settings: Optimizer, groups: Sequence[Sequence[nn.Parameter]]) -> GroupOptimizer:
    """Make an optimizer with one group of parameters per layer group, in order."""
    kinds: dict[str, type[AdamW | SGD | AdaGrad]] = {
        "adamw": AdamW,
        "adagrad": AdaGrad,
        "sgd": SGD,
        "nt_asgd": SGD,
    }
    return kinds[settings.kind](settings, groups)


def freeze(optimizer: GroupOptimizer, lrs: Sequence[float]) -> None:
    """Require gradients in the layer groups whose rate is not 0, and in no others."""
    for group, lr in zip(optimizer.groups, lrs, strict=True):
        for parameter in group.parameters:
            parameter.requires_grad_(lr > 0)


def set_rates(optimizer: GroupOptimizer, lrs: Sequence[float], scale: float) -> None:
    """Set the rate of each layer group for the next update, times `scale`."""
    for group, lr in zip(optimizer.groups, lrs, strict=True):
        group.lr = lr * scale


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
