"""Where runs are kept: the address, a client that does not wait for ever, what its errors mean."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pipeline.births import is_alive
from pipeline.redaction import redact

if TYPE_CHECKING:
    from mlflow import MlflowClient

TAG_CHARACTERS = 8000  # MLflow's limit

# A call that cannot get through fails in seconds; by default MLflow retries for minutes, or for as long as a
# server asks for.
CLIENT_ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "0",
    "MLFLOW_HTTP_RESPECT_RETRY_AFTER_HEADER": "false",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",  # with the password, where it stands in the address
    "PGCONNECT_TIMEOUT": "10",
}
# Of a database: it sets no limit itself. Longer than SQLite waits for a lock under MLflow (20 s).
CALL_LIMIT_S = 25.0
FIRST_CALL_LIMIT_S = 100.0  # makes the tables, where there are none

# What MLflow reads to log in. A worker's environment is that of its node, not that of the stage.
CREDENTIALS = (
    "MLFLOW_TRACKING_USERNAME",
    "MLFLOW_TRACKING_PASSWORD",
    "MLFLOW_TRACKING_TOKEN",
    "MLFLOW_TRACKING_AUTH",
    "MLFLOW_TRACKING_AWS_SIGV4",
    "MLFLOW_TRACKING_INSECURE_TLS",
    "MLFLOW_TRACKING_SERVER_CERT_PATH",
    "MLFLOW_TRACKING_CLIENT_CERT_PATH",
)

OWN_STORE = "this project's own"

MaySend = Callable[[], bool]


def always() -> bool:
    return True


# ---------------------------------------------------------------------------------------- addresses


def tracking_uri(root: Path) -> str:
    """Where runs go: MLFLOW_TRACKING_URI, else the server that `headstart up` started, else SQLite.

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
    """Address of the recorded MLflow server while its process lives."""
    try:
        server = json.loads(path.read_text()).get("mlflow") or {}
    except FileNotFoundError:
        return None
    alive = "pid" in server and is_alive(int(server["pid"]), server.get("started"))
    return str(server["address"]) if alive else None


def store_name(uri: str) -> str:
    """The MLflow that is meant, however it is reached: this project's own has several addresses."""
    return re.sub(r"(?<=//)\S*@", "", uri) if uri == os.environ.get("MLFLOW_TRACKING_URI") else OWN_STORE


def is_database(uri: str) -> bool:
    """Whether runs are written to a database from here, without a server between."""
    return uri.startswith(("sqlite", "postgresql", "mysql", "mssql"))


def credentials() -> dict[str, str]:
    """What this process logs in to MLflow with, for one on another host."""
    return {name: os.environ[name] for name in CREDENTIALS if os.environ.get(name)}


def line_of(error: BaseException) -> str:
    """An error as one line without credentials, short enough for a tag."""
    text = re.sub(r"\(Background on this error at: \S*\)", "", str(error))  # of SQLAlchemy
    text = " ".join(text.split())
    kind = type(error).__name__
    return redact(f"{kind}: {text}" if text else kind)[:TAG_CHARACTERS]


# ------------------------------------------------------------------------------------------- errors


class FencedError(Exception):
    """The run is another process's now: nothing more is sent to it from here."""


class RefusedError(ValueError):
    """MLflow cannot be used as it was told to be: what a person has to change."""


# A database's words for what no waiting mends. Its driver gives no code for a connection that failed.
_REFUSALS = re.compile(
    r"authentication failed|no password supplied|no pg_hba\.conf entry|(database|role) \S+ does not exist"
    r"|Access denied|does not support SSL|out-of-date database schema",
    re.IGNORECASE,
)


def is_outage(error: BaseException) -> bool:
    """Whether MLflow may take the same call later. Otherwise it refuses what was asked."""
    from mlflow.exceptions import MlflowException
    from sqlalchemy import exc

    if _REFUSALS.search(str(error)):
        return False
    # An interface error: of a connection that broke between two statements. MLflow calls it a bad request.
    passing = (OSError, exc.OperationalError, exc.InterfaceError, exc.InternalError, exc.TimeoutError)
    if isinstance(error, MlflowException):
        status = error.get_http_status_code()
        busy = status in (408, 429)
        return bool(status >= 500 or busy or isinstance(error.__cause__, passing))
    return isinstance(error, passing)


def is_refusal(error: BaseException) -> bool:
    """Whether MLflow was reached and does not want what was asked."""
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    return isinstance(error, (MlflowException, SQLAlchemyError)) and not is_outage(error)


def reason_of(uri: str, error: BaseException) -> str | None:
    """Why MLflow did not take a call, for a person; None for an error that is none of MLflow's."""
    if isinstance(error, (RefusedError, FencedError)):
        return str(error)
    if is_refusal(error):
        return str(refusal(uri, error))
    return line_of(error) if is_outage(error) else None


