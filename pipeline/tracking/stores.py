"""The MLflow that runs are recorded in: its address, a client that never hangs, and what its errors mean."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pipeline.machine.process_identity import ProcessIdentity
from pipeline.terminal.redaction import redact

if TYPE_CHECKING:
    from mlflow import MlflowClient

TAG_CHARACTERS = 8000  # MLflow's limit

# A failing call fails within seconds. By default MLflow retries for minutes, or for as long as a server asks.
CLIENT_ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "0",
    "MLFLOW_HTTP_RESPECT_RETRY_AFTER_HEADER": "false",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",  # the address may hold a password
    "PGCONNECT_TIMEOUT": "10",
}
# For databases, which set no limit themselves. Longer than SQLite waits for a lock under MLflow (20 s).
CALL_LIMIT_S = 25.0
FIRST_CALL_LIMIT_S = 100.0  # creates the tables if there are none

OWN_STORE = "this project's own"

MaySend = Callable[[], bool]


def always() -> bool:
    return True


# ---------------------------------------------------------------------------------------- addresses


def tracking_uri(root: Path) -> str:
    """MLFLOW_TRACKING_URI, else the address of the server that `headstart up` started, else SQLite.

    For SQLite the folder `.headstart` is made.
    """
    given = os.environ.get("MLFLOW_TRACKING_URI")
    if given:
        return given
    folder = root.resolve() / ".headstart"
    served = _recorded_server(folder / "services.json")
    if served:
        return served
    folder.mkdir(parents=True, exist_ok=True)
    return f"sqlite:///{folder / 'mlflow.db'}"


def _recorded_server(path: Path) -> str | None:
    """Address of the recorded MLflow server while its process lives; None in a copy of its checkout."""
    own = str(path.parent.parent)
    try:
        server = json.loads(path.read_text())["mlflow"]
        is_up = server["folder"] == own and ProcessIdentity(**server["process"]).is_alive
    except (FileNotFoundError, KeyError):
        return None
    return str(server["address"]) if is_up else None


def store_name(uri: str) -> str:
    """A name for the MLflow behind an address. This project's own has one name and several addresses."""
    return without_login(uri) if uri == os.environ.get("MLFLOW_TRACKING_URI") else OWN_STORE


def without_login(uri: str) -> str:
    return re.sub(r"(?<=//)\S*@", "", uri)


def is_database(uri: str) -> bool:
    """Whether this process writes to a database itself, without a server between."""
    return uri.startswith(("sqlite", "postgresql", "mysql", "mssql"))


def credentials() -> dict[str, str]:
    """The environment variables with which MLflow logs in. Workers have those of their node instead."""
    named = {name: value for name, value in os.environ.items() if name.startswith("MLFLOW_TRACKING_")}
    return {name: value for name, value in named.items() if value and name != "MLFLOW_TRACKING_URI"}


# ------------------------------------------------------------------------------------------- errors


class FencedError(Exception):
    """Another process has taken over the run: this one sends nothing more to it."""


class UnreachableError(ConnectionError):
    """MLflow does not answer, and may take the same call later. The message is one line."""


class RefusedError(ValueError):
    """MLflow refuses a call, and waiting does not help. The message says what a person has to change."""


# Messages of databases about what waiting does not mend: a failed connection has no error code.
_REFUSALS = re.compile(
    r"authentication failed|no password supplied|no pg_hba\.conf entry|(database|role) \S+ does not exist"
    r"|Access denied|does not support SSL|out-of-date database schema",
    re.IGNORECASE,
)


def one_line(error: BaseException) -> str:
    """An error as one line without credentials, short enough for a tag."""
    text = re.sub(r"\(Background on this error at: \S*\)", "", str(error))  # SQLAlchemy adds it
    text = " ".join(text.split())
    kind = type(error).__name__
    told = isinstance(error, UnreachableError | RefusedError) or not text
    return redact((text or kind) if told else f"{kind}: {text}")[:TAG_CHARACTERS]


@contextlib.contextmanager
def _translated_errors(uri: str) -> Iterator[None]:
    """Raise what MLflow, its database and the network raise as UnreachableError or RefusedError."""
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (OSError, MlflowException, SQLAlchemyError) as error:
        if _is_outage(error):
            raise UnreachableError(one_line(error)) from error
        raise _refusal(uri, error) from error


def _is_outage(error: BaseException) -> bool:
    from mlflow.exceptions import MlflowException
    from sqlalchemy import exc

    if _REFUSALS.search(str(error)):
        return False
    # A connection that breaks between two statements is an InterfaceError, to MLflow a bad request.
    passing = (OSError, exc.OperationalError, exc.InterfaceError, exc.InternalError, exc.TimeoutError)
    if isinstance(error, MlflowException):
        status = error.get_http_status_code()
        return bool(status >= 500 or status in (408, 429) or isinstance(error.__cause__, passing))
    return isinstance(error, passing)


