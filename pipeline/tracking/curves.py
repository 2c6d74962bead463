"""Training curves, every step once: in a JSON-lines file first, and from there in MLflow.

The file is the truth, MLflow follows. For each metric MLflow is asked for the largest step that it holds, and
only later steps are sent. Batches leave in the order of the file and arrive whole, so nothing is lost and
nothing is doubled. A batch may be sent again after an unanswered request: equal rows (metric, step, time,
value) are one row to MLflow. Records wait in the file, not in memory.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from io import FileIO
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple

from pipeline.files.atomic import atomic_write_text
from pipeline.tracking.plans import (
    METRICS_PER_CALL,
    RunPlan,
    experiment_of,
    mlflow_name,
    newest_run,
    now_ms,
    open_run,
)
from pipeline.tracking.stores import FencedError, MaySend, UnreachableError, always, client, one_line

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Metric

SEND_INTERVAL_S = 1.0  # between two calls
LONGEST_BACKOFF_S = 30.0


class Record(NamedTuple):
    """One line of the file."""

    step: int
    time_ms: int  # since the epoch
    metrics: dict[str, float]

    def to_line(self) -> str:
        values = {key: value if math.isfinite(value) else str(value) for key, value in self.metrics.items()}
        return json.dumps({"step": self.step, "time_ms": self.time_ms, "metrics": values}) + "\n"

    @staticmethod
    def from_line(line: str | bytes) -> Record:
        data = json.loads(line)
        values = {key: float(value) for key, value in data["metrics"].items()}
        return Record(int(data["step"]), int(data["time_ms"]), values)


@dataclass(frozen=True)
class RecorderConfig:
    """The settings of a `Recorder`. Picklable: it may be opened in another process or on another host."""

    uri: str = field(repr=False)  # may hold credentials
    run_id: str | None  # None: that of the plan
    path: Path  # the JSON-lines file
    plan: RunPlan | None = field(default=None, repr=False)  # opened once MLflow answers; None: file only
    may_send: MaySend = always  # asked before each call to MLflow; once it says no, nothing more is sent
    credentials: Mapping[str, str] = field(default_factory=dict, repr=False)  # environment variables

    def open(self, resume_step: int, earlier: bytes | None = None) -> Recorder:
        """Open the recorder after `resume_step`, the step of the restored checkpoint (-1: a fresh start).

        `earlier` is the file up to there, if it was written on another machine.
        """
        config = self
        if not self.path.parent.parent.is_dir():  # a worker on a machine without this project
            scratch = Path(tempfile.mkdtemp(prefix="headstart-curve-"))
            config = replace(self, path=scratch / self.path.name)
        if earlier is not None:
            atomic_write_text(config.path, earlier.decode("utf-8"))
        return Recorder(config, resume_step)


class Delivery(NamedTuple):
    """How many records may be missing in MLflow, and why."""

    unsent: int
    error: str | None


class Recorder:
    """Records a training curve, every step once: in the file at once, in MLflow within seconds.

    The steps of each metric ascend. A metric at or below its last step is a replay and is skipped.
    """

    def __init__(self, config: RecorderConfig, resume_step: int) -> None:
        self.path = config.path
        kept = [record for record in read_records(config.path) if record.step <= resume_step]
        self._last_steps = {key: record.step for record in kept for key in record.metrics}
        self._file = _reopen_file(config.path, kept)
        self._outbox = _Outbox(config) if config.run_id or config.plan else None

    def record(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write one line. Raises ValueError for a name that MLflow refuses or over 1,000 metrics."""
        for name in metrics:
            if name != mlflow_name(name):
                raise ValueError(
                    f"metric {name!r}: name it with at most 250 of letters, digits, _-./: and space"
                )
        fresh = {key: float(value) for key, value in metrics.items() if step > self._last_steps.get(key, -1)}
        if len(fresh) > METRICS_PER_CALL:
            raise ValueError(f"{len(fresh)} metrics in step {step}; at most {METRICS_PER_CALL}")
        if not fresh:
            return
        _append(self._file, Record(step, now_ms(), fresh).to_line())
        self._last_steps |= dict.fromkeys(fresh, step)
        if self._outbox:
            self._outbox.notify()

    def flush(self) -> None:
        """Make the file durable; to be called before a checkpoint that covers its steps."""
        os.fsync(self._file.fileno())

    def close(self, timeout_s: float | None = None) -> Delivery:
        """Send the rest, for at most `timeout_s`. Unsent records stay in the file, for `sync`.

        The default is 10 s, or if the last call failed, a tenth of the time since the recorder was opened.
        """
        if not self._file.closed:
            self.flush()
            self._file.close()
        return self._outbox.close(timeout_s) if self._outbox else Delivery(0, None)


