"""A stage of many trainings: which of them are still to be run, their runs in MLflow, what came of them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pipeline import identity
from pipeline.cluster import Cluster
from pipeline.launch import CurveRecorder, Session
from pipeline.params import Run, Trials
from pipeline.progress import counted
from pipeline.training.checkpoint import Checkpoint
from pipeline.trials import Trial, outcome_of, run_trials

log = logging.getLogger(__name__)


class Recording(Protocol):
    def open(self, resume_step: int) -> CurveRecorder: ...


class TrialRun(Protocol):
    """A trial's run in MLflow."""

    @property
    def run_id(self) -> str | None: ...

    def recorder(self, path: Path) -> Recording: ...

    def close(self, metrics: Mapping[str, Any], error: Exception | None) -> None: ...


@dataclass(frozen=True)
class Spec:
    """A trial to be: all that its outcome depends on, and how to make it."""

    name: str
    settings: Mapping[str, Any]
    inputs: tuple[str, ...]  # names of those of the stage that it reads
    build: Callable[[Session], Trial]  # refuses unusable input with a ValueError


@dataclass(frozen=True)
class Sweep:
    """What a stage of many trainings is given of the run around it."""

    run: Run
    room: Trials
    cluster: Cluster | None
    inputs: Mapping[str, str]  # name -> SHA-256
    code: str  # hash of what trials are made of
    places: Callable[[str], tuple[str, Path]]  # key -> folder in run.storage, file of the curve
    open_run: Callable[[str, str, Mapping[str, Any]], TrialRun]
    log_points: Callable[[Mapping[str, Mapping[int, float]]], None]

    def outcomes(self, specs: Sequence[Spec]) -> dict[str, Checkpoint | Exception]:
        """What came of each trial, by its name; where it failed, of what.

        Those with an outcome from an earlier time are not run again. All are built, and with that checked,
        before any is run. Raises ValueError for what cannot be run, or if none came to an end.
        """
        trials = {spec.name: spec.build(self._session(spec)) for spec in specs}
        missing = [spec for spec in specs if outcome_of(trials[spec.name]) is None]
        runs = {}
        for spec in missing:
            runs[spec.name] = self.open_run(spec.name, self._key(spec), spec.settings)
            trials[spec.name] = spec.build(self._session(spec, runs[spec.name]))
        failures: dict[str, Exception] = {}
        with counted(len(missing), "trials") as advance:

            def ended(trial: Trial, error: Exception | None) -> None:
                outcome = outcome_of(trial) if error is None else None
                runs.pop(trial.name).close(outcome.state if outcome else {}, error)
                if error is not None:
                    log.warning("%s failed: %s", trial.name, error)
                    failures[trial.name] = error
                advance()

            try:
                waiting = [trials[spec.name] for spec in missing]
                run_trials(waiting, self.run, self.room, self.cluster, f"{self.places('ray')[0]}", ended)
            except BaseException as stopped:
                for run in runs.values():
                    run.close({}, RuntimeError(f"stopped: {type(stopped).__name__}"))
                raise
        found = {name: failures.get(name) or outcome_of(trial) for name, trial in trials.items()}
        whole = {name: outcome for name, outcome in found.items() if outcome is not None}
        assert whole.keys() == trials.keys()
        if specs and len(failures) == len(specs):
            raise ValueError(
                f"none of {len(specs)} trials came to its end; {specs[0].name}: {failures[specs[0].name]}"
            )
        return whole

    def _key(self, spec: Spec) -> str:
        inputs = {name: self.inputs[name] for name in spec.inputs}
        settings = {"precision": self.run.precision, **spec.settings}
        return identity.run_key("trial", settings, inputs, self.code)

    def _session(self, spec: Spec, run: TrialRun | None = None) -> Session:
        key = self._key(spec)
        folder, records = self.places(key)
        if run is None:
            return Session(key=key, folder=folder, open_recorder=_no_recorder)
        return Session(key, folder, run.recorder(records).open, tracking_run=run.run_id)


def _no_recorder(resume_step: int) -> CurveRecorder:
    raise AssertionError("a trial that was only built to be checked does not train")
