"""A stage of many trainings: which of them are still to be run, their runs in MLflow, what came of them."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from pipeline import identity
from pipeline.cluster import Cluster
from pipeline.inputs import EVERYWHERE
from pipeline.launch import Session, published_for
from pipeline.lease import Fence, Process
from pipeline.params import Run, Trials
from pipeline.progress import counted
from pipeline.storage import open_storage, patiently
from pipeline.training.checkpoint import Checkpoint
from pipeline.training.context import CurveRecorder, no_recorder
from pipeline.trials import Terms, Trial, outcome_of, planned, run_trials

log = logging.getLogger(__name__)

_ALL_STEPS = 2**62  # more than any training has


class Recording(Protocol):
    def open(self, resume_step: int, earlier: bytes | None = None) -> CurveRecorder: ...


class TrialRun(Protocol):
    """A trial's run in MLflow."""

    @property
    def run_id(self) -> str | None: ...

    def recorder(self, path: Path) -> Recording: ...

    def close(self, metrics: Mapping[str, Any], failure: str = "") -> None: ...


@dataclass(frozen=True)
class Spec:
    """A trial to be: all that its outcome depends on, and how to make it."""

    name: str
    settings: Mapping[str, Any]
    inputs: tuple[str, ...]  # names of those of the stage that it reads
    build: Callable[[Session], Trial]  # refuses unusable input with a ValueError


Places = Callable[[str], tuple[str, Path]]  # key -> folder in run.storage, file of the curve


@dataclass(frozen=True)
class Keys:
    """The identities of trials that differ in some values. Crosses over to other processes."""

    common: Mapping[str, Any]
    inputs: Mapping[str, str]
    code: str
    places: Places
    owner: Process  # the stage

    def of(self, values: Mapping[str, Any]) -> str:
        return identity.run_key("trial", {**self.common, **values}, self.inputs, self.code)

    def session(self, values: Mapping[str, Any]) -> Session:
        """Without a recorder: a search records what its trials report."""
        key = self.of(values)
        return Session(key, self.places(key)[0], no_recorder, owner=self.owner)


