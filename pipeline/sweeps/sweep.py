"""A stage of many trainings: which trials are still missing, their MLflow runs, their outcomes."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol, Self

from pipeline.distributed.cluster import Cluster
from pipeline.distributed.session import Session
from pipeline.distributed.settings import Run, Trials
from pipeline.distributed.trials import Trial, TrialSetup, outcome_of, trial_runner
from pipeline.identity.key import TRIALS_FILE, run_key
from pipeline.machine.process_identity import ProcessIdentity
from pipeline.storage.address import open_storage
from pipeline.storage.lease import Fence
from pipeline.storage.run_place import RunPlace
from pipeline.terminal.progress import counted
from pipeline.tracking.runs import OpenRun
from pipeline.training.checkpoint import Checkpoint
from pipeline.training.context import CurveRecorder, no_recorder

log = logging.getLogger(__name__)

_ALL_STEPS = 2**62  # more than any training has


class SweepTrial(Trial, Protocol):
    """A trial whose curve can be recorded."""

    def recorded(self, session: Session) -> Trial:
        """The same trial with another session, whose recorder writes its curve."""


@dataclass(frozen=True)
class Spec:
    """A trial to run: everything that its outcome depends on, and how to build it."""

    name: str
    settings: Mapping[str, object]
    inputs: tuple[str, ...]  # what it reads of the stage's inputs: a flag, and a path below it
    build: Callable[[Session], SweepTrial]  # raises ValueError for unusable input
    family: str | None = None  # of the model that it trains; its code counts


PlaceOf = Callable[[str], RunPlace]  # of runs, by key


@dataclass(frozen=True)
class Keys:
    """The keys of trials that differ in some values. Sent to other processes."""

    common: Mapping[str, object]
    inputs: Mapping[str, str]
    code: str
    place_of: PlaceOf
    owner: ProcessIdentity  # the stage

    def of(self, values: Mapping[str, object]) -> str:
        return run_key("trial", {**self.common, **values}, self.inputs, self.code)

    def session(self, values: Mapping[str, object]) -> Session:
        """A session without a recorder."""
        key = self.of(values)
        return Session(key, self.place_of(key).folder, no_recorder, owner=self.owner)


@dataclass(frozen=True)
class Sweep:
    """The run of a stage that consists of many trainings."""

    run: Run
    resources: Trials
    cluster: Cluster | None  # None: trials run in this process
    folder: str  # of this stage's run, in run.storage
    hash_of: Callable[[str], str]  # SHA-256 of what a trial reads
    code_of: Callable[[str | None], str]  # fingerprint of the code of trials, by family
    place_of: PlaceOf
    owner: ProcessIdentity  # the stage: without it, trials are orphans
    fence: Fence  # of the lease that the stage holds
    run_of: Callable[[str, str, Mapping[str, object]], OpenRun]  # not yet open
    begin_run: Callable[[OpenRun], None]
    settle_run: Callable[[str, str, Path, Mapping[str, object]], None]
    log_points: Callable[[Mapping[str, Mapping[int, float]]], None]

    @property
    def key(self) -> str:
        """The key of this stage's run. It is in the stage's metrics, where `headstart gc` finds it."""
        return self.folder.rpartition("/")[2]

    def retain(self, keys: Iterable[str]) -> None:
        """Keep these trials as long as this stage's run, which reads them."""
        storage = open_storage(self.folder)

        def add() -> None:
            known = set(json.loads(storage.read(TRIALS_FILE) or b"[]"))
            if not known.issuperset(keys):
                storage.write(TRIALS_FILE, json.dumps(sorted({*known, *keys}), indent=0).encode())

        self.run.patiently(f"{self.folder}/{TRIALS_FILE} cannot be written", add)

    def outcomes(self, specs: Sequence[Spec]) -> dict[str, Checkpoint | Exception]:
        """The outcome of each trial by name, or the error that it failed with.

        Trials with an outcome from an earlier run are not run again. All are built, which checks them, before
        the first one runs. Raises ValueError for unusable input, or if all trials fail.
        """
        sessions = {spec.name: self.keys_of(spec).session({}) for spec in specs}
        trials = {spec.name: spec.build(sessions[spec.name]) for spec in specs}
        self.retain([session.key for session in sessions.values()])  # before any outcome is relied on
        outcomes: dict[str, Checkpoint | Exception] = {}
        for name, trial in trials.items():
            outcome = self._outcome(trial)
            if outcome is not None:
                key = sessions[name].key
                self.settle_run(name, key, self.place_of(key).curve, outcome.state)
                outcomes[name] = outcome
        missing = [spec for spec in specs if spec.name not in outcomes]
        if missing:
            self._run(trials, sessions, missing, outcomes)
        assert outcomes.keys() == trials.keys()
        failures = [name for name, outcome in outcomes.items() if isinstance(outcome, Exception)]
        if failures and len(failures) == len(outcomes):
            raise ValueError(f"all {len(failures)} trials failed; {failures[0]}: {outcomes[failures[0]]}")
        return outcomes

    def _run(
        self,
        trials: Mapping[str, SweepTrial],
        sessions: Mapping[str, Session],
        missing: Sequence[Spec],
        outcomes: dict[str, Checkpoint | Exception],
    ) -> None:
        """Run the missing trials, each with an MLflow run, and add to `outcomes` how they end."""
        runs: dict[str, OpenRun] = {}
        waiting: list[Trial] = []
        setup = TrialSetup(self.run, self.resources, self.owner)
        with (
            trial_runner(setup, self.cluster, self.folder) as run_trials,
            counted(len(missing), "trials") as advance,
        ):

            def on_begin(trial: Trial) -> None:
                if not runs[trial.name].has_begun:  # else it was lost, and is retried
                    self.begin_run(runs[trial.name])

            def on_end(trial: Trial, error: Exception | None) -> None:
                outcome = self._outcome(trial) if error is None else None
                runs.pop(trial.name).close(outcome.state if outcome else {}, str(error or ""))
                if outcome is not None:
                    outcomes[trial.name] = outcome
                if error is not None:
                    log.warning("%s failed: %s", trial.name, error)
                    outcomes[trial.name] = error
                advance()

            try:
                for spec in missing:
                    session = sessions[spec.name]
                    run = runs[spec.name] = self.run_of(spec.name, session.key, spec.settings)
                    recorder = run.recorder(self.place_of(session.key).curve)
                    session = replace(session, open_recorder=recorder.open, tracking_run=run.run_id)
                    waiting.append(trials[spec.name].recorded(session))
                run_trials(waiting, on_begin, on_end)
            except BaseException as error:
                for run in runs.values():
                    if run.has_begun:
                        run.close({}, f"stopped: {type(error).__name__}")
                raise

    def _outcome(self, trial: Trial) -> Checkpoint | None:
        """A trial's outcome. The fence tells a missing outcome from unreachable storage."""
        return outcome_of(trial, self.run, self.fence.check)

    def keys_of(self, spec: Spec) -> Keys:
        return self.keys(spec.settings, spec.inputs, spec.family)

    def keys(self, settings: Mapping[str, object], inputs: Sequence[str], family: str | None) -> Keys:
        """The keys of trials of a family that read these inputs and share these settings."""
        common = {"precision": self.run.precision, **settings}
        # Without the names: two head starts that share all else share their outcomes, too.
        hashes: dict[str, str] = {}
        for name in inputs:
            flag = name.partition("/")[0]
            nth = sum(known.partition(" ")[0] == flag for known in hashes)  # of several head starts' features
            hashes[f"{flag} {nth}" if nth else flag] = self.hash_of(name)
        return Keys(common, hashes, self.code_of(family), self.place_of, self.owner)