def refusal(uri: str, error: BaseException) -> RefusedError:
    """What a person is told of a refusal: who refuses what, and what to set."""
    from mlflow.exceptions import MlflowException

    status = error.get_http_status_code() if isinstance(error, MlflowException) else None
    if status in (401, 403):
        given = "; ".join(name for name in CREDENTIALS[:3] if os.environ.get(name)) or "none of them is set"
        advice = (
            "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN, for a user "
            f"who may write there (set now: {given})"
        )
        if status == 401:  # its text speaks of mlflow's own documentation
            return RefusedError(f"MLflow at {redact(uri)} does not know who asks (401): {advice}")
        return RefusedError(f"MLflow at {redact(uri)} does not permit this (403, {line_of(error)}): {advice}")
    advice = "correct or unset MLFLOW_TRACKING_URI" + (
        ", its user, password and database" if is_database(uri) else ""
    )
    return RefusedError(f"MLflow refuses the address {redact(uri)} ({line_of(error)}); {advice}")


class Patience:
    """Keeps what is waited for an MLflow that does not answer below a tenth of the time.

    After a failed attempt none is made for nine times as long as it took.
    """

    def __init__(self) -> None:
        self._rests_until = 0.0

    @contextlib.contextmanager
    def attempt(self) -> Iterator[None]:
        """Raises ConnectionError, without trying, while it rests."""
        began = time.monotonic()
        if began < self._rests_until:
            raise ConnectionError("it did not answer a moment ago")
        try:
            yield
        except Exception as error:
            if is_outage(error):
                ended = time.monotonic()
                self._rests_until = ended + 9 * (ended - began)
            raise


# ------------------------------------------------------------------------------------------- client


def client(uri: str, may_send: MaySend = always, secrets: Mapping[str, str] | None = None) -> MlflowClient:
    """A client that asks `may_send` before each call, and fails in less than half a minute where it must.

    Its calls raise FencedError once `may_send` says no, TimeoutError where a database does not answer.
    Raises RefusedError for an address that MLflow does not know, or a database that refuses to be used;
    ConnectionError for SQLite elsewhere.
    """
    for name, value in {**CLIENT_ENVIRONMENT, **(secrets or {})}.items():
        os.environ.setdefault(name, value)
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    # It prints each failure with its statement and the values in it. What failed is told by us.
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)
    limit_s = CALL_LIMIT_S if is_database(uri) else None
    try:
        if is_database(uri):
            uri = _with_driver(uri)
            _within(limit_s, _connect, uri)
        first_limit_s = FIRST_CALL_LIMIT_S if is_database(uri) else None
        made = _within(first_limit_s, functools.partial(MlflowClient, tracking_uri=uri))
    except (MlflowException, SQLAlchemyError) as error:
        if is_outage(error):
            raise
        raise refusal(uri, error) from error
    return cast("MlflowClient", _CarefulClient(made, may_send, limit_s))


def _with_driver(uri: str) -> str:
    """The address with the driver that is installed: SQLAlchemy's choice changed with 2.1."""
    dialect, _, rest = uri.partition("://")
    if dialect != "postgresql":
        return uri
    for driver in ("psycopg2", "psycopg"):
        if importlib.util.find_spec(driver):
            return f"postgresql+{driver}://{rest}"
    raise RefusedError(
        f"{redact(uri)} needs a driver for PostgreSQL, and none is installed; "
        "run `pip install headstart[postgres]`"
    )


def _connect(uri: str) -> None:
    """Find out at once what MLflow finds out after ten attempts in 100 seconds."""
    import sqlalchemy

    database = Path(uri.removeprefix("sqlite:///"))
    if uri.startswith("sqlite:///"):
        if not database.parent.is_dir():
            raise ConnectionError(
                f"{database} is not on this host"
            )  # a worker's: MLflow would make an empty one
        return
    try:
        engine = sqlalchemy.create_engine(uri, poolclass=sqlalchemy.pool.NullPool)
    except ImportError as error:
        raise RefusedError(f"{redact(uri)} needs a driver that is not installed: {error}") from error
    except ValueError as error:  # a port that is no number
        raise RefusedError(
            f"{redact(uri)} is no address of a database; correct MLFLOW_TRACKING_URI"
        ) from error
    engine.connect().close()


class _CarefulClient:
    """An MlflowClient that asks before each call whether it may, and waits for no database for ever."""

    def __init__(self, client: MlflowClient, may_send: MaySend, limit_s: float | None) -> None:
        self._client, self._may_send, self._limit_s = client, may_send, limit_s

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)
        # Files go to a store of their own, and take their time.
        limit_s = None if name.startswith("log_artifact") else self._limit_s

        def call(*arguments: Any, **named: Any) -> Any:
            if not self._may_send():
                raise FencedError("the run is another process's now")
            return _within(limit_s, method, *arguments, **named)

        return call


def _within(limit_s: float | None, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """The function's result. Raises TimeoutError after `limit_s`; the call is left to a thread of its own."""
    if limit_s is None:
        return function(*arguments, **named)
    outcome: list[tuple[Any, BaseException | None]] = []

    def work() -> None:
        try:
            outcome.append((function(*arguments, **named), None))
        except BaseException as error:  # raised again below
            outcome.append((None, error))

    thread = threading.Thread(target=work, name="mlflow-call", daemon=True)
    thread.start()
    thread.join(limit_s)
    if not outcome:
        raise TimeoutError(f"no answer within {limit_s:.0f} s")
    result, error = outcome[0]
    if error is not None:
        raise error
    return result
