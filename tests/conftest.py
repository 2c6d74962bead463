from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

# How fast this machine is, and what else it does, is no finding.
settings.register_profile("any_machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any_machine")

# Files that take minutes, the longest first: begun last, one of them would keep one process alone waiting.
LONG = (
    "test_route", "test_loop", "test_what_runs_again", "test_route_families", "test_on_ray", "test_security",
    "test_route_search", "test_route_texts", "test_route_killed", "test_multinode", "test_doctor",
    "test_tracking_outages", "test_storage_faults", "test_fingerprint", "test_gpu_benchmark",
    "test_tracking_stores", "test_tracking", "test_init", "test_retention", "test_command_line",
    "test_services", "test_serving", "test_deploy", "test_what_a_head_start_changes", "test_ntm", "test_fuzz",
)  # fmt: skip


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--half", choices=["0", "1"], help="of the long tests: every other file of them")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: LONG.index(item.path.stem) if item.path.stem in LONG else len(LONG))
    if (half := config.getoption("--half")) is None:
        return
    files = [*dict.fromkeys(item.path for item in items if item.get_closest_marker("long"))]
    items[:] = [item for item in items if item.path in files[int(half) :: 2]]


# Ray's processes are niced, and would wait for all other tests.
os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112  as Ray spells it


@pytest.fixture(autouse=True, scope="session")
def cache_of_the_session():
    """Measurements taken while tests run must not be remembered for this machine."""
    with tempfile.TemporaryDirectory(prefix="headstart-cache-") as folder:
        before = os.environ.get("XDG_CACHE_HOME")
        os.environ["XDG_CACHE_HOME"] = folder
        yield
        if before is None:
            del os.environ["XDG_CACHE_HOME"]
        else:
            os.environ["XDG_CACHE_HOME"] = before


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """The address of an S3 server of this session's own."""
    server = pytest.importorskip("moto.server", reason="moto is not installed (make test installs it)")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    running = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    yield f"http://{host}:{port}"
    running.stop()


def s3_variables(server: str) -> dict[str, str]:
    """The environment of a process that is to reach the server."""
    return {
        "AWS_ENDPOINT_URL": server,
        "AWS_ACCESS_KEY_ID": "tests",
        "AWS_SECRET_ACCESS_KEY": "no-secret",
        "AWS_DEFAULT_REGION": "us-east-1",
    }


@pytest.fixture
def bucket(s3_server, monkeypatch, request) -> str:
    """The address of a folder in an empty bucket, that this process and its children can reach."""
    import boto3

    for name, value in s3_variables(s3_server).items():
        monkeypatch.setenv(name, value)
    name = f"bucket-{abs(hash(request.node.nodeid)):x}"
    boto3.client("s3").create_bucket(Bucket=name)
    return f"s3://{name}/runs"


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory):
    """An MLflow database to copy, made once: that takes seconds."""
    from pipeline.tracking import stores

    path = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    stores.client(f"sqlite:///{path}").search_experiments()
    return path
