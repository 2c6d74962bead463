"""The runs that exist in MLflow, and how a run is opened: at once, later, or from another process.

One run for each pipeline execution, below it one for each stage, below those of a sweep one for each trial:

    dvc repro (process) = execution ── tag headstart.stage.<stage> ──> run of this or an earlier execution
      └─ stage (process) ── tag mlflow.parentRunId ──> execution
           └─ trial ── tag mlflow.parentRunId ──> stage

A `RunPlan` holds all that it takes to create its run. Its id is a tag of the run, so a second attempt to
open it, after a lost answer or an interrupted delivery, finds the run that exists.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from pipeline.files.git import head
from pipeline.machine.process_identity import ProcessIdentity
from pipeline.settings.loader import flatten
from pipeline.terminal.redaction import redact
from pipeline.tracking.processes import owner_from, owner_tags, this_execution
from pipeline.tracking.stores import TAG_CHARACTERS, RefusedError

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

METRICS_PER_CALL = 1000  # MLflow's limits, from here down
PARAMS_PER_CALL = 100
PARAM_CHARACTERS = 6000
NAME_CHARACTERS = 250

# Without it the MLflow UI guesses whether to show models or generative traces.
_EXPERIMENT_TAGS = {"mlflow.experimentKind": "custom_model_development"}


@dataclass(frozen=True)
class RunPlan:
    """A run as it is to be in MLflow. Holds no credentials; picklable, and JSON by `asdict`."""

    id: str
    kind: str  # pipeline (an execution), stage or trial
    experiment: str
    artifacts: str | None  # address of the artifacts of a new experiment; None: MLflow's default
    name: str
    start_ms: int  # since the epoch
    owner: ProcessIdentity
    tags: Mapping[str, str] = field(default_factory=dict)
    params: Mapping[str, str] = field(default_factory=dict)
    same: Mapping[str, str] = field(default_factory=dict)  # tags of an earlier run to resume; none: never
    may_have_finished: bool = False  # whether a finished run may be resumed
    above: RunPlan | None = None

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        above = cls.from_dict(data["above"]) if data["above"] else None
        return cls(**{**data, "owner": ProcessIdentity(**data["owner"]), "above": above})

    @property
    def all_tags(self) -> dict[str, str]:
        """The tags as they are sent, without that of the parent."""
        tags = {"headstart.kind": self.kind, "headstart.plan": self.id, **owner_tags(self.owner), **self.tags}
        return {mlflow_name(key): value[:TAG_CHARACTERS] for key, value in tags.items()}


def new_plan(
    above: RunPlan,
    owner: ProcessIdentity,
    params: Mapping[str, object],
    tags: Mapping[str, str | None],
    **fields: Any,
) -> RunPlan:
    """The plan of a run that begins now below another, with credentials removed from its params and tags."""
    clean = {key: redact(value) for key, value in tags.items() if value is not None}
    sent = _sendable(params)
    shared = {"experiment": above.experiment, "artifacts": above.artifacts, "above": above, **fields}
    return RunPlan(uuid.uuid4().hex, start_ms=now_ms(), owner=owner, params=sent, tags=clean, **shared)


def _sendable(params: Mapping[str, object]) -> dict[str, str]:
    """Nested settings by dotted name, without credentials, as MLflow takes them."""
    return {mlflow_name(key): redact(str(value))[:PARAM_CHARACTERS] for key, value in flatten(params)}


def execution_plan(
    root: Path, experiment: str, artifacts: str | None, params: Mapping[str, object]
) -> RunPlan:
    """The plan of the execution that this process belongs to: that of the nearest `dvc`, or its own."""
    owner = this_execution()
    id, began_s = f"{owner.host}:{owner.pid}:{owner.started}", owner.started_s
    name = time.strftime("pipeline %Y-%m-%d %H:%M:%S", time.localtime(began_s))
    tags = git_tags(root)
    begun_ms = int(began_s * 1000)
    return RunPlan(id, "pipeline", experiment, artifacts, name, begun_ms, owner, tags, _sendable(params))


# ------------------------------------------------------------------------------------------ opening


def open_run(client: MlflowClient, plan: RunPlan) -> str:
    """Return the id of the plan's run, RUNNING: the one it has, else one to resume, else a new one.

    May be repeated. Opens the runs above a new one first. Raises RefusedError if its experiment was deleted.
    """
    experiment = experiment_of(client, plan)
    run = newest_run(client, experiment, {"headstart.plan": plan.id})
    if run is None:
        parent_id = open_run(client, plan.above) if plan.above else None
        tags = plan.all_tags | ({"mlflow.parentRunId": parent_id} if parent_id else {})
        run = _run_to_resume(client, experiment, plan, parent_id)
        if run is not None:
            left = run.data.tags.get("mlflow.parentRunId")
            resume(client, run, tags)
            if left and left != parent_id:
                settle_parent(client, left)
        else:
            run = client.create_run(experiment, plan.start_ms, tags, plan.name[:NAME_CHARACTERS])
    elif plan.kind == "pipeline":  # each of its stages settles it
        _set_running(client, run)
    _log_params(client, run, plan.params)
    return str(run.info.run_id)


def experiment_of(client: MlflowClient, plan: RunPlan) -> str:
    known = client.get_experiment_by_name(plan.experiment)
    if known is None:
        try:
            return str(client.create_experiment(plan.experiment, plan.artifacts, _EXPERIMENT_TAGS))
        except RefusedError:
            known = client.get_experiment_by_name(plan.experiment)
            if known is None:  # else another process was faster
                raise
    if known.lifecycle_stage != "active":
        raise RefusedError(
            f"the experiment {plan.experiment!r} was deleted in MLflow; bring it back with "
            f"`mlflow experiments restore --experiment-id {known.experiment_id}`"
        )
    return str(known.experiment_id)


def delete_duplicates(client: MlflowClient, plan: RunPlan, run_id: str) -> None:
    """Delete other runs of the plan: if the answer to a request gets lost, MLflow creates a second run."""
    for run in search(client, experiment_of(client, plan), tag_filter({"headstart.plan": plan.id})):
        if run.info.run_id != run_id:
            client.delete_run(run.info.run_id)


def search(client: MlflowClient, experiment: str, condition: str, limit: int = 1000) -> list[Run]:
    """Newest first."""
    return list(client.search_runs([experiment], condition, max_results=limit, order_by=["start_time DESC"]))


def newest_run(
    client: MlflowClient, experiment: str, tags: Mapping[str, str], condition: str = ""
) -> Run | None:
    return next(iter(search(client, experiment, condition + tag_filter(tags), limit=1)), None)


def tag_filter(tags: Mapping[str, str]) -> str:
    return " and ".join(f"tags.`{key}` = '{value}'" for key, value in tags.items())


def owner_of(run: Run) -> ProcessIdentity:
    return owner_from(run.data.tags)


def earlier_run(
    client: MlflowClient, experiment: str, tags: Mapping[str, str], *, may_have_finished: bool = False
) -> Run | None:
    """The newest run with these tags that no living process on this host owns."""
    for run in search(client, experiment, tag_filter(tags)):
        in_use = run.info.status == "RUNNING" and owner_of(run).is_alive
        if not in_use and (may_have_finished or run.info.status != "FINISHED"):
            return run
    return None


def resume(client: MlflowClient, run: Run, tags: Mapping[str, str]) -> None:
    """Set a run to RUNNING again, below the execution that resumes it."""
    resumed = int(run.data.tags.get("headstart.resumed", "0")) + 1
    _set_running(client, run)
    set_tags(client, run.info.run_id, {**tags, "headstart.resumed": str(resumed)})


def settle_parent(client: MlflowClient, parent_id: str) -> None:
    """Derive the execution's status: RUNNING if a stage runs, else FAILED if one failed, else FINISHED.

    One without stages has FAILED: another execution has resumed the run of its only stage.
    """
    parent = client.get_run(parent_id)
    children = children_of(client, parent)
    states = {run.info.status for run in children}
    if "RUNNING" in states:
        return
    if states == {"FINISHED"}:
        clear_error(client, parent)
    ended_ms = max((run.info.end_time for run in children), default=now_ms())
    client.set_terminated(parent_id, "FINISHED" if states == {"FINISHED"} else "FAILED", ended_ms)


def children_of(client: MlflowClient, parent: Run) -> list[Run]:
    """The runs of an execution's stages, newest first."""
    return search(client, parent.info.experiment_id, tag_filter({"mlflow.parentRunId": parent.info.run_id}))


