"""Part `resume`: a run that is stopped and resumed ends bit for bit like an undisturbed one."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu_parts.call import Call
from benchmarks.gpu_parts.toy_tasks import FAMILIES, task_of
from pipeline.artifacts.checkpoint_store import CheckpointStore
from pipeline.training.context import Context
from pipeline.training.loop import train
from pipeline.training.precision import set_arithmetic


class _StoppedError(Exception):
    pass


def resume(call: Call) -> dict[str, Any]:
    """Return, by family, whether a run stopped half-way ends with the bits of an undisturbed one."""
    num_steps = 6 if call.tiny else 60
    by_family = call.earlier_figures()
    set_arithmetic(None, deterministic=True)
    try:
        for name in call.while_time_lasts(name for name in FAMILIES if name not in by_family):
            whole, resumed = (_end_of(name, call, num_steps, stops) for stops in ((), (num_steps // 2,)))
            assert whole.keys() == resumed.keys()
            different = [key for key in whole if not torch.equal(whole[key], resumed[key])]
            by_family[name] = {"bits are equal": not different, "different": different[:5]}
            call.write(by_family)
    finally:
        set_arithmetic(None, deterministic=False)
    return by_family


def _end_of(name: str, call: Call, num_steps: int, stops: tuple[int, ...]) -> dict[str, Tensor]:
    """Train to the end, interrupted after some steps, and return the tensors of the last checkpoint."""
    with tempfile.TemporaryDirectory() as folder:
        store = CheckpointStore(folder)
        for stop in (*stops, None):
            context = Context(
                device=call.device, precision=torch.bfloat16, store=store, log_steps=1,
                checkpoint_minutes=1e-9, report=_stopping_after(stop),
            )  # fmt: skip
            try:
                train(task_of(name, num_steps, torch.bfloat16), context)
            except _StoppedError:
                continue
        newest = store.newest()
        assert newest is not None
        return newest.tensors


def _stopping_after(stop: int | None) -> Callable[[Any], None]:
    count = Counter[str]()

    def report(metrics: Any) -> None:
        count["steps"] += 1
        if stop is not None and count["steps"] > stop:
            raise _StoppedError

    return report
