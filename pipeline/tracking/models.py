"""Files and models of a run in MLflow."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.corpus.tokenizers_tokenizer import TokenizersTokenizer
from pipeline.tracking.runs import StageRun, best_effort, ensure_open
from pipeline.tracking.stores import RefusedError, client, tracking_uri, without_login

if TYPE_CHECKING:
    from mlflow.models import ModelSignature

WARNINGS_TAG = "headstart.warnings"
# The packages that the code of a registered model imports to predict.
_PREDICT_WITH = (
    "mlflow", "numpy", "polars", "pydantic", "psutil", "ruamel.yaml", "safetensors", "scikit-learn", "scipy",
    "sentencepiece", "threadpoolctl", "torch",
)  # fmt: skip
_DESCRIPTION = (
    "Labels texts: it takes a column of texts, or a list, and answers with an object for each text, of its "
    "label and the probability of every label. `headstart predict` does the same without MLflow."
)
_MOST_DESCRIBED = 5_000  # characters; MLflow's column takes no more
KEYS_TAG = "headstart.keys"  # of the trainings behind a registered model


def register_model(
    run: StageRun,
    folder: Path,
    name: str,
    alias: str,
    warnings: Sequence[str] = (),
    description: str = "",
) -> str | None:
    """Register the exported model in `folder` as a new version of `name`, and point `alias` at it.

    `warnings` become a tag of the version, and `description` its text, for whoever is about to use it.

    Returns its address, `models:/name@alias`, or None, after a warning, if MLflow does not take it.
    """
    with best_effort(run, f"{folder} is not registered as {name}@{alias}"), run.breaker.attempt():
        mlflow, run_id = client(run.uri, run.may_send), ensure_open(run)
        with tempfile.TemporaryDirectory() as scratch:
            _write_model(folder, Path(scratch) / "model")
            mlflow.log_artifacts(run_id, f"{scratch}/model", "model")
        mlflow.set_tag(run_id, KEYS_TAG, ",".join(_keys_in(folder)))
        if not mlflow.search_registered_models(f"name = '{name}'"):
            mlflow.create_registered_model(name, description=_DESCRIPTION)
        source = f"{mlflow.get_run(run_id).info.artifact_uri}/model"
        version = mlflow.create_model_version(name, source, run_id, description=description or None)
        if warnings:
            mlflow.set_model_version_tag(name, version.version, WARNINGS_TAG, "; ".join(warnings))
        mlflow.set_registered_model_alias(name, alias, version.version)
        return f"models:/{name}@{alias}"
    return None


def describe_model(run: StageRun, stage: str, card: str) -> None:
    """Give the model that `stage` registered a model card, Markdown, for its description.

    It is that stage's model of this execution, be it cached. The whole card is an artifact of this run.
    """
    with best_effort(run, "the registered model has no model card"), run.breaker.attempt():
        mlflow = client(run.uri, run.may_send)
        mlflow.log_text(ensure_open(run), card, "model_card.md")
        made_by = mlflow.get_run(run.parent_id or "").data.tags.get(f"headstart.stage.{stage}")
        for version in mlflow.search_model_versions(f"run_id = '{made_by}'") if made_by else ():
            mlflow.update_model_version(version.name, version.version, description=_cut(card))


def _cut(card: str) -> str:
    if len(card) <= _MOST_DESCRIBED:
        return card
    rest = "\n\nThe rest is in model_card.md of the run of `report`.\n"
    return card[: _MOST_DESCRIBED - len(rest)].rpartition("\n")[0] + rest


def _keys_in(folder: Path) -> list[str]:
    """The keys of the trainings that made the models in a folder, as their cards name them."""
    states = (json.loads(file.read_text(encoding="utf-8")) for file in sorted(folder.rglob("state.json")))
    return sorted({key for state in states if (key := state.get("key") or state.get("card", {}).get("key"))})


def linked_runs(run: StageRun) -> list[dict[str, str]]:
    """The run of each stage of this execution, cached stages included; none in an outage."""
    with best_effort(run, "the report links no runs"), run.breaker.attempt():
        ensure_open(run)
        parent = client(run.uri).get_run(run.parent_id or "")
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


def _write_model(folder: Path, path: Path) -> None:
    """Write the model with the code that predicts, so that any environment manager can serve it."""
    from importlib.metadata import version

    import mlflow.pyfunc
    import pandas

    root, columns = Path(__file__).resolve().parents[2], _text_columns(folder)
    optional = ["tokenizers"] if any(folder.rglob(TokenizersTokenizer.FILE)) else []
    # Without this list MLflow would load the model to find out.
    requirements = [f"{name}=={version(name).partition('+')[0]}" for name in (*_PREDICT_WITH, *optional)]
    mlflow.pyfunc.save_model(
        str(path),
        python_model=str(root / "pipeline" / "inference" / "serving.py"),
        artifacts={"model": str(folder.resolve())},
        code_paths=[str(root / package) for package in ("models", "pipeline")],
        pip_requirements=requirements,
        signature=_signature(columns),
        input_example=pandas.DataFrame({name: ["some text", "another text"] for name in columns}),
    )


def _text_columns(folder: Path) -> list[str]:
    """The columns of texts that the classifier in a folder reads: one, a pair, or a text and its answers."""
    states = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(folder.rglob("state.json"))]
    num_texts = max((_num_texts(state) for state in states), default=1)
    further = ["text_pair"] if num_texts == 2 else [f"choice_{number}" for number in range(num_texts - 1)]
    return ["text", *further]


def _num_texts(state: Mapping[str, Any]) -> int:
    head = state.get("head") or {}
    if head.get("num_choices") is not None:
        return 1 + int(head["num_choices"])
    return int(state.get("num_texts", 1 if head.get("delimiter_id") is None else 2))


def _signature(columns: Sequence[str]) -> ModelSignature:
    """A column of each text; what comes is a label and the probability of each label."""
    from mlflow.models import ModelSignature
    from mlflow.types.schema import ColSpec, DataType, Map, Schema, TensorSpec

    outputs: list[ColSpec | TensorSpec] = [
        ColSpec(DataType.string, "label", required=False),  # null of an empty text
        ColSpec(Map(DataType.double), "probabilities", required=False),
    ]
    # A single one without a name: it may have any name then, and texts may come as a list or a Series.
    names = [None] if len(columns) == 1 else columns
    return ModelSignature(Schema([ColSpec(DataType.string, name) for name in names]), Schema(outputs))


def _page_of(uri: str, experiment: str, run_id: str) -> str:
    """The run's page in the MLflow UI, without credentials; empty if there is no server."""
    page = f"{uri.rstrip('/')}/#/experiments/{experiment}/runs/{run_id}"
    return without_login(page) if uri.startswith("http") else ""


def aliased_keys(root: Path) -> dict[str, str]:
    """The keys of the training runs of all models that an alias points at, each with the model's address.

    Raises ConnectionError if MLflow does not answer, ValueError if it refuses the address.
    """
    if not (root / ".headstart").is_dir() and not os.environ.get("MLFLOW_TRACKING_URI"):
        return {}  # nothing was recorded, and the folder of another's project may not be ours to make
    uri = tracking_uri(root)
    if uri.startswith("sqlite:///") and not Path(uri.removeprefix("sqlite:///")).exists():
        return {}  # nothing was recorded, and a client would make the database
    address_of: dict[str, str] = {}
    mlflow, page = client(uri), ""
    try:
        while True:
            models = mlflow.search_registered_models(page_token=page or None)
            for model in models:
                for alias, version in model.aliases.items():
                    run_id = mlflow.get_model_version(model.name, version).run_id
                    tags = mlflow.get_run(run_id).data.tags if run_id else {}
                    keys = filter(None, tags.get(KEYS_TAG, "").split(","))
                    address_of |= dict.fromkeys(keys, f"models:/{model.name}@{alias}")
            page = models.token
            if not page:
                return address_of
    except RefusedError as error:
        raise ConnectionError(str(error)) from error