def clear_error(client: MlflowClient, run: Run) -> None:
    if "headstart.error" in run.data.tags:
        client.delete_tag(run.info.run_id, "headstart.error")


def set_tags(client: MlflowClient, run_id: str, tags: Mapping[str, str]) -> None:
    from mlflow.entities import RunTag

    client.log_batch(run_id, tags=[RunTag(key, value) for key, value in tags.items()])


def _set_running(client: MlflowClient, run: Run) -> None:
    client.update_run(run.info.run_id, status="RUNNING")
    clear_error(client, run)


def _run_to_resume(client: MlflowClient, experiment: str, plan: RunPlan, parent_id: str | None) -> Run | None:
    if not plan.same:
        return None
    if plan.kind == "trial" and parent_id:  # a stage has one trial of a key, finished or not
        below = newest_run(client, experiment, {**plan.same, "mlflow.parentRunId": parent_id})
        if below:
            return below
    return earlier_run(client, experiment, plan.same, may_have_finished=plan.may_have_finished)


def _log_params(client: MlflowClient, run: Run, params: Mapping[str, str]) -> None:
    """Log the params that the run lacks: an earlier attempt may have been interrupted."""
    from mlflow.entities import Param

    entries = [Param(key, value) for key, value in params.items() if key not in run.data.params]
    for batch in batches(entries, PARAMS_PER_CALL):
        client.log_batch(run.info.run_id, params=batch)


# ------------------------------------------------------------------------------------ tags and names


def git_tags(root: Path) -> dict[str, str]:
    """Tags for the git commit and for whether tracked files differ from it; none outside a repository."""
    commit = head(root)
    if commit is None:
        return {}
    dirty = str(commit.has_changes).lower()
    return {"mlflow.source.git.commit": commit.id, "headstart.git.dirty": dirty}


def mlflow_name(text: str) -> str:
    """A name that MLflow accepts: `encode@target` -> `encode:target`."""
    return re.sub(r"[^\w./: -]", "_", text.replace("@", ":"))[:NAME_CHARACTERS]


def batches(entries: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    for start in range(0, len(entries), size):
        yield entries[start : start + size]


def now_ms() -> int:
    return int(time.time() * 1000)
