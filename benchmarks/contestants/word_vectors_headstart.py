"""Words a second of this project's word vectors, by its own loop, and the test errors of the vectors."""

from __future__ import annotations

import argparse
import math
import time
from collections import Counter
from pathlib import Path

import numpy as np
import torch

from benchmarks.contestants._timing import peak_megabytes, prepare, tell
from benchmarks.contestants._topics import Documents, Labelled, errors, read
from models.objective import Objective, TrainingText
from models.word_vectors import FAMILY, Config
from pipeline.corpus.tokens import TokenShard
from pipeline.distributed.worker import prepare_torch
from pipeline.objectives.settings import WordVectorSettings
from pipeline.objectives.word_vectors import OBJECTIVE
from pipeline.training.context import Context
from pipeline.training.loop import Training
from pipeline.training.schedules import make_plan
from pipeline.training.settings import Optimizer, Schedule
from pipeline.training.task import Task

UNKNOWN, BOS, EOS = 1, 2, 3
SPECIAL = frozenset(range(4))


def shard_of(documents: Documents, ids: dict[str, int]) -> TokenShard:
    encoded = [
        np.array([BOS, *(ids.get(word, UNKNOWN) for word in words), EOS], dtype=np.uint32)
        for words in documents
    ]
    offsets = np.cumsum([0, *map(len, encoded)])
    return TokenShard(np.concatenate(encoded), offsets, np.full(len(encoded), -1, np.int32), 1, 1)


def task_of(documents: Documents, ids: dict[str, int], algorithm: str, overlay: dict[str, float]) -> Task:
    section = FAMILY.defaults["pretrain_lm"] | overlay  # type: ignore[operator]
    settings = WordVectorSettings(**{name: section[name] for name in WordVectorSettings.model_fields})
    optimizer = Optimizer(**section["optimizer"])
    vocab_size = len(ids) + len(SPECIAL)
    encoder = FAMILY.build(Config(algorithm=algorithm), vocab_size)  # type: ignore[arg-type]
    model = OBJECTIVE.build(encoder, encoder.config)
    groups = OBJECTIVE.layer_groups(model, FAMILY.layer_groups(encoder))  # type: ignore[arg-type]
    shard = shard_of(documents, ids)
    text = TrainingText([shard], [shard], vocab_size, "forward", SPECIAL)
    objective = OBJECTIVE(model, settings, text, 1)  # type: ignore[arg-type]
    num_steps = objective.num_steps(section["epochs"])
    plan = make_plan(
        optimizer,
        Schedule(**section["schedule"]),
        "full",
        num_groups=len(groups),
        num_steps=num_steps,
        steps_per_unfreezing=num_steps,
    )
    return Task(model, objective, groups, plan, optimizer, frozenset())


def as_pieces(train: Labelled, test: Labelled, vocab_size: int) -> tuple[Labelled, Labelled]:
    """The same texts as pieces of a unigram model of sentencepiece, learned from the training texts."""
    import io

    import sentencepiece as spm

    model = io.BytesIO()
    spm.SentencePieceTrainer.train(
        sentence_iterator=(" ".join(words) for words in train[0]), model_writer=model,
        vocab_size=vocab_size, minloglevel=2,
    )  # fmt: skip
    pieces = spm.SentencePieceProcessor(model_proto=model.getvalue())
    return tuple(
        ([pieces.encode(" ".join(words), out_type=str) for words in texts], labels)
        for texts, labels in (train, test)
    )  # type: ignore[return-value]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, nargs=2, required=True)
    parser.add_argument("--epochs", type=float, help="by default the family's own, like `--subsample`")
    parser.add_argument("--subsample", type=float)
    parser.add_argument("--algorithm", default="skip_gram")
    parser.add_argument("--pieces", type=int, help="learn so many pieces of words in place of words")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    arguments = parser.parse_args()
    prepare()
    prepare_torch(torch.get_num_threads())
    train, test = (read(file) for file in arguments.data)
    if arguments.pieces:
        train, test = as_pieces(train, test, arguments.pieces)
    words = [word for word, _ in Counter(word for text in train[0] for word in text).most_common()]
    ids = {word: len(SPECIAL) + number for number, word in enumerate(words)}
    start = time.perf_counter()
    overlay = {name: getattr(arguments, name) for name in ("epochs", "subsample")}
    overlay = {name: value for name, value in overlay.items() if value is not None}
    task = task_of(train[0], ids, arguments.algorithm, overlay)
    precision = {"fp32": torch.float32, "bf16": torch.bfloat16}[arguments.precision]
    training = Training(task, Context(precision=precision))
    while not training.at_end:
        training.train_step()
    seconds = time.perf_counter() - start
    assert isinstance(task.objective, Objective)
    epochs = training.step / math.ceil(task.objective.num_steps(1))
    vectors = task.model.get_parameter("encoder.embedding.weight").detach().numpy()
    tell(
        words_per_second=epochs * sum(map(len, train[0])) / seconds,
        seconds=seconds,
        peak_megabytes=peak_megabytes(),
        **errors(train, test, ids, vectors),
    )


main()
