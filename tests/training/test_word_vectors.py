from __future__ import annotations

import dataclasses
import math
from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from models.family import lookup
from models.objective import TrainingText
from models.word_vectors import Config, WordVectorModel, WordVectors
from pipeline.corpus.batches import rows_of
from pipeline.corpus.cooccurrences import count_cooccurrences
from pipeline.corpus.tokens import TokenShard
from pipeline.corpus.word_batches import BLOCK, Vocabulary, WordBatch, WordBatches, count_tokens
from pipeline.objectives.settings import WordVectorSettings
from pipeline.objectives.word_vectors import OBJECTIVE
from pipeline.settings.loader import typed
from pipeline.training.context import Context
from pipeline.training.optim import make_optimizer, set_rates
from pipeline.training.settings import ClassifierTraining, Optimizer, Training

BOS, EOS = 2, 3
SPECIAL = frozenset(range(4))
WINDOW = 3


def shard_of(documents: list[list[int]]) -> TokenShard:
    framed = [np.array([BOS, *words, EOS], dtype=np.uint16) for words in documents]
    offsets = np.cumsum([0, *map(len, framed)])
    return TokenShard(np.concatenate(framed), offsets, np.full(len(framed), -1, np.int32), 1, 1)


def random_documents(seed: int, count: int = 30, vocab_size: int = 40) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [list(rng.integers(4, vocab_size, rng.integers(1, 20))) for _ in range(count)]


def text_of(training: list[list[int]], validation: list[list[int]], vocab_size: int = 40) -> TrainingText:
    return TrainingText([shard_of(training)], [shard_of(validation)], vocab_size, "forward", SPECIAL)


def settings_of(**changes: Any) -> WordVectorSettings:
    values: dict[str, Any] = {
        "batch_rows": 5, "row_tokens": 20, "window": WINDOW, "negatives": 2, "shared_negatives": 6,
        "subsample": None, "count_cap": 3.0,
    }  # fmt: skip
    return WordVectorSettings(**(values | changes))


def model_of(algorithm: str, vocab_size: int = 40, dim: int = 6, scale: float = 1.0) -> WordVectorModel:
    config = Config(algorithm=algorithm, embedding_dim=dim)  # type: ignore[arg-type]
    model = OBJECTIVE.build(WordVectors(config, vocab_size), config)
    assert isinstance(model, WordVectorModel)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)
    return model


def batches_of(documents: list[list[int]], **changes: Any) -> WordBatches:
    shard = shard_of(documents)
    vocabulary = Vocabulary.of(count_tokens([shard], 40), SPECIAL, changes.pop("subsample", None))
    values: dict[str, Any] = {
        "num_rows": 3, "row_tokens": 30, "window": WINDOW, "negatives": 6, "seed": 1,
    }  # fmt: skip
    return WordBatches([shard], vocabulary, **(values | changes))


def contexts_of(batch: WordBatch, row: int) -> list[tuple[int, list[int]]]:
    """Each centre's place in the row and the places of its contexts."""
    documents, reach = batch.documents_RM[row].tolist(), batch.reach_RM[row].tolist()
    return [
        (i, [j for j in range(len(documents))
             if i != j and abs(i - j) <= reach[i] and documents[i] == documents[j]])
        for i in range(len(documents)) if documents[i] >= 0
    ]  # fmt: skip