@dataclass
class SearchRuns:
    """The MLflow runs of a search's trials, opened and written as Tune reports; all are closed at the end."""

    sweep: Sweep
    measure: str
    keys: Keys
    advance: Callable[[], None]
    _open: dict[str, tuple[OpenRun, CurveRecorder]] = field(default_factory=dict)

    def started(self, name: str, values: Mapping[str, object]) -> None:
        if name in self._open:  # Tune paused it, and now resumes it
            return
        key = self.keys.of(values)
        self.sweep.retain([key])
        run = self.sweep.run_of(f"trial {name}", key, values)
        self.sweep.begin_run(run)
        # The file may hold the reports of a killed attempt; the recorder drops repeated ones.
        recorder = run.recorder(self.sweep.place_of(key).curve).open(_ALL_STEPS)
        self._open[name] = (run, recorder)

    def reported(self, name: str, percent: float, metrics: Mapping[str, float]) -> None:
        self._open[name][1].record(round(percent), metrics)

    def ended(self, name: str, value: float | None, failure: str) -> None:
        run, recorder = self._open.pop(name)
        recorder.close()
        run.close({} if value is None else {self.measure: value}, failure)
        if failure:
            log.warning("trial %s failed: %s", name, failure)
        self.advance()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        for name in list(self._open):
            self.ended(name, None, "stopped")