def read_records(path: Path) -> list[Record]:
    """All records of a file, none if there is no file. A last line torn by a kill is left out.

    Raises ValueError for a broken line elsewhere.
    """
    if not path.exists():
        return []
    with path.open("rb") as file:
        return [record for record, _ in _records_of(file, path)]


def sync(config: RecorderConfig) -> Delivery:
    """Send the records of a finished file that MLflow lacks.

    Raises FencedError once `may_send` says no, ValueError for a broken line or if MLflow refuses a call.
    """
    if not config.path.exists():
        return Delivery(0, None)
    with config.path.open("rb") as file:
        sender = _Sender(config, file)
        try:
            while sender.send():
                pass
        except OSError as error:
            return Delivery(sender.count_unsent(), one_line(error))
    return Delivery(0, None)


def _records_of(file: IO[bytes], path: Path, offset: int = 0) -> Iterator[tuple[Record, int]]:
    """Whole records from `offset` on, each with the offset of its end."""
    file.seek(offset)
    while line := file.readline():
        if not line.endswith(b"\n"):  # still being written, or torn by a kill
            return
        try:
            record = Record.from_line(line)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if not file.read(1):  # the last line: torn, even if it ends as a line does
                return
            file.seek(0)
            number = file.read(offset).count(b"\n") + 1
            raise ValueError(
                f"{path}, line {number}: not a record of a training curve ({error}); remove the line"
            ) from error
        offset += len(line)
        yield record, offset


def _reopen_file(path: Path, records: Sequence[Record]) -> FileIO:
    """Cut the file down to these records and open it for more.

    It is replaced even if nothing changes, so that an orphaned writer holds a file without a name.
    """
    for leftover in path.parent.glob(f".{path.name}.partial-*"):  # of a killed writer: there is only one
        leftover.unlink(missing_ok=True)
    atomic_write_text(path, "".join(record.to_line() for record in records))
    return path.open("ab", buffering=0)


def _append(file: FileIO, line: str) -> None:
    """Append the whole line or nothing, so that the caller can retry if the disk is full."""
    content = line.encode()
    end = os.fstat(file.fileno()).st_size
    try:
        while content:
            content = content[file.write(content) or 0 :]
    except OSError:
        file.truncate(end)
        raise


