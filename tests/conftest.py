from __future__ import annotations

import os
import tempfile

import pytest


@pytest.fixture(autouse=True, scope="session")
def cache_of_the_session():
    """What is remembered for this machine is not to be measured while its tests run."""
    with tempfile.TemporaryDirectory(prefix="headstart-cache-") as folder:
        before = os.environ.get("XDG_CACHE_HOME")
        os.environ["XDG_CACHE_HOME"] = folder
        yield
        if before is None:
            del os.environ["XDG_CACHE_HOME"]
        else:
            os.environ["XDG_CACHE_HOME"] = before


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory):
    """An MLflow database to copy, made once: that takes seconds."""
    from pipeline.tracking import stores

    path = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    stores.client(f"sqlite:///{path}").search_experiments()
    return path
