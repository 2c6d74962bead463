"""CoVe: encoder and decoder by their equations, pairs and their batches, and a text without translations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from models.cove import Config, CoVe, Translator, layer_groups
from models.layers import GlobalBatch
from models.objective import TrainingText
from pipeline.corpus.pair_batches import PairBatches, pairs_of
from pipeline.objectives.settings import TranslationSettings
from pipeline.objectives.translation import Translation
from pipeline.training.context import Context

PAD, START, END, VOCABULARY = 0, 2, 3, 30
CONFIG = Config(
    embedding_dim=6, hidden_dim=5, num_layers=2, input_dropout=0.2, hidden_dropout=0.2, output_dropout=0.2
)


def translator(**changes: object) -> Translator:
    torch.manual_seed(1)
    return Translator(CoVe(Config(**{**vars(CONFIG), **changes}), VOCABULARY)).eval()


class Shard:
    """Documents of the given texts; those of one text are no pairs."""

    num_words = num_bytes = 100

    def __init__(self, documents: Sequence[Sequence[Sequence[int]]]) -> None:
        framed = [[START, *(token for text in each for token in (*text, END))] for each in documents]
        self.tokens = np.array([token for each in framed for token in each], np.uint16)
        self.offsets = np.cumsum([0, *map(len, framed)])

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def document(self, index: int) -> np.ndarray:
        return self.tokens[self.offsets[index] : self.offsets[index + 1]]


def rows_of(*texts: Sequence[int]) -> tuple[Tensor, Tensor]:
    width = max(map(len, texts))
    ids = torch.tensor([[*text, *[PAD] * (width - len(text))] for text in texts])
    return ids, torch.tensor([[place < len(text) for place in range(width)] for text in texts])


def test_the_encoder_is_that_of_torch():
    encoder = translator().encoder
    assert isinstance(encoder, CoVe)
    reference = torch.nn.LSTM(6, 5, num_layers=2, bidirectional=True, batch_first=True)
    with torch.no_grad():
        for depth in range(2):
            for ours, suffix in ((encoder.forwards[depth], ""), (encoder.backwards[depth], "_reverse")):
                for name in ("weight_ih", "weight_hh"):
                    getattr(reference, f"{name}_l{depth}{suffix}").copy_(getattr(ours, name))
                getattr(reference, f"bias_ih_l{depth}{suffix}").copy_(ours.bias)
                getattr(reference, f"bias_hh_l{depth}{suffix}").zero_()
    ids, mask = rows_of([2, 5, 6, 7, 3], [2, 8, 3])
    packed = torch.nn.utils.rnn.pack_padded_sequence(
        encoder.embedding(ids), mask.sum(1), batch_first=True, enforce_sorted=False
    )
    wanted, _ = torch.nn.utils.rnn.pad_packed_sequence(reference(packed)[0], batch_first=True)
    found = encoder(ids, mask)
    torch.testing.assert_close(found.features[mask], wanted[mask])
    assert torch.equal(found.layers[0], encoder.embedding(ids))
    assert torch.equal(found.layers[-1], found.features)


@torch.no_grad()
@pytest.mark.parametrize("score", ["general", "additive", "cosine"])
@pytest.mark.parametrize("focus", ["global", "monotonic"])
def test_the_decoder_is_that_of_the_equations(focus, score):
    model = translator(focus=focus, score=score, half_window=1)
    alignment_of = model.attention.alignment

    def scored(H, h):
        if score == "general":
            return H @ (alignment_of.between.weight.T @ h)
        if score == "cosine":
            return torch.cosine_similarity(H, h[None]) * alignment_of.log_sharpness.exp()
        return alignment_of.of_both(torch.tanh(alignment_of.of_query(h) + alignment_of.of_key(H)))[:, 0]

    encoder = model.encoder
    source, mask = rows_of([2, 5, 6, 7, 3], [2, 8, 3])
    before, _ = rows_of([2, 9, 10], [2, 11, 12])
    features, alignment = model(source, mask, before)
    cell = torch.nn.LSTMCell(6 + 10, 10)
    cell.weight_ih.copy_(model.decoder.weight_ih)
    cell.weight_hh.copy_(model.decoder.weight_hh)
    cell.bias_ih.copy_(model.decoder.bias)
    cell.bias_hh.zero_()
    for row, length in enumerate((5, 3)):
        H = encoder(source[row : row + 1, :length]).features[0]
        h = torch.cat([H[-1, :5], H[0, 5:]])[None]
        c, context = torch.zeros_like(h), torch.zeros(10)
        for place in range(3):
            z = encoder.embedding(before[row, place])
            h, c = cell(torch.cat([z, context])[None], (h, c))
            scores = scored(H, h[0])
            if focus == "monotonic":
                away = (torch.arange(length) - min(place, length - 1)).abs()
                scores = scores.masked_fill(away > 1, -torch.inf)
            weights = scores.softmax(0)
            context = torch.tanh(model.combine(torch.cat([weights @ H, h[0]])))
            torch.testing.assert_close(alignment[row, place, :length], weights)
            torch.testing.assert_close(features[row, place], context)
        assert not alignment[row, :, length:].any()


def test_pairs_are_documents_of_two_texts():
    shard = Shard([[[5, 6], [7]], [[5, 6, 7]], [[8], [9, 10, 11]], [[5], [6], [7]], [[], [5]]])
    assert pairs_of(shard, END).tolist() == [[0, 4, 6], [11, 14, 18], [25, 27, 29]]
    batches = PairBatches([shard, shard], batch_pairs=4, max_tokens=4, end_id=END, pad_id=PAD, seed=1)
    assert len(batches) == 6
    assert batches.pair(1).source.tolist() == [START, 8, END]
    assert batches.pair(4).target.tolist() == [START, 9, 10, END]  # its third token is cut


def test_each_epoch_has_each_pair_once_and_workers_share_a_batch():
    shard = Shard([[[5 + k % 20] * (1 + k % 5), [6 + k % 7] * (1 + k % 4)] for k in range(23)])
    batches = PairBatches([shard], batch_pairs=5, max_tokens=9, end_id=END, pad_id=PAD, seed=1)
    seen = []
    for step in range(batches.steps_per_epoch):
        whole = batches.at(step, 0, 1)
        parts = [batches.at(step, rank, 3) for rank in range(3)]
        for name in ("source_BS", "before_BT", "after_BT", "after_mask_BT"):
            assert torch.equal(torch.cat([getattr(part, name) for part in parts]), getattr(whole, name))
        assert len(whole.source_BS) == whole.num_pairs in (batches.least_pairs, batches.least_pairs + 1)
        assert (whole.before_BT[:, 0] == START).all()
        for row, real in zip(whole.after_BT, whole.after_mask_BT, strict=True):
            assert row[real][-1] == END
        seen += [
            tuple(row[mask].tolist()) for row, mask in zip(whole.source_BS, whole.source_mask_BS, strict=True)
        ]
    assert sorted(seen) == sorted(tuple(batches.pair(k).source.tolist()) for k in range(23))


def text_of(documents: Sequence[Sequence[Sequence[int]]]) -> TrainingText:
    shard = Shard(documents)
    return TrainingText([shard], [shard], VOCABULARY, "forward", frozenset((0, 1, 2, 3)))


SETTINGS = TranslationSettings(batch_pairs=16, max_tokens=20)


def test_it_learns_to_turn_a_text_around_and_aligns_each_word_with_its_own():
    """The translation of a text is its words backwards, each 10 higher."""
    rng = np.random.default_rng(0)
    texts = [rng.integers(4, 14, size=rng.integers(2, 6)) for _ in range(400)]
    text = text_of([[list(each), list(each[::-1] + 10)] for each in texts])
    torch.manual_seed(0)
    model = Translator(
        CoVe(Config(embedding_dim=16, hidden_dim=24, num_layers=1).scaled_dropout(0), VOCABULARY)
    )
    objective = Translation(model, SETTINGS, text, seed=1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    context = Context()
    before = objective.evaluate(context)["validation/loss"]
    assert before == pytest.approx(np.log(VOCABULARY), abs=0.7)
    for step in range(objective.num_steps(16)):
        optimizer.zero_grad()
        objective.loss(step, (), context).objective.backward()
        optimizer.step()
    assert objective.evaluate(context)["validation/loss"] < 0.1
    source, mask = rows_of([START, 5, 6, 7, 8, END])
    alignment = model(source, mask, rows_of([START, 18, 17, 16, 15])[0])[1][0, :4]
    looked_at = (alignment @ torch.arange(6.0)).tolist()
    assert looked_at == sorted(looked_at, reverse=True)  # from the last word to the first
    found, rows = model.translate(source, START, END, most=20)
    assert found == [18, 17, 16, 15, END]
    torch.testing.assert_close(rows[:4], alignment)
    assert len(model.translate(source, START, END, most=2)[0]) == 2


def test_the_loss_is_the_mean_over_all_tokens_and_dropout_is_in_training_alone():
    text = text_of([[[5, 6, 7], [8]], [[9], [10, 11, 12]]])
    model = translator()
    objective = Translation(model, SETTINGS, text, seed=1)
    nats, count = 0.0, 0
    with torch.no_grad():
        for source, target in (([2, 5, 6, 7, 3], [2, 8, 3]), ([2, 9, 3], [2, 10, 11, 12, 3])):
            ids, mask = rows_of(source)
            features, _ = model(ids, mask, torch.tensor([target[:-1]]))
            logits = model.logits(features[0])
            nats += float(
                torch.nn.functional.cross_entropy(logits, torch.tensor(target[1:]), reduction="sum")
            )
            count += len(target) - 1
    found = objective.evaluate(Context())
    assert found["validation/loss"] == pytest.approx(nats / count, abs=1e-5)
    assert found["validation/perplexity"] == pytest.approx(np.exp(nats / count), rel=1e-4)
    step = objective.loss(0, (), Context())
    assert (step.num_targets, count) == (6, 6)
    assert float(step.nats) != pytest.approx(nats, abs=1e-3)
    batch = GlobalBatch(1, 0, 1, slice(0, 1))
    ids, mask = rows_of([2, 5, 6, 3])
    assert not torch.equal(model.encoder(ids, mask, batch=batch).features, model.encoder(ids, mask).features)


def test_a_text_without_translations_is_not_judged_and_not_learned_from():
    text = text_of([[[5, 6, 7]], [[8, 9]]])
    model = translator()
    objective = Translation(model, SETTINGS, text, seed=1)
    assert objective.evaluate(Context()) == {}
    assert objective.num_steps(0) == 0
    assert not Translation.learns_from(text)
    assert Translation.learns_from(text_of([[[5], [6]]]))
    with pytest.raises(ValueError, match=r"corpus\.translation has no pairs .* set text_pair_column"):
        Translation.check(SETTINGS, text, model.encoder, "pretrain_lm")
    Translation.check(SETTINGS, text, model.encoder, "finetune_lm")


def test_every_parameter_is_in_one_group():
    model = translator()
    assert isinstance(model.encoder, CoVe)
    groups = Translation.layer_groups(model, layer_groups(model.encoder))
    assert len(groups) == 4
    found = [id(weight) for group in groups for weight in group]
    assert sorted(found) == sorted(id(weight) for weight in model.parameters())
    with pytest.raises(ValueError, match="score is 'dots'; choose one of cosine"):
        Config(score="dots")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="num_layers is 0"):
        Config(num_layers=0)
