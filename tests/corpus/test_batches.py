"""Test batches of consecutive integers, so that contiguity is a subtraction."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import numpy as np
import pytest
import torch

from pipeline.corpus.batches import rows_of
from pipeline.corpus.classifier_batches import ClassifierBatches, by_length, pad, stratified_subset
from pipeline.corpus.language_model_batches import LanguageModelBatches, Ribbon, evaluation_batches
from pipeline.corpus.settings import Direction
from pipeline.corpus.text_form import TextForm, clip
from pipeline.corpus.tokens import TokenShard

ROWS = 4
WHOLE = slice(0, ROWS)


def shard_of(lengths: Iterable[int], first: int = 0, labels: np.ndarray | None = None) -> TokenShard:
    """Return documents of these lengths, whose tokens are first, first + 1, ..."""
    offsets = np.cumsum([0, *lengths])
    tokens = np.arange(first, first + offsets[-1], dtype=np.uint16)
    if labels is None:
        labels = np.full(len(offsets) - 1, -1, dtype=np.int32)
    return TokenShard(tokens, offsets, labels, num_words=1, num_bytes=1)


def batches_of(
    shards: list[TokenShard],
    *,
    direction: Direction = "forward",
    bptt: int = 7,
    variable: bool = False,
    num_rows: int = ROWS,
    seed: int = 1,
) -> LanguageModelBatches:
    return LanguageModelBatches(
        shards, num_rows=num_rows, bptt=bptt, variable_bptt=variable, direction=direction, seed=seed
    )


DOCUMENTS = [3, 40, 2, 17, 90, 5, 60, 21, 33, 8]


@pytest.mark.parametrize("variable", [False, True])
@pytest.mark.parametrize(("direction", "move"), [("forward", 1), ("backward", -1)])
def test_a_row_continues_where_it_ended_and_the_target_is_the_next_token(direction, move, variable):
    # One document, so that the order drawn for an epoch changes nothing.
    batches = batches_of([shard_of([500])], direction=direction, variable=variable)
    previous = None
    for step in range(batches.num_steps(1)):
        batch = batches.at(step, WHOLE)
        assert batch.starts_lane == (step == 0)
        assert bool((batch.ids_BT.diff(dim=1) == move).all())
        assert bool((batch.targets_BT - batch.ids_BT == move).all())
        if previous is not None:
            assert bool((batch.ids_BT[:, 0] - previous.ids_BT[:, -1] == move).all())
        previous = batch


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_every_token_is_read_once_an_epoch_and_documents_stay_whole(direction):
    shards = [shard_of(DOCUMENTS[:6]), shard_of(DOCUMENTS[6:], first=sum(DOCUMENTS[:6]))]
    batches = batches_of(shards, direction=direction, variable=True)
    total = sum(DOCUMENTS)
    steps = batches.num_steps(1)
    orders = []
    for epoch in range(2):
        first = batches.num_steps(epoch)
        lanes = torch.cat([batches.at(step, WHOLE).ids_BT for step in range(first, first + steps)], 1)
        seen = lanes.reshape(-1).tolist()
        # Lanes are equally long, so less than a token per lane, and the last target, are left over.
        assert len(seen) == len(set(seen)) == (total - 1) // ROWS * ROWS
        # Within a lane the next token is the document's next one, except where a document ends.
        breaks = int((lanes.diff(dim=1).abs() != 1).sum())
        assert breaks <= len(DOCUMENTS) - 1
        orders.append(seen)
        steps = batches.num_steps(2) - batches.num_steps(1)
    assert orders[0] != orders[1]


def test_a_ribbon_is_its_documents_in_order_from_either_end():
    shards = [shard_of([2, 3]), shard_of([4], first=5)]
    order = np.array([2, 0, 1])
    forward = [5, 6, 7, 8, 0, 1, 2, 3, 4]
    ribbons = {d: Ribbon(shards, d, order) for d in ("forward", "backward")}
    for start in range(9):
        for stop in range(start, 10):
            assert ribbons["forward"].read(start, stop).tolist() == forward[start:stop]
            assert ribbons["backward"].read(start, stop).tolist() == forward[::-1][start:stop]


@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_the_rows_of_all_ranks_are_the_global_batch(world):
    batches = batches_of([shard_of(DOCUMENTS)], variable=True)
    for step in (0, 3, batches.num_steps(1), batches.num_steps(1) + 2):
        whole = batches.at(step, WHOLE)
        parts = [batches.at(step, rows_of(rank, world, ROWS)) for rank in range(world)]
        assert torch.equal(torch.cat([part.ids_BT for part in parts]), whole.ids_BT)
        assert torch.equal(torch.cat([part.targets_BT for part in parts]), whole.targets_BT)
        for part in parts:
            assert part.num_targets == whole.num_targets == whole.targets_BT.numel()
            assert (part.starts_lane, part.length_ratio) == (whole.starts_lane, whole.length_ratio)


def test_ranks_hold_contiguous_and_nearly_equal_shares_of_the_rows():
    for world in range(1, 9):
        for num_rows in range(20):
            rows = [rows_of(rank, world, num_rows) for rank in range(world)]
            assert [k for part in rows for k in range(num_rows)[part]] == list(range(num_rows))
            sizes = [part.stop - part.start for part in rows]
            assert max(sizes) - min(sizes) <= 1


def test_any_step_can_be_built_without_those_before_it():
    one, other = (batches_of([shard_of(DOCUMENTS)], variable=True) for _ in range(2))
    in_order = [one.at(step, WHOLE) for step in range(one.num_steps(3))]
    for step in np.random.default_rng(0).permutation(len(in_order)):
        batch = other.at(int(step), WHOLE)
        assert torch.equal(batch.ids_BT, in_order[step].ids_BT)
        assert torch.equal(batch.targets_BT, in_order[step].targets_BT)
        assert batch.starts_lane == in_order[step].starts_lane
    assert sum(batch.starts_lane for batch in in_order) == 3


def test_another_seed_gives_other_batches():
    one, other = (batches_of([shard_of(DOCUMENTS)], seed=seed) for seed in (1, 2))
    assert not torch.equal(one.at(0, WHOLE).ids_BT, other.at(0, WHOLE).ids_BT)


def test_variable_lengths_follow_the_paper():
    bptt = 70
    batches = batches_of([shard_of([60_000])], bptt=bptt, variable=True, num_rows=1)
    steps = batches.num_steps(1)
    drawn = [batches.at(step, slice(0, 1)) for step in range(steps)]
    lengths = np.array([batch.ids_BT.shape[1] for batch in drawn])
    assert lengths.sum() == 60_000 - 1
    # Mean 0.95 * 70 + 0.05 * 35 = 68.25, less half a token of rounding down; 880 draws of deviation 9.
    assert lengths.mean() == pytest.approx(67.75, abs=1.0)
    assert 0.02 < (lengths[:-1] < 50).mean() < 0.09
    assert lengths.max() <= bptt + 20
    assert lengths[:-1].min() >= 5
    for batch, length in zip(drawn, lengths, strict=True):
        assert batch.length_ratio == pytest.approx(length / bptt)


@pytest.mark.parametrize("bptt", [2, 3, 4])
def test_short_variable_lengths_stay_bounded_to_the_end(bptt):
    batches = batches_of([shard_of([20_000])], bptt=bptt, variable=True, num_rows=1)
    lengths = [batches.at(step, slice(0, 1)).ids_BT.shape[1] for step in range(batches.num_steps(1))]
    assert sum(lengths) == 20_000 - 1
    assert max(lengths) <= bptt + 20
    assert min(lengths[:-1]) >= bptt


def test_fixed_lengths_are_all_bptt_but_the_last():
    batches = batches_of([shard_of([ROWS * 30 + 1])], bptt=7)
    lengths = [batches.at(step, WHOLE).ids_BT.shape[1] for step in range(batches.num_steps(1))]
    assert lengths == [7, 7, 7, 7, 2]
    assert batches.at(0, WHOLE).length_ratio == 1


def test_steps_of_a_partial_epoch():
    batches = batches_of([shard_of([ROWS * 30 + 1])], bptt=7)
    assert [batches.num_steps(epochs) for epochs in (0.2, 0.5, 1, 1.5, 3)] == [1, 3, 5, 8, 15]
    assert [batches.epoch_of(step) for step in (0, 4, 5, 14)] == [(0, 0), (0, 4), (1, 0), (2, 4)]


def test_too_few_tokens_are_refused():
    with pytest.raises(ValueError, match="4 training tokens are too few for batch_rows: 4"):
        batches_of([shard_of([4])])


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize(("total", "num_rows", "world"), [(2, 4, 1), (51, 4, 1), (53, 4, 3), (60, 7, 2)])
@pytest.mark.parametrize("lead", [0, 3, 10])
def test_evaluation_covers_each_target_once(direction, total, num_rows, world, lead):
    shards = [shard_of([total - 1]), shard_of([1], first=total - 1)]
    move = 1 if direction == "forward" else -1
    held = min(num_rows, total - 1)
    targets: list[int] = []
    counts: list[list[int]] = []
    for rank in range(world):
        rows = rows_of(rank, world, held)
        batches = evaluation_batches(
            shards, num_rows=num_rows, bptt=6, direction=direction, rows=rows, lead=lead
        )
        mine = list(batches)
        assert [batch.starts_lane for batch in mine] == [True] + [False] * (len(mine) - 1)
        ids = torch.cat([batch.ids_BT for batch in mine], 1)
        wanted = torch.cat([batch.targets_BT for batch in mine], 1)
        counted = wanted >= 0
        assert bool((wanted[counted] - ids[counted] == move).all())
        if lead == 0:
            assert bool((counted.sum(1) >= ids.shape[1] - 1).all())
        for row in range(len(ids)):  # carried state: a lane is one piece of the ribbon
            assert bool((ids[row, counted[row]].diff() == move).all())
            first = int(counted[row].nonzero()[0])
            at = int(ids[row, first]) if direction == "forward" else total - 1 - int(ids[row, first])
            assert first == min(lead, at)  # tokens that are read before the first that counts
            assert bool((ids[row, : first + 1].diff() == move).all())
        targets += wanted[counted].tolist()
        counts.append([batch.num_targets for batch in mine])
    everything = list(range(total))
    assert sorted(targets) == (everything[1:] if direction == "forward" else everything[:-1])
    assert all(count == counts[0] for count in counts)
    assert sum(counts[0]) == total - 1


def classifier_batches(
    lengths: np.ndarray, documents: np.ndarray, batch_documents: int = 8, **changes: object
) -> ClassifierBatches:
    labels = np.arange(len(lengths), dtype=np.int32)  # the label identifies the document
    form = TextForm(**({"max_tokens": 40, "direction": "forward", "pad_id": 0} | changes))  # type: ignore[arg-type]
    shard = shard_of(lengths.tolist(), first=1, labels=labels)
    return ClassifierBatches(shard, documents=documents, batch_documents=batch_documents, form=form, seed=3)


@pytest.mark.parametrize("num_documents", [1, 8, 9, 61, 100])
def test_classifier_batches_hold_each_document_once_an_epoch(num_documents):
    lengths = np.random.default_rng(0).integers(2, 60, 120)
    documents = np.random.default_rng(1).permutation(120)[:num_documents]
    batches = classifier_batches(lengths, documents)
    assert batches.steps_per_epoch == -(-num_documents // 8)
    orders = []
    for epoch in range(2):
        first = epoch * batches.steps_per_epoch
        drawn = [batches.at(step, 0, 1) for step in range(first, first + batches.steps_per_epoch)]
        seen = torch.cat([batch.labels_D for batch in drawn]).tolist()
        assert sorted(seen) == sorted(documents.tolist())
        sizes = [batch.num_documents for batch in drawn]
        assert max(sizes) - min(sizes) <= 1
        assert max(sizes) <= 8
        orders.append(seen)
        for batch in drawn:
            real = np.minimum(lengths[batch.labels_D.numpy()], 40)
            assert batch.mask_BT.sum(1).tolist() == real.tolist()
            assert batch.ids_BT.shape[1] == real.max()
            assert bool((batch.ids_BT[~batch.mask_BT] == 0).all())
            # The first token of a document is 1 + the sum of the lengths before it.
            starts = 1 + np.cumsum([0, *lengths])[batch.labels_D.numpy()]
            assert batch.ids_BT[:, 0].tolist() == starts.tolist()
    if num_documents > 8:
        assert orders[0] != orders[1]


def test_classifier_batches_hold_documents_of_similar_length():
    lengths = np.random.default_rng(0).integers(2, 200, 400)
    batches = classifier_batches(lengths, np.arange(400), max_tokens=200)
    drawn = [batches.at(step, 0, 1) for step in range(batches.steps_per_epoch)]
    padding = 1 - sum(int(batch.mask_BT.sum()) for batch in drawn) / sum(b.mask_BT.numel() for b in drawn)
    assert padding < 0.05  # in random order it is about 40 %
    assert batches.padding_share == pytest.approx(padding)
    widths = [batch.ids_BT.shape[1] for batch in drawn]
    assert widths != sorted(widths)


@pytest.mark.parametrize("world", [1, 2, 3])
def test_classifier_rows_of_all_ranks_are_the_global_batch(world):
    batches = classifier_batches(np.arange(2, 42), np.arange(40), batch_documents=7)
    for step in (0, 4, 9):
        whole = batches.at(step, 0, 1)
        parts = [batches.at(step, rank, world) for rank in range(world)]
        for name in ("ids_BT", "mask_BT", "labels_D"):
            together = torch.cat([getattr(part, name) for part in parts])
            assert torch.equal(together, getattr(whole, name))
        assert {part.num_documents for part in parts} == {whole.num_documents}


def test_classifier_steps_can_be_built_in_any_order():
    one, other = (classifier_batches(np.arange(2, 42), np.arange(40)) for _ in range(2))
    in_order = [one.at(step, 0, 1).ids_BT for step in range(15)]
    for step in np.random.default_rng(0).permutation(15):
        assert torch.equal(other.at(int(step), 0, 1).ids_BT, in_order[step])


def test_clip_keeps_both_ends_and_reverses_if_backward():
    document = np.arange(10, dtype=np.uint16)
    assert clip(document, 10, "forward").tolist() == list(range(10))
    assert clip(document, 5, "forward").tolist() == [0, 1, 2, 8, 9]
    assert clip(document, 4, "backward").tolist() == [9, 8, 1, 0]
    assert clip(document, 1, "forward").tolist() == [0]
    assert clip(document[:3], 5, "backward").tolist() == [2, 1, 0]


def test_pad_fills_the_end_and_masks_it():
    ids, mask = pad([np.array([1, 2]), np.array([3, 4, 5])], 4, pad_id=9)
    assert ids.tolist() == [[1, 2, 9, 9], [3, 4, 5, 9]]
    assert mask.tolist() == [[True, True, False, False], [True, True, True, False]]


@pytest.mark.parametrize("spread", [1.0, 3.0])
def test_by_length_pads_little_whatever_the_spread_of_lengths(spread):
    rng = np.random.default_rng(0)
    lengths = np.exp(rng.normal(4, spread / 2, 8_000)).astype(int) + 2
    padded = sum(len(batch) * lengths[batch].max() for batch in by_length(lengths, 32_768))
    assert padded < lengths.sum() / 0.95
    fewer = len(list(by_length(lengths, 32_768)))
    assert fewer < 2.5 * lengths.sum() / 32_768  # so batches are not needlessly small


@pytest.mark.parametrize("budget", [1, 30, 100, 10**6])
def test_by_length_holds_each_text_once_within_the_budget(budget):
    lengths = np.random.default_rng(0).integers(1, 50, 97)
    chosen = list(by_length(lengths, budget))
    assert sorted(np.concatenate(chosen).tolist()) == list(range(97))
    for batch in chosen:
        assert len(batch) == 1 or len(batch) * lengths[batch].max() <= budget
    for batch, after in itertools.pairwise(chosen):  # none could have taken one more
        assert (len(batch) + 1) * lengths[after].min() > budget
        assert lengths[batch].max() <= lengths[after].min()
    assert list(by_length([], budget)) == []


@pytest.mark.parametrize("seed", [0, 1])
def test_a_stratified_subset_is_nested_seeded_and_keeps_shares(seed):
    counts = [600, 300, 90, 10]
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(4), counts))
    previous: set[int] = set()
    for size in (4, 5, 20, 100, 400, 1000):
        subset = stratified_subset(labels, size, seed)
        assert len(set(subset.tolist())) == size
        assert previous <= set(subset.tolist())
        assert np.array_equal(subset, stratified_subset(labels, size, seed))
        found = np.bincount(labels[subset], minlength=4)
        assert found.min() >= 1
        if size >= 100:
            assert np.abs(found - size * np.array(counts) / 1000).max() <= 1
        previous = set(subset.tolist())
    other = stratified_subset(labels, 100, seed + 1)
    assert not np.array_equal(other, stratified_subset(labels, 100, seed))


def test_fewer_labels_than_classes_are_refused():
    with pytest.raises(ValueError, match="2 labels are fewer than the 3 classes"):
        stratified_subset(np.array([0, 1, 2, 2]), 2, 0)
