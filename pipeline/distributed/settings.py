"""Settings of `run`, `trials` and `tune` in params.yaml: where and how to run."""

from __future__ import annotations

import math
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
    max: Count

    @model_validator(mode="after")
    def _in_order(self) -> Workers:
        if self.min > self.max:
            raise ValueError(f"min is {self.min}, above max, which is {self.max}")
        return self


class Run(Section):
    """The section `run`. Only `seed` and `precision` may change a result by more than rounding."""

    seed: Seed
    workers: CountOrZero | Literal["auto"] | Workers  # 0: this process, without Ray
    threads_per_worker: Threads | Literal["auto"]
    device: Literal["auto", "cpu", "cuda"]
    precision: Precision  # auto: bf16 if it is measured to be faster
    micro_batch_rows: Count | None  # rows of a worker whose activations are held at once; null: all
    recompute_layers: bool  # transformers: keep a layer's input alone, and compute the layer twice
    compile: bool  # transformers: layers by torch.compile, which takes a minute to begin
    sharding: Literal["none", "full"]  # full: each worker holds a part of the parameters, for large models
    deterministic: bool  # only operations that repeat bit for bit; slower on a GPU
    headstarts: Annotated[list[str], Field(min_length=1), Distinct]  # names of those to train
    storage: str  # of checkpoints: local folder, NFS or s3://
    storage_wait_minutes: NonNegative  # how long to wait for a storage that is away or full
    checkpoint_minutes: Positive
    keep_checkpoints: Count
    log_steps: Count  # optimizer steps between two records of the training curve
    max_worker_failures: CountOrZero

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

    cpus: Count  # and as many threads
    gpus: Annotated[float, Field(ge=0, le=1)]  # with a fraction, trials share a GPU
    at_once: Count | None  # at most; null: as many as the cluster holds


class Range(Section):
    """The values of a setting that a search tries: from low to high, or from a list of choices."""

    low: float | int | None = None
    high: float | int | None = None
    log: bool = False
    steps: Annotated[int, Field(ge=2, le=1000)] = 3  # points in a grid
    choices: list[float | int | str | bool | None] | None = None

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

    def points(self) -> list[Any]:
        """The points of a grid: evenly spaced, or evenly in the logarithm."""
        if self.choices is not None:
            return list(self.choices)
        assert self.low is not None
        assert self.high is not None
        low, high = (math.log(end) if self.log else end for end in (self.low, self.high))
        shares = [step / (self.steps - 1) for step in range(self.steps)]
        found = [low + share * (high - low) for share in shares]
        found = [math.exp(each) for each in found] if self.log else found
        whole = isinstance(self.low, int) and isinstance(self.high, int)
        return sorted({round(each) for each in found}) if whole else found


class Tune(Section):
    headstart: str
    stage: Literal["finetune_lm", "finetune_classifier"]  # judged by the objective's measure, by error
    num_trials: CountOrZero  # 0: no search; also the limit on a grid's points
    search: Literal["optuna", "random", "grid"]
    seed: Seed
    workers: Count  # of a trial: 1, the trial itself trains; more, the trial is a Ray Train job
    labels: NumLabels | None  # train on so many, as sample_efficiency does; null: as the stage does
    evaluations: Count  # of a trial with `labels`
    grace: Annotated[float, Field(gt=0, le=1)] | None  # share of a training before it may be stopped
    reduction: Annotated[int, Field(ge=2, lt=2**31)]  # of so many trials one continues
    overrides: dict[Literal["finetune_lm", "finetune_classifier"], dict[str, Any]]  # not with labels
    # Laid over the family's space, by key of the head start, as in finetune_lm.optimizer.lr; null takes a key
    # out. Those that the stage's trials do not read are ignored.
    space: dict[str, Range | None]

    @property
    def ranges(self) -> dict[str, Range]:
        return {key: each for key, each in self.space.items() if each is not None}

    @model_validator(mode="after")
    def _labels_need_a_classifier(self) -> Tune:
        if self.labels is not None and self.stage != "finetune_classifier":
            raise ValueError(f"labels is {self.labels}, but {self.stage} reads none; set it to null")
        return self