@dataclass(frozen=True)
class Sweep:
    """What a stage of many trainings is given of the run around it."""

    run: Run
    room: Trials
    cluster: Cluster | None
    folder: str  # of this stage's run, in run.storage
    inputs: Mapping[str, str]  # name -> SHA-256
    code: str  # hash of what trials are made of
    places: Places
    owner: Process  # the stage's: without it, trials are orphans
    fence: Fence  # of the lease that the stage holds
    open_run: Callable[[str, str, Mapping[str, Any]], TrialRun]
    settle_run: Callable[[str, str, Path, Mapping[str, Any]], None]
    log_points: Callable[[Mapping[str, Mapping[int, float]]], None]

    @property
    def key(self) -> str:
        """Of this stage's run. Stands in its metrics, by which `headstart gc` knows what a revision needs."""
        return self.folder.rpartition("/")[2]

    def note(self, keys: Iterable[str]) -> None:
        """Write down which trials this stage reads: they are kept for as long as its own run is."""
        storage = open_storage(self.folder)

        def add() -> None:
            known = set(json.loads(storage.read(identity.TRIALS_FILE) or b"[]"))
            if not known.issuperset(keys):
                storage.write(identity.TRIALS_FILE, json.dumps(sorted({*known, *keys}), indent=0).encode())

        what = f"{self.folder}/{identity.TRIALS_FILE} cannot be written"
        patiently(add, minutes=self.run.storage_wait_minutes, what=what, warn=log.warning)

    def outcomes(self, specs: Sequence[Spec]) -> dict[str, Checkpoint | Exception]:
        """What came of each trial, by its name; where it failed, of what.

        Those with an outcome from an earlier time are not run again. All are built, and with that checked,
        before any is run. Raises ValueError for what cannot be run, or if none came to an end.
        """
        trials = {spec.name: spec.build(self._session(spec)) for spec in specs}
        self.note([self._key(spec) for spec in specs])  # before any is taken for granted
        missing = []
        for spec in specs:
            outcome = self._outcome(trials[spec.name])
            if outcome is None:
                missing.append(spec)
            else:
                self.settle_run(spec.name, self._key(spec), self.places(self._key(spec))[1], outcome.state)
        failures = self._run(trials, missing) if missing else {}
        found = {name: failures.get(name) or self._outcome(trial) for name, trial in trials.items()}
        whole = {name: outcome for name, outcome in found.items() if outcome is not None}
        assert whole.keys() == trials.keys()
        if specs and len(failures) == len(specs):
            name, failure = next(iter(failures.items()))
            raise ValueError(f"none of {len(specs)} trials came to its end; {name}: {failure}")
        return whole

    def _run(self, trials: dict[str, Trial], missing: Sequence[Spec]) -> dict[str, Exception]:
        """Run the missing ones, each with a run in MLflow; returns what failed."""
        runs: dict[str, TrialRun] = {}
        failures: dict[str, Exception] = {}
        with contextlib.ExitStack() as stack:
            at_once, cluster = stack.enter_context(planned(self.run, self.room, self.cluster))
            stack.enter_context(_closed_at_the_end(runs))
            for spec in missing:
                runs[spec.name] = self.open_run(spec.name, self._key(spec), spec.settings)
                trials[spec.name] = spec.build(self._session(spec, runs[spec.name]))
            advance = stack.enter_context(counted(len(missing), "trials"))

            def ended(trial: Trial, error: Exception | None) -> None:
                outcome = self._outcome(trial) if error is None else None
                runs.pop(trial.name).close(outcome.state if outcome else {}, str(error or ""))
                if error is not None:
                    log.warning("%s failed: %s", trial.name, error)
                    failures[trial.name] = error
                advance()

            waiting = [trials[spec.name] for spec in missing]
            storage = self.folder.rpartition("/")[0]
            inputs = published_for(cluster, storage, waiting, self.run) if cluster else EVERYWHERE
            terms = Terms(self.run, self.room, self.owner)
            run_trials(waiting, terms, at_once, self.folder, ended, inputs)
        return failures

    def _outcome(self, trial: Trial) -> Checkpoint | None:
        """Where the storage is away, so is the stage's lease: its trials have not lost their outcomes."""
        return outcome_of(trial, self.run, self.fence.check)

    def keys(self, settings: Mapping[str, Any], inputs: Sequence[str]) -> Keys:
        """Of trials that read these inputs and have these settings in common."""
        common = {"precision": self.run.precision, **settings}
        return Keys(common, {name: self.inputs[name] for name in inputs}, self.code, self.places, self.owner)

    def _key(self, spec: Spec) -> str:
        return self.keys(spec.settings, spec.inputs).of({})

    def _session(self, spec: Spec, run: TrialRun | None = None) -> Session:
        key = self._key(spec)
        folder, records = self.places(key)
        if run is None:  # only to be checked
            return Session(key, folder, no_recorder)
        recorder = run.recorder(records).open
        return Session(key, folder, recorder, tracking_run=run.run_id, owner=self.owner)


@contextlib.contextmanager
def _closed_at_the_end(runs: Mapping[str, TrialRun]) -> Iterator[None]:
    """Those that are still open when something stops the block did not end by themselves."""
    try:
        yield
    except BaseException as stopped:
        for run in runs.values():
            run.close({}, f"stopped: {type(stopped).__name__}")
        raise


@dataclass
class SearchRuns:
    """The runs of a search's trials in MLflow: opened and written to as Tune tells of them."""

    sweep: Sweep
    measure: str
    keys: Keys
    advance: Callable[[], None]
    _open: dict[str, tuple[TrialRun, CurveRecorder]] = field(default_factory=dict)

    def started(self, name: str, values: Mapping[str, Any]) -> None:
        if name in self._open:  # paused, and taken up again
            return
        key = self.keys.of(values)
        self.sweep.note([key])
        run = self.sweep.open_run(f"trial {name}", key, values)
        # The file may hold what an attempt that was killed had reported; replays are left out.
        recorder = run.recorder(self.sweep.places(key)[1]).open(_ALL_STEPS)
        self._open[name] = (run, recorder)

    def reported(self, name: str, percent: float, metrics: Mapping[str, float]) -> None:
        self._open[name][1].record(round(percent), metrics)

    def ended(self, name: str, value: float | None, failure: str) -> None:
        run, recorder = self._open.pop(name)
        recorder.close()
        figures = {} if value is None else {self.measure: value}
        run.close(figures, failure)
        if failure:
            log.warning("trial %s failed: %s", name, failure)
        self.advance()

    def close(self) -> None:
        for name in list(self._open):
            self.ended(name, None, "stopped")


@contextlib.contextmanager
def search_runs(sweep: Sweep, measure: str, keys: Keys, num_trials: int) -> Iterator[SearchRuns]:
    """Whatever ends the search, no run is left open."""
    with counted(num_trials, "trials") as advance:
        runs = SearchRuns(sweep, measure, keys, advance)
        try:
            yield runs
        finally:
            runs.close()
