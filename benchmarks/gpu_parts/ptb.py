"""Part `ptb`: Penn Treebank by AWD-LSTM (Merity et al. 2017, section 5) with NT-ASGD."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.contestants._network import SCHEDULE
from benchmarks.gpu_parts.call import Call, precision_of
from benchmarks.gpu_parts.toy_tasks import ADAMW, shard_of
from models.family import lookup
from models.objective import TrainingText
from pipeline.artifacts.checkpoint_store import CheckpointStore
from pipeline.corpus.tokens import TokenShard
from pipeline.objectives.lookup import objective_of
from pipeline.training.context import Context
from pipeline.training.loop import Training
from pipeline.training.schedules import make_plan
from pipeline.training.task import Task, evenly_spaced

_PTB_MINUTES = 20.0
_TINY_STEPS = 150  # of a call with --tiny, whose end must not hang on the machine's speed


def ptb(call: Call) -> dict[str, Any]:
    """Train for some minutes more, and return perplexities so far."""
    arguments = call.arguments
    text, test = _penn_treebank(arguments.text)
    family = lookup("awd_lstm")
    sizes = {"embedding_dim": 400, "hidden_dim": 1150, "num_layers": 3}
    dropouts = {
        "embedding_dropout": 0.1, "input_dropout": 0.4, "hidden_dropout": 0.25, "output_dropout": 0.4,
        "weight_dropout": 0.5,
    }  # fmt: skip
    lr = 30.0
    if arguments.tiny:
        sizes, lr = {"embedding_dim": 16, "hidden_dim": 24, "num_layers": 1}, 3.0
    torch.manual_seed(1)
    config = family.config(**sizes, **dropouts, tie_weights=True)
    encoder = family.build(config, text.vocab_size)
    encoder.product_dtype = precision = precision_of(call.device)
    objective_class = objective_of(family)
    model: Any = objective_class.build(encoder, config)
    settings = objective_class.Settings(
        batch_rows=20, bptt=70, variable_bptt=True, ar_alpha=2.0, tar_beta=1.0, sampled_words=None
    )
    objective: Any = objective_class(model, settings, text, seed=1)
    optimizer = ADAMW.model_copy(
        update={"kind": "nt_asgd", "lr": lr, "weight_decay": 1.2e-6, "clip_norm": 0.25}
    )
    groups = objective_class.layer_groups(model, family.layer_groups(encoder))
    num_steps = objective.num_steps(500)
    constant = SCHEDULE.model_copy(update={"kind": "constant"})
    task = Task(
        model=model, objective=objective, groups=groups,
        plan=make_plan(optimizer, constant, "full", num_groups=len(groups), num_steps=num_steps,
                       steps_per_unfreezing=1),
        optimizer=optimizer, evaluation_steps=evenly_spaced(num_steps, 500),
    )  # fmt: skip
    file = arguments.out / "ptb.json"
    earlier = json.loads(file.read_text())["ptb"] if file.exists() else {"minutes": 0.0}
    context = Context(
        device=arguments.device, precision=precision, store=CheckpointStore(str(arguments.out / "ptb"))
    )
    training = Training(task, context)
    training.restore()
    began, first_step = time.monotonic(), training.step
    minutes_left = _PTB_MINUTES - earlier["minutes"]

    def goes_on() -> bool:
        if arguments.tiny:
            return training.step < first_step + _TINY_STEPS
        return time.monotonic() - began < 60 * minutes_left and call.reason_to_stop() is None

    while goes_on():
        training.train_step()
        if training.evaluation_is_due:
            print(training.step, training.evaluate(), flush=True)
    training.save(None)
    spent = earlier["minutes"] + (time.monotonic() - began) / 60
    training.evaluate()
    if training.average.started:
        training.average.swap(training.model)
    judged = {}
    for name, shard in (("validation", text.validation[0]), ("test", test)):
        shown = objective_class(model, settings, replace(text, validation=[shard]), seed=1)
        judged[f"{name} perplexity"] = shown.evaluate(context)["validation/perplexity"]
    return {"minutes": spent, "steps": training.step, "averages": training.average.started, **judged}


def _penn_treebank(folder: Path) -> tuple[TrainingText, TokenShard]:
    """Read the three splits; each word is a token, and each line ends with `</s>`, as is usual there."""
    lines = {
        name: (folder / f"{name}.txt").read_text(encoding="utf-8").splitlines()
        for name in ("train", "validation", "test")
    }
    words = ["<pad>", "<unk>", "<s>", "</s>"]
    words += sorted({word for line in lines["train"] for word in line.split()} - set(words))
    ids = {word: token for token, word in enumerate(words)}
    shards = {}
    for name, split in lines.items():
        tokens = [ids.get(word, 1) for line in split for word in [*line.split(), "</s>"]]
        num_bytes = sum(len(line.encode()) + 1 for line in split)
        shards[name] = shard_of(np.array([3, *tokens], dtype=np.uint16), len(tokens), num_bytes)
    text = TrainingText(
        [shards["train"]], [shards["validation"]], len(words), "forward", special_ids=frozenset((0, 2, 3))
    )
    return text, shards["test"]