def _refusal(uri: str, error: BaseException) -> RefusedError:
    from mlflow.exceptions import MlflowException

    status = error.get_http_status_code() if isinstance(error, MlflowException) else None
    where = redact(uri)
    if status in (401, 403):
        given = "; ".join(sorted(credentials())) or "none of them"
        advice = (
            "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN, for a user "
            f"who may write there (set now: {given})"
        )
        if status == 401:  # its text is about mlflow's own documentation
            return RefusedError(f"MLflow at {where} rejects the login (401): {advice}")
        return RefusedError(f"MLflow at {where} does not permit this (403, {one_line(error)}): {advice}")
    database = ", its user, password and database" if is_database(uri) else ""
    return RefusedError(
        f"MLflow refuses the address {where} ({one_line(error)}); "
        f"correct or unset MLFLOW_TRACKING_URI{database}"
    )


class CircuitBreaker:
    """Keeps the time spent waiting for an MLflow that does not answer below a tenth of the whole.

    A failed attempt is followed by a pause nine times as long, in which attempts fail at once.
    """

    def __init__(self) -> None:
        self._pause_ends = 0.0

    @contextlib.contextmanager
    def attempt(self) -> Iterator[None]:
        """Raises UnreachableError, without trying, during the pause."""
        began = time.monotonic()
        if began < self._pause_ends:
            raise UnreachableError("it did not answer a moment ago")
        try:
            yield
        except OSError:
            now = time.monotonic()
            self._pause_ends = now + 9 * (now - began)
            raise


# ------------------------------------------------------------------------------------------- client


def client(uri: str, may_send: MaySend = always, secrets: Mapping[str, str] | None = None) -> MlflowClient:
    """A client that asks `may_send` before each call, and whose failing calls fail within half a minute.

    This function and all calls raise UnreachableError or RefusedError; calls raise FencedError once
    `may_send` says no.
    """
    for name, value in {**CLIENT_ENVIRONMENT, **(secrets or {})}.items():
        os.environ.setdefault(name, value)
    from mlflow import MlflowClient

    # It prints each failure with its statement and values. We log failures ourselves.
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)
    limit_s, first_limit_s = (CALL_LIMIT_S, FIRST_CALL_LIMIT_S) if is_database(uri) else (None, None)
    with _translated_errors(uri):
        if is_database(uri):
            uri = _with_driver(uri)
            _within(limit_s, _connect, uri)
        made = _within(first_limit_s, MlflowClient, tracking_uri=uri)
        return cast("MlflowClient", _GuardedClient(made, uri, may_send, limit_s))


def _with_driver(uri: str) -> str:
    """The address with the driver of `headstart[postgres]`: SQLAlchemy 2.1 would look for another."""
    dialect, _, rest = uri.partition("://")
    is_ours = dialect == "postgresql" and importlib.util.find_spec("psycopg2")
    return f"postgresql+psycopg2://{rest}" if is_ours else uri


def _connect(uri: str) -> None:
    """Fail at once if the database does not answer: MLflow makes ten attempts in 100 seconds."""
    import sqlalchemy

    if uri.startswith("sqlite:///"):
        database = Path(uri.removeprefix("sqlite:///"))
        if not database.parent.is_dir():  # on a worker's host, where MLflow would make an empty one
            raise UnreachableError(f"{database} is not on this host")
        return
    try:
        engine = sqlalchemy.create_engine(uri, poolclass=sqlalchemy.pool.NullPool)
    except ImportError as error:
        raise RefusedError(
            f"{redact(uri)} needs a driver that is not installed ({error}); "
            "that for PostgreSQL comes with `pip install headstart[postgres]`"
        ) from error
    except ValueError as error:  # the port is not a number
        raise RefusedError(
            f"{redact(uri)} is no address of a database; correct MLFLOW_TRACKING_URI"
        ) from error
    engine.connect().close()


class _GuardedClient:
    """An MlflowClient that asks before each call whether it may make it, and limits its time."""

    def __init__(self, client: MlflowClient, uri: str, may_send: MaySend, limit_s: float | None) -> None:
        self._client, self._uri, self._may_send, self._limit_s = client, uri, may_send, limit_s

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)
        # Files go to a store of their own, and take their time.
        limit_s = None if name.startswith("log_artifact") else self._limit_s

        def call(*arguments: Any, **named: Any) -> Any:
            if not self._may_send():
                raise FencedError("another process has taken over the run")
            with _translated_errors(self._uri):
                return _within(limit_s, method, *arguments, **named)

        return call


def _within(limit_s: float | None, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Call a function. Raises TimeoutError after `limit_s`, and leaves the call to a thread of its own."""
    if limit_s is None:
        return function(*arguments, **named)
    outcome: Future[Any] = Future()

    def work() -> None:
        try:
            outcome.set_result(function(*arguments, **named))
        except BaseException as error:  # raised again below
            outcome.set_exception(error)

    threading.Thread(target=work, name="mlflow-call", daemon=True).start()  # a pool would wait for it
    if outcome not in wait([outcome], limit_s).done:
        raise TimeoutError(f"no answer within {limit_s:.0f} s")
    return outcome.result()