def skip_gram_pair_by_pair(model: WordVectorModel, batch: WordBatch) -> tuple[Tensor, int]:
    """arXiv 1310.4546, equation 4; the expectation over k negatives is k times the mean over a block's."""
    inputs, outputs = model.encoder.embedding.weight, model.output
    losses = []
    for row, ids in enumerate(batch.ids_RM.tolist()):
        for i, contexts in contexts_of(batch, row):
            negatives = outputs[batch.negatives_RNS[row, i // BLOCK]]
            for j in contexts:
                x = inputs[ids[i]]
                losses.append(-F.logsigmoid(x @ outputs[ids[j]]) - 2 * F.logsigmoid(-negatives @ x).mean())
    return torch.stack(losses).sum(), len(losses)


def cbow_word_by_word(model: WordVectorModel, batch: WordBatch) -> tuple[Tensor, int]:
    """The same, with a mean of contexts as the input and the centre as the output."""
    inputs, outputs = model.encoder.embedding.weight, model.output
    losses = []
    for row, ids in enumerate(batch.ids_RM.tolist()):
        for i, contexts in contexts_of(batch, row):
            if contexts:
                negatives = outputs[batch.negatives_RNS[row, i // BLOCK]]
                x = torch.stack([inputs[ids[j]] for j in contexts]).mean(0)
                losses.append(-F.logsigmoid(x @ outputs[ids[i]]) - 2 * F.logsigmoid(-negatives @ x).mean())
    return torch.stack(losses).sum(), len(losses)


@pytest.mark.parametrize(
    ("algorithm", "reference"), [("skip_gram", skip_gram_pair_by_pair), ("cbow", cbow_word_by_word)]
)
def test_loss_and_gradient_are_the_papers_pair_by_pair(algorithm, reference):
    model = model_of(algorithm)
    batch = batches_of(random_documents(0, 60), num_rows=3, row_tokens=200).at(0, slice(0, 3))
    assert batch.negatives_RNS.shape[1] > 1  # several blocks, so that windows cross their borders
    nats, count = getattr(model, algorithm)(batch.windows(WINDOW), 2, torch.float32)
    expected, expected_count = reference(model, batch)
    assert int(count) == expected_count > 300
    torch.testing.assert_close(nats, expected)
    gradients, expected_gradients = (
        torch.autograd.grad(each, list(model.parameters())) for each in (nats, expected)
    )
    for mine, theirs in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


def test_glove_is_the_papers_pair_by_pair():
    model = model_of("glove")
    pairs = count_cooccurrences([shard_of(random_documents(0))], 40, SPECIAL, WINDOW)
    inputs, outputs, counts = (
        torch.from_numpy(each) for each in (pairs.inputs_P, pairs.outputs_P, pairs.counts_P)
    )
    w, w_tilde = model.encoder.embedding.weight.tolist(), model.output.tolist()
    b, b_tilde = model.biases.tolist()
    expected = 0.0  # Pennington et al. 2014, equations 8 and 9
    for i, j, x in zip(inputs.tolist(), outputs.tolist(), counts.tolist(), strict=True):
        weight = (x / 3.0) ** 0.75 if x < 3.0 else 1.0
        expected += weight * (np.dot(w[i], w_tilde[j]) + b[i] + b_tilde[j] - math.log(x)) ** 2
    loss = model.glove(inputs.long(), outputs.long(), counts, 3.0)
    assert loss.item() == pytest.approx(expected, rel=1e-5)


def test_gloves_validation_loss_weighs_a_pair_by_its_count_in_the_validation_text():
    """Its counts are raised to the size of the training text: a pair that was seen once stays a rare one."""
    training, validation = random_documents(0), random_documents(1, count=3)
    model = model_of("glove")
    objective = OBJECTIVE(model, settings_of(window=2, count_cap=3.0), text_of(training, validation), seed=0)
    of_training, of_validation = (
        count_cooccurrences([shard_of(documents)], 40, SPECIAL, window=2)
        for documents in (training, validation)
    )
    ratio = of_training.counts_P.sum() / of_validation.counts_P.sum()
    inputs, outputs = of_validation.inputs_P.astype(int), of_validation.outputs_P.astype(int)
    with torch.no_grad():
        products = (model.encoder.embedding.weight[inputs] * model.output[outputs]).sum(-1)
        predicted = (products + model.biases[0][inputs] + model.biases[1][outputs]).numpy()
    errors = (predicted - np.log(of_validation.counts_P * ratio)) ** 2
    weights = np.minimum(1, of_validation.counts_P / 3.0) ** 0.75
    expected = float((weights * errors).mean())
    assert objective.evaluate(Context())["validation/loss"] == pytest.approx(expected, rel=1e-4)


def test_cooccurrences_are_those_counted_one_by_one(monkeypatch):
    monkeypatch.setattr("pipeline.corpus.cooccurrences._TOKENS_AT_ONCE", 50)  # several chunks
    documents = [*random_documents(0), [4, 1, 5]]  # an unknown word takes no place
    expected: Counter[tuple[int, int]] = Counter()
    for document in documents:
        words = [word for word in document if word not in SPECIAL]
        for i, j in (
            (i, j) for i in range(len(words)) for j in range(len(words)) if 0 < abs(i - j) <= WINDOW
        ):
            expected[words[i], words[j]] += 1 / abs(i - j)  # type: ignore[assignment]
    found = count_cooccurrences([shard_of(documents[:9]), shard_of(documents[9:])], 40, SPECIAL, WINDOW)
    keys = list(zip(found.inputs_P.tolist(), found.outputs_P.tolist(), strict=True))
    assert keys == sorted(expected)
    np.testing.assert_allclose(found.counts_P, [expected[key] for key in keys], rtol=1e-6)


def test_subsampling_keeps_words_with_the_papers_probability():
    counts = np.zeros(40, dtype=np.int64)
    counts[[2, 4, 5, 6]] = 500, 900, 99, 1  # 2 is special and no part of the text
    kept = Vocabulary.of(counts, SPECIAL, 1e-2).kept_V
    # arXiv 1310.4546, equation 5: discarded with probability 1 - sqrt(t / f)
    assert kept[[4, 5]] == pytest.approx([math.sqrt(0.01 / 0.9), math.sqrt(0.01 / 0.099)])
    assert kept[6] == 1
    assert not kept[[1, 2, 3, 7]].any()

    documents = [[4, 4, 4, 5]] * 1000
    batch = batches_of(documents, subsample=0.1, num_rows=2, row_tokens=3000).at(0, slice(0, 2))
    found = Counter(batch.ids_RM[batch.documents_RM >= 0].tolist())
    assert found[4] / 3000 == pytest.approx(math.sqrt(0.1 / 0.75), abs=0.03)
    assert found[5] / 1000 == pytest.approx(math.sqrt(0.1 / 0.25), abs=0.05)


def test_negatives_follow_the_unigram_distribution_to_the_three_quarters():
    counts = np.zeros(40, dtype=np.int64)
    counts[[2, 4, 5, 39]] = 500, 16, 81, 256
    drawn = Vocabulary.of(counts, SPECIAL, None).draw(np.random.default_rng(0), (100, 500))
    found = np.bincount(drawn.ravel(), minlength=40) / drawn.size
    assert found[[4, 5, 39]] == pytest.approx(np.array([8, 27, 64]) / 99, abs=0.01)
    assert found.sum() == pytest.approx(found[[4, 5, 39]].sum())


def test_every_word_is_a_centre_once_an_epoch_and_windows_stay_in_their_document():
    documents = [[4 + 10 * (k % 3) + i for i in range(10)] for k in range(30)]  # ascending, by document
    batches = batches_of(documents, num_rows=3, row_tokens=50)
    centres: Counter[int] = Counter()
    for step in range(batches.steps_per_epoch):
        windows = batches.at(step, slice(0, 3)).windows(WINDOW)
        for n, i, k in windows.mask_NCK.nonzero().tolist():
            centre, context = int(windows.centres_NC[n, i]), int(windows.contexts_NK[n, k])
            assert centre not in SPECIAL
            assert context not in SPECIAL
            assert 0 < abs(centre - context) <= WINDOW  # so of the same document
        batch = batches.at(step, slice(0, 3))
        centres.update(batch.ids_RM[batch.documents_RM >= 0].tolist())
    assert centres == Counter(word for document in documents for word in document)


def test_reaches_are_drawn_evenly():
    batch = batches_of([[4] * 3000], num_rows=1, row_tokens=4000).at(0, slice(0, 1))
    found = np.bincount(batch.reach_RM[batch.documents_RM >= 0], minlength=WINDOW + 1) / 3000
    assert found == pytest.approx([0, *[1 / WINDOW] * WINDOW], abs=0.03)


def test_a_batch_depends_on_seed_and_step_alone():
    """So a run that resumes at a step reads what it would have read."""
    documents = random_documents(0)
    first, fresh = batches_of(documents, subsample=0.05), batches_of(documents, subsample=0.05)
    last = 2 * first.steps_per_epoch - 1
    walked = [first.at(step, slice(0, 3)) for step in range(last + 1)]
    assert_same(walked[last], fresh.at(last, slice(0, 3)))
    assert_same(walked[1], fresh.at(1, slice(0, 3)))
    other = batches_of(documents, subsample=0.05, seed=2).at(1, slice(0, 3))
    assert other.ids_RM.tolist() != walked[1].ids_RM.tolist()


def assert_same(one: WordBatch, other: WordBatch) -> None:
    for field in dataclasses.fields(WordBatch):
        assert np.array_equal(getattr(one, field.name), getattr(other, field.name))


class Rank:
    """One of several workers, which take turns in this process; see `on_all_ranks`."""

    def __init__(self, rank: int, world: int) -> None:
        self.rank, self.world = rank, world
        self.device, self.precision = torch.device("cpu"), torch.float32
        self.asked: list[list[float]] = []
        self.answers: list[list[float]] | None = None

    def all_reduce(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def to_device(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tensors

    def sum_numbers(self, *numbers: float) -> list[float]:
        self.asked.append(list(numbers))
        return list(numbers) if self.answers is None else self.answers[len(self.asked) - 1]


def on_all_ranks(world: int, action: Any) -> list[Any]:
    """Run an action on each rank twice: first to hear what each adds, then with the sums."""
    ranks = [Rank(rank, world) for rank in range(world)]
    for rank in ranks:
        action(rank)
    asked = [rank.asked for rank in ranks]
    sums = [[sum(parts) for parts in zip(*of_call, strict=True)] for of_call in zip(*asked, strict=True)]
    for rank in ranks:
        rank.asked, rank.answers = [], sums
    return [action(rank) for rank in ranks]


@pytest.mark.parametrize("algorithm", ["skip_gram", "cbow", "glove"])
def test_the_number_of_workers_changes_nothing(algorithm):
    text = text_of(random_documents(0, 60), random_documents(1))
    gradients, evaluations = [], []
    for world in (1, 2, 4, 7):  # with 7 some have no rows
        model = model_of(algorithm, scale=0.5)
        objective = OBJECTIVE(model, settings_of(subsample=0.05), text, seed=3)

        def gradient(rank: Rank, model: Any = model, objective: Any = objective) -> list[Tensor]:
            model.zero_grad()
            objective.loss(1, (), rank).objective.backward()
            return [parameter.grad.clone() for parameter in model.parameters()]

        found = on_all_ranks(world, gradient)
        gradients.append([sum(parts) for parts in zip(*found, strict=True)])
        evaluations.append(on_all_ranks(world, objective.evaluate))
    assert all(float(each.abs().max()) > 1e-4 for each in gradients[0])
    for one, other in pairwise(gradients):
        for mine, theirs in zip(one, other, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-8)
    losses = [each["validation/loss"] for of_world in evaluations for each in of_world]
    assert losses == pytest.approx([losses[0]] * len(losses), rel=1e-6)


@pytest.mark.parametrize("world", [2, 4])
def test_workers_hold_whole_rows(world):
    batches = batches_of(random_documents(0), subsample=0.05)
    whole = batches.at(1, slice(0, 3))
    for rank in range(world):
        rows = rows_of(rank, world, 3)
        mine = batches.at(1, rows)
        length, blocks = mine.ids_RM.shape[1], mine.negatives_RNS.shape[1]
        assert mine.ids_RM.equal(whole.ids_RM[rows, :length])
        assert mine.negatives_RNS.equal(whole.negatives_RNS[rows, :blocks])


@pytest.mark.parametrize("algorithm", ["skip_gram", "cbow", "glove"])
def test_words_that_occur_together_end_up_nearer(algorithm):
    rng = np.random.default_rng(0)
    topics = [range(4, 12), range(12, 20)]
    documents = [list(rng.choice(topics[k % 2], 12)) for k in range(200)]
    text = text_of(documents, documents[:20], vocab_size=20)
    model = model_of(algorithm, vocab_size=20, scale=0.05)
    objective = OBJECTIVE(model, settings_of(row_tokens=100, window=4), text, seed=0)
    groups = OBJECTIVE.layer_groups(model, [list(model.encoder.parameters())])
    optimizer = make_optimizer(adagrad(), groups)
    before = objective.evaluate(Context())["validation/loss"]
    for step in range(objective.num_steps(12)):
        optimizer.zero_grad()
        objective.loss(step, (), Context()).objective.backward()
        set_rates(optimizer, [0.1, 0.1], 1.0)
        optimizer.step()
    assert objective.evaluate(Context())["validation/loss"] < before
    vectors = torch.nn.functional.normalize(model.encoder.embedding.weight[4:].detach())
    near = vectors @ vectors.T
    same = torch.block_diag(torch.ones(8, 8), torch.ones(8, 8)).bool() & ~torch.eye(16).bool()
    other = ~torch.block_diag(torch.ones(8, 8), torch.ones(8, 8)).bool()
    assert float(near[same].mean()) > float(near[other].mean()) + 0.5


def adagrad(**changes: Any) -> Optimizer:
    values: dict[str, Any] = {
        "kind": "adagrad", "lr": 0.1, "momentum": 0.0, "beta2": 0.0, "weight_decay": 0.0, "clip_norm": None,
        "nonmonotone_interval": 5, "discriminative_factor": 1.0,
    }  # fmt: skip
    return Optimizer(**(values | changes))


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_adagrad_is_torchs(weight_decay):
    generator = torch.Generator().manual_seed(0)
    mine, theirs = (torch.nn.Parameter(torch.ones(5, 3)) for _ in range(2))
    ours = make_optimizer(adagrad(weight_decay=weight_decay), [[mine]])
    reference = torch.optim.Adagrad([theirs], lr=0.1, weight_decay=weight_decay)
    set_rates(ours, [0.1], 1.0)
    for _ in range(5):
        mine.grad = torch.randn(5, 3, generator=generator)
        theirs.grad = mine.grad.clone()
        ours.step()
        reference.step()
    torch.testing.assert_close(mine, theirs)


def test_the_family_has_good_defaults():
    family = lookup("word_vectors")
    config = typed(Config, {}, where="params.yaml")
    assert config.scaled_dropout(2.0).embedding_dropout == 2 * config.embedding_dropout
    encoder = family.build(config, 40)
    encoded = encoder(torch.tensor([[5, 6], [6, 5]]))
    assert encoded.features.shape == (2, 2, 200)
    assert encoded.features[0, 0].equal(encoded.features[1, 1])
    for stage in ("pretrain_lm", "finetune_lm"):
        section = family.defaults[stage]
        common = {name: value for name, value in section.items() if name in Training.model_fields}
        typed(Training, common, where=stage)
        typed(WordVectorSettings, {name: section[name] for name in section.keys() - common}, where=stage)
    # Which labels it trains on, in which way, and what it starts from, are params.yaml's: no default here.
    shared = {"start": "target_lm", "max_labels": None, "method": "plain", "restarts": 2}
    shared |= {"attention_score": "additive"}
    assert not shared.keys() & family.defaults["finetune_classifier"].keys()
    classifier = shared | dict(family.defaults["finetune_classifier"])
    typed(ClassifierTraining, classifier, where="finetune_classifier")


def test_a_text_of_special_tokens_is_refused():
    text = text_of([[1, 1]], [[5, 6]])
    with pytest.raises(ValueError, match="no tokens but special ones"):
        OBJECTIVE(model_of("skip_gram"), settings_of(), text, seed=0)
    with pytest.raises(ValueError, match="no two words"):
        OBJECTIVE(model_of("glove"), settings_of(), text, seed=0)
