"""The one training loop.

It serves pretraining, language-model fine-tuning and classifier fine-tuning; one process or many. It
never asks where it runs or what it trains: the task says what a step's loss is and which rates hold,
the context how to sum over workers and where checkpoints and curves go.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from models.family import State
from pipeline.cost import Cost, total
from pipeline.training.checkpoint import Checkpoint
from pipeline.training.context import CURVE_FILE, Context, CurveRecorder, all_gather_rows
from pipeline.training.objectives import StepLoss, Task
from pipeline.training.optim import (
    EarlyStop,
    NonMonotoneAverage,
    check_groups,
    freeze,
    make_optimizer,
    set_rates,
)


def train(task: Task, context: Context) -> dict[str, float]:
    """Train from the newest checkpoint, or the start, to the end of the plan.

    When it returns, the model holds the finished weights (the average, if NT-ASGD began one; those of the
    best evaluation, if the task has patience), and so does the last checkpoint. Returns their metrics.
    """
    training = Training(task, context)
    restored = training.restore()
    recorder = _recorder(context, restored) if context.is_first else None
    clock = _Clock()
    try:
        if training.step == 0:
            _record(context, recorder, 0, training.evaluate())
        while not training.finished:
            training.train_step()
            with clock.stopped():
                evaluated = training.evaluate() if training.step in task.evaluation_steps else {}
            finished = training.finished
            due = training.step % context.log_steps == 0 or bool(evaluated) or finished
            curve = training.curve(clock) if due else {}
            _record(context, recorder, training.step, curve | evaluated)
            if due and (finished or context.agreed(clock.minutes_since_save() >= context.checkpoint_minutes)):
                if recorder:
                    context.patiently("the training curve cannot be written", recorder.flush)
                training.save(finished, recorder)
                clock.saved()
    finally:
        if recorder:
            recorder.close()
    return training.kept_metrics


def _recorder(context: Context, restored: Checkpoint | None) -> CurveRecorder:
    step, earlier = (restored.step, restored.beside.get(CURVE_FILE)) if restored else (-1, None)
    return context.patiently(
        "the training curve cannot be opened", lambda: context.open_recorder(step, earlier)
    )


def _record(
    context: Context, recorder: CurveRecorder | None, step: int, metrics: Mapping[str, float]
) -> None:
    if not metrics:
        return
    if recorder:
        context.patiently("the training curve cannot be written", lambda: recorder.record(step, metrics))
    context.report(metrics)


@dataclass
class _Sums:
    """Since the last record."""

    nats: Tensor | float = 0.0
    num_targets: int = 0
    num_tokens: int = 0


@dataclass
class Training:
    """The state of a run: all that a checkpoint holds."""

    task: Task
    context: Context
    step: int = 0  # optimizer steps done
    state: State = ()  # recurrent state of this worker's lanes
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    spent_before: dict[str, float] = field(default_factory=dict)  # by attempts that were cut short

    def __post_init__(self) -> None:
        self.model = self.task.model.to(self.context.device)
        check_groups(self.model, self.task.groups)
        self.optimizer = make_optimizer(self.task.optimizer, self.task.groups)
        self.average = NonMonotoneAverage(self.task.optimizer.nonmonotone_interval)
        self._averages = self.task.optimizer.kind == "nt_asgd"
        self.early_stop = EarlyStop(self.task.patience)
        self._sums = _Sums()
        self._grad_norm = torch.zeros(())
        self._cost = Cost(gpu=self.context.device.type == "cuda")

    @property
    def finished(self) -> bool:
        return self.step >= self.task.plan.num_steps or self.early_stop.due

    @property
    def kept_metrics(self) -> dict[str, float]:
        """Of the evaluation whose weights are kept."""
        if not self.evaluations:
            return {}
        since = 0 if self.task.patience is None else self.early_stop.num_since
        metrics: dict[str, float] = self.evaluations[-1 - since]["metrics"]
        return metrics

    def train_step(self) -> StepLoss:
        """Forward, backward, sum over workers, clip, update."""
        self.model.train()
        rates = self.task.plan.at(self.step)
        freeze(self.optimizer, rates.lrs)
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.task.loss(self.step, self.state, self.context)
        loss.objective.backward()
        set_rates(self.optimizer, rates.lrs, loss.rate_scale)
        self.context.sum_gradients(self.model.parameters())
        self._grad_norm = self._clip()
        self.optimizer.step()
        self.state = loss.state
        self.step += 1
        if self._averages:
            self.average.update(self.model)
        self._count(loss)
        return loss

    def _clip(self) -> Tensor:
        """Clip the gradient's global norm in place; returns it as it was."""
        limit = self.task.optimizer.clip_norm or math.inf
        return torch.nn.utils.clip_grad_norm_(self.model.parameters(), limit)

    def _count(self, loss: StepLoss) -> None:
        self._sums.nats = self._sums.nats + loss.nats
        self._sums.num_targets += loss.num_targets
        self._sums.num_tokens += loss.num_tokens

    def curve(self, clock: _Clock) -> dict[str, float]:
        """What to record since the last record: losses, rates as used, gradient norm, speed."""
        sums, self._sums = self._sums, _Sums()
        (nats,) = self.context.sum_numbers(float(sums.nats))
        loss = nats / sums.num_targets
        if not math.isfinite(loss):
            raise ValueError(
                f"the training loss is {loss} at step {self.step}: lower the section's optimizer.lr, "
                "or set optimizer.clip_norm"
            )
        rates = self.task.plan.at(self.step - 1)
        curve = {
            "train/loss": loss,
            "train/grad_norm": float(self._grad_norm),
            "train/tokens_per_second": sums.num_tokens / clock.lap(),
            "train/progress": self.step / self.task.plan.num_steps,
        }
        curve |= {f"lr/group_{group}": lr for group, lr in enumerate(rates.lrs)}
        return curve

    def evaluate(self) -> dict[str, float]:
        """Evaluate, with the averaged weights where there are some, and take note of it."""
        self.model.eval()
        if self.average.started:
            self.average.exchange(self.model)
        metrics = self.task.evaluate(self.context)
        if self.step > 0 and self.task.patience is not None:
            self.early_stop.observe(metrics[self.task.watched], self.model)
        if self.average.started:
            self.average.exchange(self.model)
        if self._averages and self.step > 0:
            self.average.observe(metrics[self.task.watched])
        self.evaluations.append({"step": self.step, "metrics": metrics})
        return metrics

    def save(self, finished: bool, recorder: CurveRecorder | None) -> None:
        """Publish a checkpoint; all workers take part, rank 0 writes."""
        if finished and self.early_stop.weights:
            self.early_stop.restore(self.model)
        elif finished and self.average.started:
            self.average.exchange(self.model)
        lanes = self._gathered_lanes()
        spent = self._spent()
        if self.context.store is not None and self.context.is_first:
            state = self._json(finished) | {"spent": spent}
            beside = self._curve_so_far(recorder.path if recorder else None)
            self.context.store.save(Checkpoint(self.step, self._tensors(lanes), state, beside))
        self.context.sum_numbers(0.0)  # nobody goes on before it is there

    def _curve_so_far(self, path: Path | None) -> dict[str, bytes]:
        if path is None:
            return {}
        return {CURVE_FILE: self.context.patiently("the training curve cannot be read", path.read_bytes)}

    def _gathered_lanes(self) -> list[Tensor]:
        rows, num_rows = self.task.lanes(self.context)
        return [all_gather_rows(self.context, tensor, rows, num_rows) for tensor in self.state]

    def _spent(self) -> dict[str, float]:
        """By this worker's clock, of all workers' cores and GPUs; of all attempts, up to their last saves."""
        now = self._cost.spent()
        cores, gpus = self.context.sum_numbers(now["core_seconds"], now["gpu_seconds"])
        mine = {"seconds": now["seconds"], "core_seconds": cores, "gpu_seconds": gpus}
        return total(mine, self.spent_before) if self.spent_before else mine

    def _tensors(self, lanes: list[Tensor]) -> dict[str, Tensor]:
        tensors = {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
        tensors |= {f"average.{name}": tensor for name, tensor in self.average.weights.items()}
        tensors |= {f"best.{name}": tensor for name, tensor in self.early_stop.weights.items()}
        tensors |= {f"lanes.{number}": tensor for number, tensor in enumerate(lanes)}
        for name, parameter in self.model.named_parameters():
            for key, value in self.optimizer.state.get(parameter, {}).items():
                if isinstance(value, Tensor):
                    tensors[f"optimizer.{name}.{key}"] = value
        return tensors

    def _json(self, finished: bool) -> dict[str, Any]:
        return {
            "step": self.step,
            "num_steps": self.task.plan.num_steps,
            "phase": self.task.plan.at(max(0, self.step - 1)).phase,
            "finished": finished,
            "evaluations": self.evaluations,
            "kept_metrics": self.kept_metrics,
            "best_loss": self.early_stop.loss if self.early_stop.weights else None,
            "evaluations_since_best": self.early_stop.num_since,
            "nonmonotone_losses": self.average.losses,
            "num_averaged": self.average.num_averaged,
            "averaging": self.average.started,
            "precision": str(self.context.precision).removeprefix("torch."),
            **self.context.facts,
        }

    def restore(self) -> Checkpoint | None:
        """Go on from the newest checkpoint that is whole; returns it, if there was one."""
        checkpoint = self.context.take_begun()
        if checkpoint is None:
            return None
        tensors, state = checkpoint.tensors, checkpoint.state
        self.step, self.evaluations = state["step"], state["evaluations"]
        self.spent_before = state["spent"]
        self.model.load_state_dict(_part(tensors, "model."))
        self._restore_optimizer(_part(tensors, "optimizer."))
        self.average.losses = state["nonmonotone_losses"]
        self.average.num_averaged, self.average.started = state["num_averaged"], state["averaging"]
        device = self.context.device
        self.average.weights = {k: v.to(device) for k, v in _part(tensors, "average.").items()}
        self.early_stop.weights = {k: v.to(device) for k, v in _part(tensors, "best.").items()}
        self.early_stop.num_since = state["evaluations_since_best"]
        if state["best_loss"] is not None:
            self.early_stop.loss = state["best_loss"]
        rows, _ = self.task.lanes(self.context)
        lanes = _part(tensors, "lanes.")
        self.state = tuple(lanes[str(number)][rows].to(device) for number in range(len(lanes)))
        return checkpoint

    def _restore_optimizer(self, tensors: dict[str, Tensor]) -> None:
        for name, parameter in self.model.named_parameters():
            mine = _part(tensors, f"{name}.")
            if mine:
                # AdamW keeps its step count on the CPU unless it is fused on the device.
                self.optimizer.state[parameter] = {k: v.to(parameter.device) for k, v in mine.items()}


class _Clock:
    def __init__(self) -> None:
        self._lap = self._save = time.monotonic()

    def lap(self) -> float:
        """Seconds since the last lap."""
        now = time.monotonic()
        seconds, self._lap = now - self._lap, now
        return max(seconds, 1e-9)

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Laps go on without the time of the block."""
        start = time.monotonic()
        yield
        self._lap += time.monotonic() - start

    def minutes_since_save(self) -> float:
        return (time.monotonic() - self._save) / 60

    def saved(self) -> None:
        self._save = time.monotonic()


def _part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
