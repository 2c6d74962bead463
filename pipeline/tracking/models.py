"""Files and models of a run in MLflow."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.tracking.plans import name_of
from pipeline.tracking.runs import StageRun, failure_is_told, reached
from pipeline.tracking.stores import client, line_of, tracking_uri

if TYPE_CHECKING:
    from mlflow import MlflowClient


def log_artifact(run: StageRun, path: Path) -> None:
    """Copy a file or folder to the run's artifacts; where MLflow does not take it, warn and go on.

    Raises ValueError if there is none at `path`.
    """
    if not path.exists():
        raise ValueError(f"there is no file or folder {path} to log")
    with failure_is_told(run, f"{path} is not among the artifacts of the run"), run.patience.attempt():
        run_id = reached(run)
        if path.is_dir():
            client(run.uri, run.may_send).log_artifacts(run_id, str(path), path.name)
        else:
            client(run.uri, run.may_send).log_artifact(run_id, str(path))


def register_model(
    run: StageRun, folder: Path, name: str, alias: str, metrics: Mapping[str, float]
) -> str | None:
    """Register the exported model in `folder` as a new version of `name`, and point `alias` at it.

    Returns its address, `models:/name@alias`, or None, after a warning, where MLflow does not take it. The
    metrics become tags of the version. Raises ValueError if `folder` is not a folder.
    """
    if not folder.is_dir():
        raise ValueError(f"there is no model folder {folder} to register")
    with failure_is_told(run, f"{folder} is not registered as {name}@{alias}"), run.patience.attempt():
        _register(client(run.uri, run.may_send), reached(run), folder, name, alias, metrics)
        return f"models:/{name}@{alias}"
    return None


def linked_runs(run: StageRun) -> list[dict[str, str]]:
    """The run of each stage of this execution, cached ones among them; none in an outage."""
    with failure_is_told(run, "the report links no runs"), run.patience.attempt():
        reached(run)
        assert run.parent_id is not None
        parent = client(run.uri).get_run(run.parent_id)
        prefix = "headstart.stage."
        return [
            {
                "stage": name.removeprefix(prefix),
                "run_id": run_id,
                "url": _page_of(run.uri, parent.info.experiment_id, run_id),
                "cached": "cached" if name.replace("stage", "cached", 1) in parent.data.tags else "",
            }
            for name, run_id in sorted(parent.data.tags.items())
            if name.startswith(prefix)
        ]
    return []


def _register(
    mlflow: MlflowClient, run_id: str, folder: Path, name: str, alias: str, metrics: Mapping[str, float]
) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        _write_model(folder, Path(scratch) / "model")
        mlflow.log_artifacts(run_id, f"{scratch}/model", "model")
    if not mlflow.search_registered_models(f"name = '{name}'"):
        mlflow.create_registered_model(name)
    source = f"{mlflow.get_run(run_id).info.artifact_uri}/model"
    tags = {name_of(key): str(value) for key, value in metrics.items()}
    version = mlflow.create_model_version(name, source, run_id, tags=tags)
    mlflow.set_registered_model_alias(name, alias, version.version)


def _write_model(folder: Path, path: Path) -> None:
    import mlflow.pyfunc

    mlflow.pyfunc.save_model(
        str(path),
        python_model=str(Path(__file__).parents[1] / "serving.py"),
        artifacts={"model": str(folder.resolve())},
        pip_requirements=["headstart", "mlflow"],  # named: MLflow would find out by loading the model
    )


def _page_of(uri: str, experiment: str, run_id: str) -> str:
    """The run's page in the MLflow UI, where there is a server; without credentials."""
    if not uri.startswith("http"):
        return ""
    return re.sub(r"//[^/@]*@", "//", f"{uri.rstrip('/')}/#/experiments/{experiment}/runs/{run_id}")


def aliased_keys(root: Path) -> dict[str, str]:
    """Keys of the training runs of all models that an alias points at, each with the model's address.

    Raises ConnectionError where MLflow does not say, ValueError for an address that it does not know.
    """
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    if not (root / ".headstart").is_dir() and not os.environ.get("MLFLOW_TRACKING_URI"):
        return {}  # as below; and in another's project even the folder may not be ours to make
    uri = tracking_uri(root)
    if uri.startswith("sqlite:///") and not Path(uri.removeprefix("sqlite:///")).exists():
        return {}  # nothing was recorded yet, and asking would make it
    found: dict[str, str] = {}
    try:
        mlflow, page = client(uri), ""
        while True:
            models = mlflow.search_registered_models(page_token=page or None)
            for model in models:
                for alias, version in model.aliases.items():
                    run_id = mlflow.get_model_version(model.name, version).run_id
                    key = mlflow.get_run(run_id).data.tags.get("headstart.key") if run_id else None
                    if key:
                        found[key] = f"models:/{model.name}@{alias}"
            page = models.token
            if not page:
                return found
    except (MlflowException, SQLAlchemyError, OSError) as error:
        raise ConnectionError(line_of(error)) from error
