from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pipeline.training.optim import NonMonotoneAverage, check_groups, freeze, make_optimizer, set_rates
from pipeline.training.settings import Optimizer


def settings(**changes: Any) -> Optimizer:
    values: dict[str, Any] = {
        "kind": "adamw", "lr": 0.01, "momentum": 0.8, "beta2": 0.95, "weight_decay": 0.1, "clip_norm": None,
        "nonmonotone_interval": 2, "discriminative_factor": 1.0,
    }  # fmt: skip
    return Optimizer(**(values | changes))


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))


def groups_of(model: nn.Sequential) -> list[list[nn.Parameter]]:
    return [list(model[0].parameters()), list(model[2].parameters())]


def backward(model: nn.Sequential, step: int) -> None:
    generator = torch.Generator().manual_seed(step)
    model(torch.randn(6, 4, generator=generator)).square().sum().backward()


def algorithm_1(losses: list[float], interval: int) -> int | None:
    """The evaluation that triggers averaging.

    Merity et al. 2017, Algorithm 1, as in the authors' code: `t` counts the logs, which begins at 0; the
    trigger is checked before the loss is appended.

        if t > n and v > min(logs[0 .. t - n - 1]): T <- k
        append v to logs; t <- t + 1
    """
    logs: list[float] = []
    for t, v in enumerate(losses):
        if t > interval and v > min(logs[l] for l in range(t - interval)):  # noqa: E741
            return t
        logs.append(v)
    return None


def random_losses(seed: int) -> list[float]:
    noise = torch.randn(40, generator=torch.Generator().manual_seed(seed)) * 0.3
    return (torch.linspace(3, 1, 40) + noise).tolist()


@pytest.mark.parametrize("interval", [1, 2, 5, 50])
@pytest.mark.parametrize("seed", range(6))
def test_averaging_begins_where_algorithm_1_has_it(interval, seed):
    losses = random_losses(seed)
    average = NonMonotoneAverage(interval)
    begun = []
    for loss in losses:
        average.observe(loss)
        begun.append(average.started)
    trigger = algorithm_1(losses, interval)
    assert begun == [trigger is not None and t >= trigger for t in range(len(losses))]


def test_a_falling_loss_never_begins_averaging_and_a_rising_one_does_at_once():
    falling, rising = NonMonotoneAverage(2), NonMonotoneAverage(2)
    for k in range(20):
        falling.observe(-float(k))
        rising.observe(float(k))
        assert rising.started == (k > 2)
    assert not falling.started


def test_the_average_is_the_mean_of_the_iterates_after_the_trigger():
    model = network()
    average = NonMonotoneAverage(1)
    iterates: list[dict[str, Tensor]] = []
    for step, loss in enumerate([1.0, 1.0, 2.0, 0.5, 0.5, 0.5]):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter))
        if average.started:
            iterates.append({name: p.detach().clone() for name, p in model.named_parameters()})
        average.update(model)
        average.observe(loss)
        assert average.started == (step >= 2)
    assert len(iterates) == average.num_averaged == 3
    for name in dict(model.named_parameters()):
        mean = torch.stack([iterate[name] for iterate in iterates]).mean(0)
        assert torch.allclose(average.weights[name], mean, atol=1e-6)


def test_swap_exchanges_the_weights_and_twice_is_the_identity():
    model = network()
    average = NonMonotoneAverage(1, started=True)
    average.update(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)
    raw = {name: p.detach().clone() for name, p in model.named_parameters()}
    averaged = {name: weight.clone() for name, weight in average.weights.items()}
    average.swap(model)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, averaged[name])
        assert torch.equal(average.weights[name], raw[name])
    average.swap(model)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, raw[name])
        assert torch.equal(average.weights[name], averaged[name])


@pytest.mark.parametrize("kind", ["adamw", "sgd", "nt_asgd"])
@pytest.mark.parametrize("momentum", [0.0, 0.8])
def test_it_steps_beside_the_optimizer_of_torch(kind, momentum):
    ours, theirs = network(), network()
    optimizer = make_optimizer(settings(kind=kind, momentum=momentum), groups_of(ours))
    reference: torch.optim.Optimizer
    if kind == "adamw":
        reference = torch.optim.AdamW(
            theirs.parameters(), lr=0.03, betas=(momentum, 0.95), weight_decay=0.1, foreach=False
        )
    else:
        reference = torch.optim.SGD(theirs.parameters(), lr=0.03, momentum=momentum, weight_decay=0.1)
    for step in range(8):
        set_rates(optimizer, [0.02, 0.02], scale=1.5)
        for model, each in ((ours, optimizer), (theirs, reference)):
            each.zero_grad()
            backward(model, step)
            each.step()
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.allclose(mine, other, rtol=1e-5, atol=1e-6)


def test_each_group_steps_at_its_own_rate():
    model = network()
    optimizer = make_optimizer(settings(kind="sgd", momentum=0.0, weight_decay=0.0), groups_of(model))
    before = [parameter.detach().clone() for parameter in model.parameters()]
    set_rates(optimizer, [0.1, 0.3], scale=0.5)
    backward(model, 0)
    optimizer.step()
    for parameter, old, rate in zip(model.parameters(), before, [0.05, 0.05, 0.15, 0.15], strict=True):
        assert parameter.grad is not None
        assert torch.allclose(parameter, old - rate * parameter.grad, atol=1e-6)


@pytest.mark.parametrize("kind", ["adamw", "sgd"])
def test_a_frozen_group_does_not_move_even_with_momentum_of_earlier_steps(kind):
    model = network()
    optimizer = make_optimizer(settings(kind=kind), groups_of(model))
    for step, lrs in enumerate([(0.1, 0.1), (0.0, 0.1), (0.1, 0.0), (0.1, 0.1)]):
        before = [[weight.detach().clone() for weight in group] for group in groups_of(model)]
        freeze(optimizer, lrs)
        set_rates(optimizer, lrs, 1.0)
        optimizer.zero_grad()
        backward(model, step)
        optimizer.step()
        for group, old, lr in zip(groups_of(model), before, lrs, strict=True):
            for weight, was in zip(group, old, strict=True):
                assert torch.equal(weight, was) == (lr == 0)
                assert weight.requires_grad == (lr > 0)


def test_check_groups_names_a_parameter_that_would_never_train():
    model = network()
    check_groups(model, groups_of(model))
    with pytest.raises(AssertionError, match=r"no layer group holds 0\.bias"):
        check_groups(model, [[model[0].weight], groups_of(model)[1]])  # type: ignore[list-item]
    with pytest.raises(AssertionError, match="two layer groups"):
        check_groups(model, [*groups_of(model), [model[0].weight]])  # type: ignore[list-item]
