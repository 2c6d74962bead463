"""The one training loop.

It serves pretraining, language-model fine-tuning and classifier fine-tuning, in one process or many. It never
asks where it runs or what it trains: the task's objective gives the loss of a step, its plan the rates. The
context sums over workers and stores checkpoints and curves.
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
from models.objective import StepLoss
from pipeline.figures.cost import NOTHING_SPENT, Spent
from pipeline.training.checkpoint import Checkpoint, tensors_under
from pipeline.training.context import CURVE_FILE, Context, CurveRecorder, all_gather_rows
from pipeline.training.layout import layout_of
from pipeline.training.optim import (
    EarlyStop,
    NonMonotoneAverage,
    check_groups,
    make_optimizer,
    set_rates,
)
from pipeline.training.task import Task


def train(task: Task, context: Context) -> dict[str, float]:
    """Train to the end of the plan, from the newest checkpoint or from the start.

    Afterwards the model and the last checkpoint hold the finished weights: the average if NT-ASGD began one,
    those of the best evaluation if the task has patience. Returns the metrics of these weights.

    A training that learned nothing restarts from its initial weights at half the rates, as often as the task
    allows. Its steps count on, so each has its own draws and its own place on the curve.
    """
    training = Training(task, context)
    restored = training.restore()
    recorder = _recorder(context, restored) if context.is_first else None
    clock = _Clock()
    try:
        if training.step == 0:
            _record(context, recorder, 0, training.evaluate())
            if training.at_end:  # a plan without steps
                training.conclude()
                training.save(recorder)
        while not training.finished:
            training.train_step()
            with clock.stopped():
                evaluated = training.evaluate() if training.evaluation_is_due else {}
            due = training.step % context.log_steps == 0 or bool(evaluated) or training.at_end
            curve = training.curve(clock) if due else {}
            _record(context, recorder, training.step, curve | evaluated)
            if training.at_end:
                with clock.stopped():
                    training.conclude()
            if due and (
                training.finished
                or context.broadcast(clock.minutes_since_save() >= context.checkpoint_minutes)
            ):
                if recorder:
                    context.patiently("the training curve cannot be written", recorder.flush)
                training.save(recorder)
                clock.saved()
    finally:
        if recorder:
            recorder.close()
    return training.kept_metrics


def _recorder(context: Context, restored: Checkpoint | None) -> CurveRecorder:
    step, earlier = (restored.step, restored.extra_files.get(CURVE_FILE)) if restored else (-1, None)
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
    """Sums since the last record."""

    nats: Tensor | float = 0.0
    num_targets: int = 0
    num_tokens: int = 0


@dataclass
class Training:
    """The state of a run, as a checkpoint holds it."""

    task: Task
    context: Context
    step: int = 0  # optimizer steps done
    state: State = ()  # recurrent state of this worker's lanes
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    spent_before: Spent = NOTHING_SPENT  # by earlier processes
    restarts: int = 0  # how often the training began anew, because it had not taken off
    first_step: int = 0  # where it last began
    took_off: bool = True
    finished: bool = False

    def __post_init__(self) -> None:
        self.objective, self.plan = self.task.objective, self.task.plan
        self.model = self.task.model.to(self.context.device)
        self.layout = layout_of(self.model, self.context, self.objective.least_rows(self.context))
        placed = self.layout.place(self.model)
        self.groups = [[placed.get(weight, weight) for weight in group] for group in self.task.groups]
        check_groups(self.model, self.groups)
        self._averages = self.task.optimizer.kind == "nt_asgd"
        self._sums = _Sums()
        self._grad_norm = torch.zeros(())
        self._first_weights = {}
        if self.task.max_restarts:
            self._first_weights = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}
        self._begin()

    def _begin(self) -> None:
        self.optimizer = make_optimizer(self.task.optimizer, self.groups)
        self.average = NonMonotoneAverage(self.task.optimizer.nonmonotone_interval)
        self.early_stop = EarlyStop(self.task.patience)

    @property
    def _planned_step(self) -> int:
        """Steps done since the training last began."""
        return self.step - self.first_step

    @property
    def at_end(self) -> bool:
        return self._planned_step >= self.plan.num_steps or self.early_stop.due

    @property
    def evaluation_is_due(self) -> bool:
        return self._planned_step in self.task.evaluation_steps

    @property
    def kept_metrics(self) -> dict[str, float]:
        """The metrics of the evaluation whose weights are kept."""
        if not self.evaluations:
            return {}
        since = 0 if self.task.patience is None else self.early_stop.num_since
        metrics: dict[str, float] = self.evaluations[-1 - since]["metrics"]
        return metrics

    def train_step(self) -> StepLoss:
        """Run forward and backward, sum over workers, clip, update."""
        self.model.train()
        rates = self.plan.at(self._planned_step)
        self.layout.begin_step(self.optimizer, rates.lrs)
        self.optimizer.zero_grad()
        loss = self.objective.loss(self.step, self.state, self.context)
        loss.objective.backward()
        set_rates(self.optimizer, rates.lrs, loss.rate_scale)
        self.layout.end_backward(self.model, self.optimizer)
        self._grad_norm = self.layout.clip(self.model, self.task.optimizer.clip_norm or math.inf)
        self.optimizer.step()
        self.state = loss.state
        self.step += 1
        if self._averages:
            self.average.update(self.model)
        self._count(loss)
        return loss

    def _count(self, loss: StepLoss) -> None:
        self._sums.nats = self._sums.nats + loss.nats
        self._sums.num_targets += loss.num_targets
        self._sums.num_tokens += loss.num_tokens

    def curve(self, clock: _Clock) -> dict[str, float]:
        """Loss and speed since the last record, the last rates and the last gradient norm."""
        sums, self._sums = self._sums, _Sums()
        (nats,) = self.context.sum_numbers(float(sums.nats))
        loss = nats / sums.num_targets
        if not math.isfinite(loss):
            raise ValueError(
                f"the training loss is {loss} at step {self.step}: lower the section's optimizer.lr, "
                "or set optimizer.clip_norm"
            )
        rates = self.plan.at(self._planned_step - 1)
        curve = {
            "train/loss": loss,
            "train/grad_norm": float(self._grad_norm),
            "train/tokens_per_second": sums.num_tokens / clock.lap(),
            "train/progress": self._planned_step / self.plan.num_steps,
        }
        curve |= {f"lr/group_{group}": lr for group, lr in enumerate(rates.lrs)}
        return curve

    def evaluate(self) -> dict[str, float]:
        """Evaluate, with the averaged weights if averaging has begun, and remember the metrics."""
        self.model.eval()
        if self.average.started:
            self.average.swap(self.model)
        with self.layout.whole_model():
            metrics = self.objective.evaluate(self.context)
        if self.step > 0 and self.task.patience is not None:
            self.early_stop.observe(metrics[self.objective.watched], self.model)
        if self.average.started:
            self.average.swap(self.model)
        if self._averages and self.step > 0:
            self.average.observe(metrics[self.objective.watched])
        self.evaluations.append({"step": self.step, "metrics": metrics})
        return metrics

    def conclude(self) -> None:
        """Finish with the weights that are kept; or begin anew, if these did not take off."""
        if self.early_stop.weights:
            self.early_stop.restore(self.model)
        elif self.average.started:
            self.average.swap(self.model)
        with self.layout.whole_model():
            self.objective.finish(self.context)
            self.took_off = self.objective.took_off(self.context)
        if self.took_off or self.restarts == self.task.max_restarts:
            self.finished = True
            return
        self.restarts += 1
        self.first_step = self.step
        self.plan = self.plan.at_half_the_rates()
        self.layout.load(self.model, self._first_weights)
        self.state = ()
        self._begin()

    def save(self, recorder: CurveRecorder | None) -> None:
        """Publish a checkpoint; all workers take part, and rank 0 writes it."""
        lanes = self._gathered_lanes()
        spent = self._spent()
        tensors = self._tensors(lanes)
        if self.context.store is not None and self.context.is_first:
            state = self._json() | {"spent": spent.model_dump()}
            extra_files = self._curve_so_far(recorder.path if recorder else None)
            self.context.store.save(Checkpoint(self.step, tensors, state, extra_files))
        self.context.sum_numbers(0.0)  # barrier: the checkpoint exists before any worker continues

    def _curve_so_far(self, path: Path | None) -> dict[str, bytes]:
        if path is None:
            return {}
        return {CURVE_FILE: self.context.patiently("the training curve cannot be read", path.read_bytes)}

    def _gathered_lanes(self) -> list[Tensor]:
        rows, num_rows = self.objective.lanes(self.context)
        return [all_gather_rows(self.context, tensor, rows, num_rows) for tensor in self.state]

    def _spent(self) -> Spent:
        """This worker's wall-clock time and all workers' core and GPU time, in all attempts up to a save."""
        now = self.context.meter.spent()
        cores, gpus = self.context.sum_numbers(now.core_seconds, now.gpu_seconds)
        mine = Spent(seconds=now.seconds, core_seconds=cores, gpu_seconds=gpus)
        return mine + self.spent_before

    def _tensors(self, lanes: list[Tensor]) -> dict[str, Tensor]:
        """The whole tensors of a checkpoint; all workers gather them."""
        whole = self.layout.whole
        tensors = {f"model.{name}": whole(tensor) for name, tensor in self.model.state_dict().items()}
        tensors |= {f"average.{name}": whole(tensor) for name, tensor in self.average.weights.items()}
        tensors |= {f"best.{name}": whole(tensor) for name, tensor in self.early_stop.weights.items()}
        tensors |= {f"lanes.{number}": tensor for number, tensor in enumerate(lanes)}
        for name, parameter in self.model.named_parameters():
            for key, value in self.optimizer.state.get(parameter, {}).items():
                tensors[f"optimizer.{name}.{key}"] = whole(value, parameter)
        return tensors

    def _json(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "num_steps": self.first_step + self.plan.num_steps,
            "phase": self.plan.at(max(0, self._planned_step - 1)).phase,
            "finished": self.finished,
            "restarts": self.restarts,
            "first_step": self.first_step,
            "took_off": self.took_off,
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
        """Resume from the newest complete checkpoint, if there is one, and return it."""
        checkpoint = self.context.take_resume_point()
        if checkpoint is None:
            return None
        tensors, state = checkpoint.tensors, checkpoint.state
        self.step, self.evaluations = state["step"], state["evaluations"]
        self.spent_before, self.finished = Spent(**state["spent"]), state["finished"]
        self.restarts, self.first_step = state["restarts"], state["first_step"]
        self.took_off = state["took_off"]
        for _ in range(self.restarts):
            self.plan = self.plan.at_half_the_rates()
        self.layout.load(self.model, tensors_under(tensors, "model."))
        self._restore_optimizer(tensors_under(tensors, "optimizer."))
        self.average.losses = state["nonmonotone_losses"]
        self.average.num_averaged, self.average.started = state["num_averaged"], state["averaging"]
        self.average.weights = self._like_the_model(tensors_under(tensors, "average."))
        self.early_stop.weights = self._like_the_model(tensors_under(tensors, "best."))
        self.early_stop.num_since = state["evaluations_since_best"]
        if state["best_loss"] is not None:
            self.early_stop.loss = state["best_loss"]
        rows, _ = self.objective.lanes(self.context)
        lanes = tensors_under(tensors, "lanes.")
        self.state = tuple(lanes[str(number)][rows].to(self.context.device) for number in range(len(lanes)))
        return checkpoint

    def _like_the_model(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        ours = self.model.state_dict()
        return {name: self.layout.like(tensor, ours[name]) for name, tensor in tensors.items()}

    def _restore_optimizer(self, tensors: dict[str, Tensor]) -> None:
        for name, parameter in self.model.named_parameters():
            mine = tensors_under(tensors, f"{name}.")
            if mine:
                held = {key: self.layout.local_state(value, parameter) for key, value in mine.items()}
                self.optimizer.state[parameter] = held


class _Clock:
    def __init__(self) -> None:
        self._lap = self._save = time.monotonic()

    def lap(self) -> float:
        """Return the seconds since the last lap."""
        now = time.monotonic()
        seconds, self._lap = now - self._lap, now
        return max(seconds, 1e-9)

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Exclude the time of the block from the lap."""
        start = time.monotonic()
        yield
        self._lap += time.monotonic() - start

    def minutes_since_save(self) -> float:
        return (time.monotonic() - self._save) / 60

    def saved(self) -> None:
        self._save = time.monotonic()
