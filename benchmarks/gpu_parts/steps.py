"""Part `steps`: where the time of an AWD-LSTM's training steps goes, by torch's profiler."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from benchmarks.contestants._network import PRECISIONS, SCHEDULE, encoder_of, language_model_task
from benchmarks.contestants._timing import PROFILED_STEPS, Profile, Size, profile_of, seconds_of_all
from benchmarks.gpu_parts.call import Call
from benchmarks.gpu_parts.toy_tasks import ADAMW
from models.awd_lstm import layer_groups
from models.heads import Classifier, classifier_groups
from pipeline.corpus.classifier_batches import ClassifierBatches
from pipeline.corpus.text_form import TextForm
from pipeline.corpus.tokens import TokenShard
from pipeline.training.classifier import Classification
from pipeline.training.context import Context
from pipeline.training.loop import Training
from pipeline.training.schedules import make_plan
from pipeline.training.task import Task

_STEPS = [(8000, 70, 128), (16_000, 70, 256)]  # words, tokens of a row, rows
_PLANNED = 60  # steps of each training; fewer are taken


def steps(call: Call) -> dict[str, Any]:
    """Return the milliseconds of a training step and those in which the device computes, by kind of step."""
    tiny = call.tiny
    shapes = [Size(16, 24, 2, 200, 10, 4)] if tiny else [Size(400, 1152, 3, *step) for step in _STEPS]
    timings: dict[str, Any] = {}
    profiles: list[str] = []
    for size in shapes:
        task = language_model_task(size, "bf16", _PLANNED)
        training = Training(task, Context(device=call.device, precision=torch.bfloat16))
        name = f"language model, {size.vocab_size} words, {size.batch_rows} x {size.bptt}, bf16"
        timings[name] = _timed(training, size.batch_rows * size.bptt, name, profiles, call)
        call.write(timings)
    documents, tokens = (6, 10) if tiny else (64, 300)
    for precision in ("bf16", "fp32"):
        dtype = PRECISIONS[precision]
        training = Training(
            _classifier_task(shapes[-1], documents, tokens, precision),
            Context(device=call.device, precision=dtype),
        )
        name = f"classifier, {documents} texts of {tokens}, {precision}"
        timings[name] = _timed(training, documents * tokens, name, profiles, call)
        call.write(timings)
    (call.arguments.out / "profile.txt").write_text("\n".join([*profiles, ""]), encoding="utf-8")
    return timings


def _classifier_task(size: Size, documents: int, tokens: int, precision: str) -> Task:
    encoder = encoder_of(size, precision)
    model = Classifier(encoder, 2, pooling="concat", head_hidden=50, head_dropout=(0.4, 0.1), bptt=70)
    groups = classifier_groups(model, layer_groups(encoder))
    count = documents * _PLANNED
    ids = np.random.default_rng(1).integers(4, size.vocab_size, count * tokens).astype(np.uint16)
    shard = TokenShard(
        tokens=ids, offsets=np.arange(count + 1) * tokens, labels=np.arange(count, dtype=np.int32) % 2,
        num_words=len(ids), num_bytes=len(ids),
    )  # fmt: skip
    form = TextForm(max_tokens=tokens, direction="forward", pad_id=0)
    batches = ClassifierBatches(
        shard, documents=np.arange(count), batch_documents=documents, form=form, seed=1
    )
    return Task(
        model=model,
        objective=Classification(
            model=model, batches=batches, validation=shard, validation_documents=np.arange(0), form=form,
            label_smoothing=0.0, seed=1,
        ),
        groups=groups,
        plan=make_plan(
            ADAMW, SCHEDULE, "full", num_groups=len(groups), num_steps=_PLANNED, steps_per_unfreezing=1
        ),
        optimizer=ADAMW,
        evaluation_steps=frozenset(),
    )  # fmt: skip


def _timed(
    training: Training, num_tokens: int, name: str, profiles: list[str], call: Call
) -> dict[str, float]:
    """Take steps without waiting for the device between them, then some more under torch's profiler."""
    num_steps = 2 if call.tiny else 30
    seconds_of_all(training.train_step, 2 if call.tiny else 8, call.device)
    seconds = seconds_of_all(training.train_step, num_steps, call.device) / num_steps
    profile = profile_of(training.train_step, call.device)
    profiles += [f"{name}: {1000 * seconds:.1f} ms a step, {num_tokens / seconds:,.0f} tokens a second"]
    profiles += _table(profile)
    return {
        "milliseconds": 1000 * seconds,
        "tokens_per_second": num_tokens / seconds,
        "milliseconds in which the device computes": profile.device_milliseconds,
        "launches": profile.launches,
    }


def _table(profile: Profile) -> list[str]:
    lines = []
    kernels = [(event.self_device_time_total, event) for event in profile.kernels]
    host = [(event.self_cpu_time_total, event) for event in profile.host_calls]
    for where, rows in (("device", kernels), ("host, profiled", host)):
        lines.append(f"  {where}: ms and calls a step")
        for micros, event in sorted(rows, key=lambda row: -row[0])[:14]:
            milliseconds, calls = micros / 1e3 / PROFILED_STEPS, event.count / PROFILED_STEPS
            lines.append(f"  {milliseconds:8.2f} {calls:8.0f}  {event.key[:70]}")
    return lines
