"""Settings of `run`, `trials` and `tune` in params.yaml: where and how to run."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, field_validator, model_validator

from pipeline.settings.section import (
    Count,
    CountOrZero,
    Distinct,
    NonNegative,
    NumLabels,
    Positive,
    Precision,
    Section,
    Seed,
    Threads,
)
from pipeline.storage.patience import patiently

T = TypeVar("T")


class Workers(Section):
    """A range of workers: as many run as fit the cluster, while nodes come and go."""

    min: Count
    """Fewest workers that a training starts or continues with."""
    max: Count
    """Most workers of a training."""

    @model_validator(mode="after")
    def _in_order(self) -> Workers:
        if self.min > self.max:
            raise ValueError(f"min is {self.min}, above max, which is {self.max}")
        return self


class Run(Section):
    """The section `run`. Only `seed` and `precision` may change a result by more than rounding."""

    seed: Seed = 42
    """Seed of all random draws."""
    workers: CountOrZero | Literal["auto"] | Workers = 1
    """Ray Train workers; 0: this process, without Ray; auto: what the cluster offers; {min: 2, max: 8}."""
    threads_per_worker: Threads | Literal["auto"] = "auto"
    """Threads of each worker; auto: its share of the CPUs."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device: cpu or cuda; auto: a GPU if there is one."""
    precision: Precision = "auto"
    """Precision of matrix products: fp32 or bf16; auto: bf16 where it was measured to be faster."""
    micro_batch_rows: Count | None = None
    """Rows of a worker whose activations are held at once: less memory, more time; null: all."""
    recompute_layers: bool = False
    """Transformers: recompute layers in the backward pass, which saves memory for a third more time."""
    compile: bool = False
    """Transformers: compile layers by torch.compile; slower where it was measured (reports/gpu)."""
    sharding: Literal["none", "full"] = "none"
    """full: each worker holds a part of the parameters, for models larger than a device; or none."""
    deterministic: bool = False
    """Allow only operations that repeat bit for bit; slower on a GPU, no change on a CPU."""
    headstarts: Annotated[list[str], Field(min_length=1), Distinct]
    """Names in `headstarts`, in the order in which they are trained."""
    storage: str = ".headstart/runs"
    """Storage of checkpoints: a folder, NFS, or s3://bucket/folder."""
    storage_wait_minutes: NonNegative = 5.0
    """Minutes to wait for a storage that is away or full; then the run stops."""
    checkpoint_minutes: Positive = 1.0
    """Minutes between checkpoints."""
    keep_checkpoints: Count = 2
    """Checkpoints of a run to keep."""
    log_steps: Count = 20
    """Optimizer steps between two records of the training curve."""
    max_worker_failures: CountOrZero = 2
    """Restarts of a training whose worker died; then the run fails."""

    def patiently(self, what: str, action: Callable[[], T]) -> T:
        """Run an action on the storage, waiting while that is away or full; `what` begins the error.

        Raises StorageError.
        """
        return patiently(action, minutes=self.storage_wait_minutes, what=what)

    @model_validator(mode="after")
    def _parts_fit_together(self) -> Run:
        if self.sharding == "full" and self.micro_batch_rows is not None:
            raise ValueError(
                "sharding is full and micro_batch_rows is set, but workers that gather parameters together "
                "need equally many parts; set micro_batch_rows to null"
            )
        return self

    @field_validator("storage")
    @classmethod
    def _storage_is_a_folder_of_its_own(cls, storage: str) -> str:
        """Refuse the root of a file system: `headstart gc` removes files in the storage."""
        scheme, _, rest = storage.rpartition("://")
        if scheme == "s3":
            name = rest.partition("/")[0].rpartition("@")[2].partition("?")[0]
        else:
            name = rest.strip() and os.path.normpath(rest).strip("/")
        if not name:
            raise ValueError("give a folder of its own, or s3://bucket/folder")
        return storage


class Trials(Section):
    """The resources of each training of `tune`, `sample_efficiency`, `ablate` or `scaling`.

    A trial is one process; in `tune` it may have several workers (`tune.workers`), with these resources each.
    """

    cpus: Count = 1
    """CPUs of a trial, and its threads."""
    gpus: Annotated[float, Field(ge=0, le=1)] = 0.0
    """GPUs of a trial; with a fraction, trials share one."""
    at_once: Count | None = None
    """Most trials at a time; null: as many as the cluster holds."""


class Range(Section):
    """The values of a setting that a search tries: from low to high, or from a list of choices."""

    low: float | int | None = None
    """Lowest value."""
    high: float | int | None = None
    """Highest value."""
    log: bool = False
    """Draw evenly in the logarithm."""
    steps: Annotated[int, Field(ge=2, le=1000)] = 3
    """Points of a grid."""
    choices: list[float | int | str | bool | None] | None = None
    """Values to choose from, instead of low and high."""

    @model_validator(mode="after")
    def _not_empty(self) -> Range:
        if self.choices is not None:
            if not self.choices or self.low is not None or self.high is not None:
                raise ValueError("give choices, at least one, or low and high")
        elif self.low is None or self.high is None or self.low >= self.high:
            raise ValueError(f"the range from {self.low} to {self.high} is empty; low must be below high")
        elif self.log and self.low <= 0:
            raise ValueError(f"a logarithmic range begins above 0, not at {self.low}")
        return self


class Tune(Section):
    """The search for better settings of one stage of one head start."""

    headstart: str = "ulmfit"
    """Head start whose settings are searched."""
    stage: Literal["finetune_lm", "finetune_classifier"] = "finetune_classifier"
    """finetune_classifier (by validation error), or finetune_lm (by its loss in the objective's measure)."""
    num_trials: CountOrZero = 0
    """Trials, and most points of a grid; 0: no search."""
    search: Literal["optuna", "random", "grid"] = "optuna"
    """Search: optuna (TPE), random, or grid (which tries every point)."""
    seed: Seed = 1
    """Seed of the search."""
    workers: Count = 1
    """Workers of a trial; above 1 it is a Ray Train job whose workers have trials.cpus and .gpus each."""
    labels: NumLabels | None = None
    """Labels to train on, with `few_labels`, as on the label curve; null: as the stage does."""
    evaluations: Count = 10
    """Evaluations of a trial with `labels`."""
    grace: Annotated[float, Field(gt=0, le=1)] | None = 0.25
    """Fraction of a training before ASHA may stop it; null: never."""
    reduction: Annotated[int, Field(ge=2, lt=2**31)] = 2
    """ASHA keeps one in this many trials."""
    overrides: dict[Literal["finetune_lm", "finetune_classifier"], dict[str, Any]] = {
        "finetune_lm": {"epochs": 0.2, "evaluations_per_epoch": 20},
        "finetune_classifier": {"max_labels": 2000, "epochs": 6.0, "batch_rows": 32},
    }
    """Laid over the stage's own section, in trials alone; not with labels."""
    space: dict[str, Range | None] = {}
    """Ranges by key, laid over the family's: finetune_lm.dropout: {low, high, log, steps} or {choices}."""

    @property
    def ranges(self) -> dict[str, Range]:
        return {key: bounds for key, bounds in self.space.items() if bounds is not None}

    @model_validator(mode="after")
    def _labels_need_a_classifier(self) -> Tune:
        if self.labels is not None and self.stage != "finetune_classifier":
            raise ValueError(f"labels is {self.labels}, but {self.stage} reads none; set it to null")
        return self
