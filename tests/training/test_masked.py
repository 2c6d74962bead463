"""Masked language modelling by its properties: what is masked, what with, which pairs, and the loss."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from models.bert import BERT, Config
from models.objective import TrainingText
from pipeline.corpus.tokens import TokenShard
from pipeline.objectives.masked import Masked, MaskedBatches
from pipeline.objectives.settings import MaskedSettings
from pipeline.training.context import Context

PAD, MASK, START, END = range(4)
SPECIAL = frozenset((PAD, MASK, START, END))
V = 60


def shard_of(num_documents: int, seed: int = 0) -> TokenShard:
    """Documents whose every token is one more than the one before it, so that a torn pair shows."""
    rng = np.random.default_rng(seed)
    documents = []
    place = 0
    for length in rng.integers(5, 30, num_documents):
        body = 4 + (place + np.arange(length)) % (V - 4)
        place += length
        documents.append(np.concatenate([[START], body, [END]]))
    offsets = np.cumsum([0, *map(len, documents)])
    tokens = np.concatenate(documents).astype(np.uint16)
    return TokenShard(tokens, offsets, np.full(num_documents, -1), len(tokens), 4 * len(tokens))


def text() -> TrainingText:
    return TrainingText(
        [shard_of(200)], [shard_of(40, 1)], V, "forward", SPECIAL, START, END, MASK, WORD_STARTS
    )


# Every third token of the vocabulary begins a word, so that a text is of words of three.
WORD_STARTS = np.arange(V) % 3 == 0


def settings(**changes: Any) -> MaskedSettings:
    return MaskedSettings(
        **{
            "batch_rows": 8,
            "row_tokens": 40,
            "masked_share": 0.15,
            "whole_words": False,
            "next_sentence": False,
            **changes,
        }
    )


def batches(seed: int = 1, **changes: Any) -> MaskedBatches:
    return MaskedBatches(text().training, text(), settings(**changes), 8, seed)


ALL = slice(0, 8)


def originals(batch: Any) -> np.ndarray:
    """The rows before they were masked."""
    ids = batch.ids_BT.clone()
    ids[batch.chosen_BT] = batch.targets_N
    return ids.numpy()


def test_rows_are_framed_and_the_share_of_their_tokens_that_is_chosen_is_that_of_the_settings():
    for step in range(20):
        batch = batches().at(step, ALL)
        whole = originals(batch)
        assert (whole[:, 0] == START).all()
        assert (whole[:, -1] == END).all()
        for row, chosen in zip(whole, batch.chosen_BT.numpy(), strict=True):
            eligible = ~np.isin(row, list(SPECIAL))
            assert not chosen[~eligible].any()  # no special token is ever to be restored
            assert chosen.sum() == (max(1, round(0.15 * eligible.sum())) if eligible.any() else 0)


def test_words_are_chosen_whole_and_up_to_the_share():
    made, counts = batches(whole_words=True, masked_share=0.3), []
    for step in range(20):
        batch = made.at(step, ALL)
        for row, chosen in zip(originals(batch), batch.chosen_BT.numpy(), strict=True):
            special = np.isin(row, list(SPECIAL))
            begins = WORD_STARTS[row] | special | np.isin(np.roll(row, 1), list(SPECIAL))
            words = np.split(chosen, np.flatnonzero(begins)[1:])
            assert all(word.all() or not word.any() for word in words)
            assert not chosen[special].any()
            assert 0 < chosen.sum() <= max(3, round(0.3 * (~special).sum()))
            counts.append((chosen.sum(), (~special).sum()))
    num_chosen, num_eligible = np.sum(counts, axis=0)
    assert 0.3 - 2 / 34 < num_chosen / num_eligible < 0.31  # up to two tokens of a row are less than a word


def test_whole_words_need_a_tokenizer_that_marks_them():
    model, _ = model_of(next_sentence=False)
    for starts in (None, np.zeros(V, dtype=bool)):
        unmarked = replace(text(), word_starts_V=starts)
        with pytest.raises(ValueError, match=r"pretrain_lm\.whole_words is true, but no piece"):
            Masked.check(settings(whole_words=True), unmarked, model.encoder, "pretrain_lm")


def test_four_in_five_are_masked_and_half_of_the_rest_replaced():
    kinds = {"masked": 0, "kept": 0, "replaced": 0}
    made = batches(masked_share=0.5)
    for step in range(made.num_steps(8)):
        batch = made.at(step, ALL)
        seen, wanted = batch.ids_BT[batch.chosen_BT], batch.targets_N
        kinds["masked"] += int((seen == MASK).sum())
        kinds["kept"] += int((seen == wanted).sum())
        kinds["replaced"] += int(((seen != MASK) & (seen != wanted)).sum())
        untouched = ~batch.chosen_BT.numpy()
        assert np.array_equal(batch.ids_BT.numpy()[untouched], originals(batch)[untouched])
    total = sum(kinds.values())
    assert total > 5_000
    spread = 4 * math.sqrt(0.16 / total)
    # One in V of the random tokens is the mask, and one the token itself.
    assert kinds["masked"] / total == pytest.approx(0.8 + 0.1 / V, abs=spread)
    assert kinds["kept"] / total == pytest.approx(0.1 + 0.1 / V, abs=spread)


def test_masks_are_drawn_anew_and_come_from_seed_step_and_row_alone():
    made, again = batches(), batches()
    first, same = made.at(3, ALL), again.at(3, ALL)
    assert torch.equal(first.ids_BT, same.ids_BT)
    assert torch.equal(first.chosen_BT, same.chosen_BT)
    for rows in (slice(0, 3), slice(3, 8), slice(5, 5)):
        part = made.at(3, rows)
        assert torch.equal(part.ids_BT, first.ids_BT[rows])
        assert torch.equal(part.chosen_BT, first.chosen_BT[rows])
    steps = made.num_steps(1)
    assert not torch.equal(made.at(0, ALL).chosen_BT, made.at(steps, ALL).chosen_BT)
    assert not torch.equal(first.chosen_BT, batches(seed=2).at(3, ALL).chosen_BT)


def test_half_of_the_pairs_are_torn_and_the_others_continue():
    made = batches(next_sentence=True, row_tokens=41)
    torn = continued = 0
    for step in range(made.num_steps(4)):
        batch = made.at(step, ALL)
        for row, segments, follows in zip(originals(batch), batch.segments_BT, batch.follows_B, strict=True):
            first_end = int(np.flatnonzero(segments.numpy() == 1)[0]) - 1
            assert row[0] == START
            assert row[first_end] == row[-1] == END
            before, after = row[first_end - 1], row[first_end + 1]
            if {before, after} & SPECIAL:
                continue  # a document ends there
            is_next = after == 4 + (before - 3) % (V - 4)
            torn += int(follows == 1)
            continued += int(follows == 0)
            if follows == 0:
                assert is_next
    assert min(torn, continued) > 100
    assert torn / (torn + continued) == pytest.approx(0.5, abs=4 * math.sqrt(0.25 / (torn + continued)))


def model_of(next_sentence: bool) -> tuple[Any, Config]:
    torch.manual_seed(0)
    config = Config(
        embedding_dim=8, feedforward_dim=12, num_layers=1, num_heads=2, context=64, embedding_dropout=0.0,
        attention_dropout=0.0, residual_dropout=0.0, pooler=next_sentence,
    )  # fmt: skip
    return Masked.build(BERT(config, V), config), config


@pytest.mark.parametrize("next_sentence", [False, True])
def test_the_loss_is_the_mean_over_masked_tokens_and_that_over_pairs(next_sentence):
    model, _ = model_of(next_sentence)
    objective = Masked(model, settings(next_sentence=next_sentence), text(), seed=1)
    found = objective.loss(2, (), Context())
    batch = objective._training.at(2, ALL)
    segments = batch.segments_BT if next_sentence else None
    features = model.encoder(batch.ids_BT, segments_BT=segments).features
    restored = F.cross_entropy(model.logits(features)[batch.chosen_BT], batch.targets_N)
    pairs = torch.zeros(())
    if next_sentence:
        pairs = F.cross_entropy(model.pair_logits(features[:, 0]), batch.follows_B)
    assert float(found.objective.detach()) == pytest.approx(float((restored + pairs).detach()), rel=1e-4)
    assert float(found.nats) / found.num_targets == pytest.approx(float(restored.detach()), rel=1e-4)


def test_an_evaluation_repeats_and_its_figures_fit_together():
    model, _ = model_of(True)
    objective = Masked(model.eval(), settings(next_sentence=True), text(), seed=5)
    found = objective.evaluate(Context())
    assert found == objective.evaluate(Context())
    assert {name.removeprefix("validation/") for name in found} == {each.name for each in Masked.measures}
    assert 0 <= found["validation/masked_error"] <= 1
    assert found["validation/loss"] == pytest.approx(math.log(V), abs=0.5)
    validation = shard_of(40, 1)
    num_tokens = len(validation.tokens) - 2 * 40
    bits = found["validation/loss"] * num_tokens / math.log(2) / validation.num_bytes
    assert found["validation/pseudo_bits_per_byte"] == pytest.approx(bits)


def test_rows_beyond_the_context_and_pairs_without_a_pooler_are_refused():
    model, _ = model_of(False)
    with pytest.raises(ValueError, match=r"pretrain_lm\.row_tokens is 65, .*config\.context is 64; lower"):
        Masked.check(settings(row_tokens=65), text(), model.encoder, "pretrain_lm")
    with pytest.raises(ValueError, match=r"next_sentence is true, which needs config\.pooler"):
        Masked.check(settings(next_sentence=True), text(), model.encoder, "pretrain_lm")
    Masked.check(settings(), text(), model.encoder, "pretrain_lm")
