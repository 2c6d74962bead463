"""Test the regularisers by their properties, with rows on one process and on several."""

from __future__ import annotations

import copy
import itertools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pytest
import torch
from torch import Tensor, nn

from models.awd_lstm import WeightDroppedLSTM
from models.layers import (
    GlobalBatch,
    GlobalBatchNorm,
    drop_connect,
    dropout_rows,
    embed,
    locked_dropout,
    mean_square_change,
)
from pipeline.corpus.batches import rows_of

T = TypeVar("T")


def whole_batch(num_rows: int, *, seed: int = 1, step: int = 5) -> GlobalBatch:
    return GlobalBatch(seed, step, num_rows, slice(0, num_rows))


def on_ranks(world: int, work: Callable[[int, Callable[[Tensor], Tensor]], T]) -> list[T]:
    """Run `work(rank, all_reduce)` on threads that stand for processes."""
    barrier = threading.Barrier(world, timeout=300)
    parts: list[Tensor] = [torch.empty(0)] * world

    def run(rank: int) -> T:
        def all_reduce(x: Tensor) -> Tensor:
            parts[rank] = x.clone()
            barrier.wait()
            total = torch.stack(parts).sum(0)
            barrier.wait()
            return x.copy_(total)

        try:
            return work(rank, all_reduce)
        except BaseException:
            barrier.abort()  # or the others would wait for this one
            raise

    with ThreadPoolExecutor(world) as pool:
        return list(pool.map(run, range(world)))


def test_locked_mask_is_equal_over_time_and_differs_between_rows():
    out = locked_dropout(torch.ones(6, 9, 40), 0.5, whole_batch(6))
    assert bool((out == out[:, :1]).all())
    assert all(not torch.equal(out[0], out[row]) for row in range(1, 6))
    assert set(out.unique().tolist()) == {0.0, 2.0}


def test_masks_keep_the_mean():
    mask = whole_batch(1).keep_mask((200, 200), 0.3)
    assert float((mask == 0).float().mean()) == pytest.approx(0.3, abs=0.01)
    assert float(mask.mean()) == pytest.approx(1.0, abs=0.02)


def test_embedding_dropout_drops_every_occurrence_of_a_word():
    embedding = nn.Embedding(30, 4)
    ids = torch.arange(30).repeat(3, 2)  # each word six times
    out = embed(embedding, ids, 0.4, whole_batch(3))
    scales = (out / embedding(ids)).mean(-1)
    for word in range(30):
        assert len(scales[ids == word].round(decimals=4).unique()) == 1
    assert sorted(scales.round(decimals=3).unique().tolist()) == pytest.approx([0, 1 / 0.6], abs=1e-3)
    (grad,) = torch.autograd.grad(out.sum(), embedding.weight)
    dropped = scales[0, :30] == 0
    assert bool((grad[dropped] == 0).all())
    assert bool((grad[~dropped] != 0).all())


def test_drop_connect_passes_gradients_to_kept_weights_only():
    weight = nn.Parameter(torch.randn(20, 10))
    out = drop_connect(weight, 0.5, whole_batch(1))
    (grad,) = torch.autograd.grad(out.sum(), weight)
    dropped = out == 0
    assert 0 < int(dropped.sum()) < weight.numel()
    assert bool((grad[dropped] == 0).all())
    assert bool((grad[~dropped] == 2).all())


def test_the_raw_recurrent_weight_is_registered_once_and_trains():
    layer = WeightDroppedLSTM(3, 5)
    assert sorted(name for name, _ in layer.named_parameters()) == ["bias", "weight_hh", "weight_ih"]
    zeros = torch.zeros(2, 5)
    outputs, *_ = layer(torch.randn(2, 4, 3), (zeros, zeros), 0.5, whole_batch(2), torch.float32)
    outputs.sum().backward()
    assert layer.weight_hh.grad is not None
    share = float((layer.weight_hh.grad == 0).float().mean())
    assert 0.3 < share < 0.7  # dropped by the mask once, not twice
    assert sorted(name for name, _ in layer.named_parameters()) == ["bias", "weight_hh", "weight_ih"]


@pytest.mark.parametrize("world", [1, 2, 3, 7])
def test_each_rank_holds_its_rows_of_the_global_mask(world):
    def draws(batch: GlobalBatch) -> tuple[Tensor, Tensor, Tensor]:
        mine = torch.ones(batch.rows.stop - batch.rows.start, 3, 8)
        return (
            locked_dropout(mine, 0.5, batch),
            batch.keep_mask((4, 4), 0.5),
            dropout_rows(mine[:, 0], 0.5, batch),
        )

    whole = draws(whole_batch(5))
    parts = [draws(GlobalBatch(1, 5, 5, rows_of(rank, world, 5))) for rank in range(world)]
    assert torch.equal(torch.cat([part[0] for part in parts]), whole[0])
    assert all(torch.equal(part[1], whole[1]) for part in parts)
    assert torch.equal(torch.cat([part[2] for part in parts]), whole[2])


def test_a_mask_depends_on_seed_and_step_alone():
    def mask(seed: int, step: int) -> Tensor:
        return whole_batch(1, seed=seed, step=step).keep_mask((64,), 0.5)

    assert torch.equal(mask(3, 7), mask(3, 7))
    seen = {tuple(mask(seed, step).tolist()) for seed in range(4) for step in range(50)}
    assert len(seen) == 200


def test_two_masks_of_a_step_differ():
    batch = whole_batch(1)
    assert not torch.equal(batch.keep_mask((64,), 0.5), batch.keep_mask((64,), 0.5))