class _Sender:
    """Sends the records of a file in order, each metric only after the last step that MLflow has of it."""

    def __init__(self, config: RecorderConfig, file: IO[bytes]) -> None:
        self._config, self._file = config, file
        self._run_id = config.run_id
        self._offset = 0  # of the first record that may not have arrived
        self._client: MlflowClient | None = None
        self._sent: dict[str, int] | None = None  # metric -> largest step; None: not asked yet

    def send(self) -> bool:
        """Make one call. Returns whether there was anything to send; raises what `client` raises."""
        config = self._config
        if self._client is None:
            self._client = client(config.uri, config.may_send, config.credentials)
        if self._run_id is None:
            assert config.plan is not None
            self._run_id = _run_of(self._client, config.plan)
        if self._sent is None:
            # The public view of a run has no steps; whole histories can be long.
            latest = self._client.get_run(self._run_id).data._metric_objs
            self._sent = {metric.key: metric.step for metric in latest}
        batch, end = self._next_batch(self._sent)
        if batch:
            sent, self._sent = self._sent, None  # if the call fails, it may still have arrived
            self._client.log_batch(self._run_id, metrics=batch)
            self._sent = sent | {metric.key: metric.step for metric in batch}
        self._offset = end
        return bool(batch)

    def count_unsent(self) -> int:
        """The number of records that may not have arrived. Another thread may be sending."""
        offset, count = self._offset, 0
        while chunk := os.pread(self._file.fileno(), 1 << 20, offset):
            offset += len(chunk)
            count += chunk.count(b"\n")
        return count

    def _next_batch(self, sent: Mapping[str, int]) -> tuple[list[Metric], int]:
        """The metrics of the next call, and the offset in the file at which they end."""
        from mlflow.entities import Metric

        batch: list[Metric] = []
        done = self._offset
        for record, end in _records_of(self._file, self._config.path, self._offset):
            new = [key for key in record.metrics if record.step > sent.get(key, -1)]
            if len(batch) + len(new) > METRICS_PER_CALL:  # a record is never split
                break
            batch += [Metric(key, record.metrics[key], record.time_ms, record.step) for key in new]
            done = end
        return batch, done


def _run_of(client: MlflowClient, plan: RunPlan) -> str:
    """Return the id of the plan's run. A stage's is opened; that of a trial is left to its stage.

    Raises UnreachableError if the stage has not opened it yet.
    """
    if plan.kind != "trial":
        return open_run(client, plan)
    run = newest_run(client, experiment_of(client, plan), {"headstart.plan": plan.id})
    if run is None:
        raise UnreachableError("the stage has not opened the run of this trial yet")
    return str(run.info.run_id)


class _Outbox:
    """Sends records from the file to MLflow in a thread that training never waits for."""

    def __init__(self, config: RecorderConfig) -> None:
        self._file = config.path.open("rb")  # now: a later recorder replaces the file
        self._sender = _Sender(config, self._file)
        self._error: str | None = None
        self._opened = time.monotonic()
        self._retry_until = math.inf  # set on closing
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._abandoned = threading.Event()
        self._thread = threading.Thread(target=self._work, name="mlflow-outbox", daemon=True)
        self._thread.start()

    def notify(self) -> None:
        """Tell the thread that the file has grown."""
        self._wake.set()

    def close(self, timeout_s: float | None) -> Delivery:
        now = time.monotonic()
        failing_s = timeout_s or min(10.0, 1 + 0.1 * (now - self._opened))
        self._retry_until = now + failing_s
        self._closing.set()
        self._wake.set()
        self._thread.join(timeout_s or (failing_s if self._error else 10.0))
        self._abandoned.set()
        unsent, hangs = self._sender.count_unsent(), self._thread.is_alive()
        if not hangs:
            self._file.close()
        return Delivery(unsent, self._error or ("MLflow does not answer" if hangs and unsent else None))

    def _work(self) -> None:
        failures = 0
        while not self._abandoned.is_set():
            self._wake.clear()
            closing = self._closing.is_set()
            try:
                sent = self._sender.send()
            except FencedError as error:
                self._error = one_line(error)
                return
            except Exception as error:  # whatever it is, training continues and close() returns it
                self._error = one_line(error)
                failures += 1
                if time.monotonic() > self._retry_until:
                    return
                self._closing.wait(min(LONGEST_BACKOFF_S, 2.0**failures))
                if self._closing.is_set():  # retry soon
                    self._abandoned.wait(0.5)
                continue
            failures, self._error = 0, None
            if sent:
                self._closing.wait(SEND_INTERVAL_S)
            elif closing:
                return
            else:
                self._wake.wait()