def test_a_mask_of_rows_drops_its_share_and_keeps_the_mean():
    for p in (0.1, 0.5, 0.95):
        masks = whole_batch(4).keep_mask_of_rows((300, 333), p)
        num_numbers = 300 * 333
        shares = (masks == 0).float().mean((1, 2))
        assert torch.allclose(shares, torch.tensor(p), atol=5 * (p * (1 - p) / num_numbers) ** 0.5)
        assert len(masks.unique()) == 2
        assert float(masks.max()) == pytest.approx(1 / (1 - p), rel=1e-3)


def test_each_row_each_mask_and_each_step_has_draws_of_its_own():
    def masks(step: int) -> list[Tensor]:
        batch = whole_batch(3, step=step)
        return [row for _ in range(3) for row in batch.keep_mask_of_rows((5, 13), 0.5)]

    seen = {tuple(mask.flatten().tolist()) for step in range(20) for mask in masks(step)}
    assert len(seen) == 20 * 3 * 3


def test_a_row_has_the_same_mask_however_many_other_rows_there_are():
    few, many = (whole_batch(num_rows).keep_mask_of_rows((7,), 0.5) for num_rows in (2, 9))
    assert torch.equal(few, many[:2])


def test_a_row_has_the_same_mask_whichever_process_holds_it():
    whole = whole_batch(10).keep_mask_of_rows((7, 3), 0.5)
    assert len({tuple(mask.flatten().tolist()) for mask in whole}) == 10
    for cuts in ((0, 10), (0, 3, 10), (0, 4, 5, 9, 10)):
        parts = [whole_batch(10).part(slice(*rows)) for rows in itertools.pairwise(cuts)]
        assert torch.equal(torch.cat([part.keep_mask_of_rows((7, 3), 0.5) for part in parts]), whole)


def test_nothing_is_dropped_without_a_batch_or_with_probability_zero():
    x = torch.randn(2, 3, 4)
    embedding = nn.Embedding(5, 4)
    ids = torch.tensor([[0, 1, 2]])
    for p, batch in ((0.5, None), (0.0, whole_batch(2))):
        assert torch.equal(locked_dropout(x, p, batch), x)
        assert torch.equal(drop_connect(x, p, batch), x)
        assert torch.equal(dropout_rows(x, p, batch), x)
        assert torch.equal(embed(embedding, ids, p, batch), embedding(ids))


def norms(num_features: int) -> tuple[GlobalBatchNorm, nn.BatchNorm1d]:
    ours, reference = GlobalBatchNorm(num_features), nn.BatchNorm1d(num_features)
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in (reference.weight, reference.bias):
            parameter.copy_(torch.randn(num_features))
    state = {k: v for k, v in reference.state_dict().items() if k != "num_batches_tracked"}
    ours.load_state_dict(state)
    return ours, reference


def test_batch_norm_equals_that_of_torch_in_training_and_evaluation():
    ours, reference = norms(6)
    for step in range(4):
        x = (torch.randn(8, 6) * 3 + 100).requires_grad_()
        weights = torch.randn(8, 6)
        found, wanted = ours(x, whole_batch(8, step=step)), reference(x)
        assert torch.allclose(found, wanted, atol=1e-4)
        mine = torch.autograd.grad((found * weights).sum(), [x, ours.weight, ours.bias])
        theirs = torch.autograd.grad((wanted * weights).sum(), [x, reference.weight, reference.bias])
        for a, b in zip(mine, theirs, strict=True):
            assert torch.allclose(a, b, atol=1e-3)
    wanted_state = reference.state_dict()
    assert torch.allclose(ours.running_mean, wanted_state["running_mean"], rtol=1e-5)
    assert torch.allclose(ours.running_var, wanted_state["running_var"], rtol=1e-4)
    x = torch.randn(3, 6)
    assert torch.allclose(ours(x), reference.eval()(x), atol=1e-5)


@pytest.mark.parametrize("world", [2, 3])
def test_batch_norm_split_over_ranks_equals_the_whole(world):
    torch.manual_seed(1)
    x, weights = torch.randn(7, 4) + 5, torch.randn(7, 4)

    first_norm, _ = norms(4)

    def run(rows: slice, all_reduce: Callable[[Tensor], Tensor]) -> list[Tensor]:
        norm = copy.deepcopy(first_norm)
        mine = x[rows].clone().requires_grad_()
        out = norm(mine, GlobalBatch(1, 0, 7, rows, all_reduce=all_reduce))
        # Not linear in the output, so that the gradient passes through the statistics.
        loss = (out.square() * weights[rows]).sum()
        grads = torch.autograd.grad(loss, [mine, norm.weight, norm.bias])
        return [out.detach(), *grads, norm.running_mean, norm.running_var]

    whole = run(slice(0, 7), lambda tensor: tensor)
    parts = on_ranks(world, lambda rank, all_reduce: run(rows_of(rank, world, 7), all_reduce))
    for k in (0, 1):  # outputs, gradients of the input: each rank has its rows
        assert torch.allclose(torch.cat([part[k] for part in parts]), whole[k], atol=1e-4)
    for k in (2, 3):  # gradients of weights: the loop sums them
        assert torch.allclose(sum((part[k] for part in parts), torch.zeros(4)), whole[k], atol=1e-4)
    for k in (4, 5):  # running statistics: the same everywhere
        assert all(torch.allclose(part[k], whole[k], atol=1e-5) for part in parts)


def test_mean_square_change_is_a_sum_over_rows_of_means():
    x = torch.randn(3, 5, 4)
    by_hand = sum(float(((row[1:] - row[:-1]) ** 2).mean()) for row in x)
    assert float(mean_square_change(x)) == pytest.approx(by_hand, rel=1e-5)
    assert float(mean_square_change(x[:, :1])) == 0
