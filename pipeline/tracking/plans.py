"""Which runs there are, and how one is opened: at once, later, or from another process.

One run for each pipeline execution, below it one for each stage, below those of a sweep one for each trial:

    dvc repro (process) = execution ── tag headstart.stage.<stage> ──> run of this or an earlier execution
      └─ stage (process) ── tag mlflow.parentRunId ──> execution
           └─ trial ── tag mlflow.parentRunId ──> stage

A `RunPlan` is all that its run needs to come into being. Its id is a tag of the run, so whoever opens it
again, after an answer that got lost or a delivery cut short, finds the run that there is.
"""

from __future__ import annotations

import re
import subprocess
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from pipeline.tracking.processes import Owner, this_execution
from pipeline.tracking.stores import TAG_CHARACTERS, redact

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

METRICS_PER_CALL = 1000  # MLflow's limits, from here down
PARAMS_PER_CALL = 100
PARAM_CHARACTERS = 6000
NAME_CHARACTERS = 250


@dataclass(frozen=True)
class RunPlan:
    """A run as it is to be in MLflow. Holds no credentials; picklable, and JSON by `to_dict`."""

    id: str
    kind: str  # pipeline (an execution), stage or trial
    experiment: str
    artifacts: str | None  # address of the experiment's artifacts, should it have to be made; None: MLflow's
    name: str
    start_ms: int  # since the epoch
    owner: Owner
    tags: Mapping[str, str] = field(default_factory=dict)
    params: Mapping[str, str] = field(default_factory=dict)
    same: Mapping[str, str] = field(default_factory=dict)  # tags of a run to go on with; none: never
    may_have_finished: bool = False  # whether that run may be a finished one
    above: RunPlan | None = None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        above = cls.from_dict(data["above"]) if data["above"] else None
        return cls(**{**data, "owner": Owner(*data["owner"]), "above": above})

    @property
    def all_tags(self) -> dict[str, str]:
        """As they are sent, but for that of the parent."""
        tags = {"headstart.kind": self.kind, "headstart.plan": self.id, **self.owner.tags, **self.tags}
        return {name_of(key): value[:TAG_CHARACTERS] for key, value in tags.items()}


def new_plan(
    kind: str, name: str, *, params: Mapping[str, Any], tags: Mapping[str, str], **fields: Any
) -> RunPlan:
    """Of a run that begins now; credentials are taken out of its params and tags."""
    clean = {key: redact(value) for key, value in tags.items()}
    sent = {name_of(key): redact(str(value))[:PARAM_CHARACTERS] for key, value in flatten(params).items()}
    start_ms = now_ms()
    return RunPlan(
        uuid.uuid4().hex, kind=kind, name=name, start_ms=start_ms, params=sent, tags=clean, **fields
    )


def execution_plan(root: Path, experiment: str, artifacts: str | None) -> RunPlan:
    """Of the execution that this process belongs to: of the nearest `dvc`, or its own."""
    owner = this_execution()
    execution, began_s = f"{owner.host}:{owner.pid}:{owner.started}", owner.began_s
    return RunPlan(
        id=execution,
        kind="pipeline",
        experiment=experiment,
        artifacts=artifacts,
        name=time.strftime("pipeline %Y-%m-%d %H:%M:%S", time.localtime(began_s)),
        start_ms=int(began_s * 1000),
        owner=owner,
        tags={"headstart.execution": execution, **git_tags(root)},
    )


# ------------------------------------------------------------------------------------------ opening


def open_run(client: MlflowClient, plan: RunPlan) -> str:
    """The id of the plan's run, RUNNING: the one that it has, else one to go on with, else a new one.

    May be repeated. The runs above it are opened first. Raises ValueError if its experiment was deleted.
    """
    experiment = experiment_of(client, plan)
    if plan.kind == "pipeline":
        return _open_execution(client, experiment, plan)
    parent_id = open_run(client, plan.above) if plan.above else None
    tags = plan.all_tags | ({"mlflow.parentRunId": parent_id} if parent_id else {})
    run = _with_plan(client, experiment, plan)
    if run is None:
        run = _to_go_on_with(client, experiment, plan, parent_id)
        if run is not None:
            reopen(client, run, tags)
    if run is None:
        run = _create(client, experiment, plan, tags)
    _log_params(client, run, plan.params)
    return str(run.info.run_id)


def experiment_of(client: MlflowClient, plan: RunPlan) -> str:
    from mlflow.exceptions import MlflowException

    known = client.get_experiment_by_name(plan.experiment)
    if known is None:
        try:
            return str(client.create_experiment(plan.experiment, plan.artifacts))
        except MlflowException as error:
            known = client.get_experiment_by_name(plan.experiment)
            if known is None:  # else another process was faster
                raise error
    if known.lifecycle_stage != "active":
        raise ValueError(
            f"the experiment {plan.experiment!r} was deleted in MLflow; bring it back with "
            f"`mlflow experiments restore --experiment-id {known.experiment_id}`"
        )
    return str(known.experiment_id)


def drop_twins(client: MlflowClient, plan: RunPlan, run_id: str) -> None:
    """Delete what a request to create the run made besides it: an answer got lost, and it was sent again."""
    for run in search(client, experiment_of(client, plan), having({"headstart.plan": plan.id})):
        if run.info.run_id != run_id:
            client.delete_run(run.info.run_id)


def search(client: MlflowClient, experiment: str, condition: str, limit: int = 1000) -> list[Run]:
    """Newest first."""
    return list(client.search_runs([experiment], condition, max_results=limit, order_by=["start_time DESC"]))


def having(tags: Mapping[str, str]) -> str:
    return " and ".join(f"tags.`{key}` = '{value}'" for key, value in tags.items())


def owner_of(run: Run) -> Owner:
    return Owner.from_tags(run.data.tags)


def earlier_run(
    client: MlflowClient, experiment: str, tags: Mapping[str, str], *, may_have_finished: bool = False
) -> Run | None:
    """The newest run with these tags that no process on this host is still at."""
    for run in search(client, experiment, having(tags)):
        at_work = run.info.status == "RUNNING" and owner_of(run).lives_here
        if not at_work and (may_have_finished or run.info.status != "FINISHED"):
            return run
    return None


def reopen(client: MlflowClient, run: Run, tags: Mapping[str, str]) -> None:
    """Take up a run again. It moves below the execution that goes on with it."""
    run_id, before = run.info.run_id, run.data.tags
    client.update_run(run_id, status="RUNNING")
    resumed = int(before.get("headstart.resumed", "0")) + 1
    set_tags(client, run_id, {**tags, "headstart.resumed": str(resumed)})
    forget_error(client, run)


def forget_error(client: MlflowClient, run: Run) -> None:
    if "headstart.error" in run.data.tags:
        client.delete_tag(run.info.run_id, "headstart.error")


def set_tags(client: MlflowClient, run_id: str, tags: Mapping[str, str]) -> None:
    from mlflow.entities import RunTag

    entries = [RunTag(key, value) for key, value in tags.items()]
    for batch in batches(entries, PARAMS_PER_CALL):
        client.log_batch(run_id, tags=batch)


def _open_execution(client: MlflowClient, experiment: str, plan: RunPlan) -> str:
    same = {"headstart.kind": "pipeline", "headstart.host": plan.owner.host}
    for run in search(client, experiment, having(same | {"headstart.pid": str(plan.owner.pid)})):
        if owner_of(run).is_same(plan.owner):
            client.update_run(run.info.run_id, status="RUNNING")
            forget_error(client, run)
            return str(run.info.run_id)
    return str(_create(client, experiment, plan, plan.all_tags).info.run_id)


def _with_plan(client: MlflowClient, experiment: str, plan: RunPlan) -> Run | None:
    return next(iter(search(client, experiment, having({"headstart.plan": plan.id}), limit=1)), None)


def _to_go_on_with(client: MlflowClient, experiment: str, plan: RunPlan, parent_id: str | None) -> Run | None:
    if not plan.same:
        return None
    if plan.kind == "trial" and parent_id:  # one trial of a key below a stage, finished or not
        here = search(client, experiment, having({**plan.same, "mlflow.parentRunId": parent_id}), limit=1)
        if here:
            return here[0]
    return earlier_run(client, experiment, plan.same, may_have_finished=plan.may_have_finished)


def _create(client: MlflowClient, experiment: str, plan: RunPlan, tags: Mapping[str, str]) -> Run:
    return client.create_run(experiment, plan.start_ms, dict(tags), plan.name[:NAME_CHARACTERS])


def _log_params(client: MlflowClient, run: Run, params: Mapping[str, str]) -> None:
    """Those that it lacks: an attempt may have been cut short."""
    from mlflow.entities import Param

    entries = [Param(key, value) for key, value in params.items() if key not in run.data.params]
    for batch in batches(entries, PARAMS_PER_CALL):
        client.log_batch(run.info.run_id, params=batch)


# -------------------------------------------------------------------------------------------- git


def commit(root: Path) -> str | None:
    """The git commit, and whether tracked files differ from it."""
    tags = git_tags(root)
    if not tags:
        return None
    changed = tags["headstart.git.dirty"] == "true"
    return tags["mlflow.source.git.commit"] + (", with changes" if changed else "")


def git_tags(root: Path) -> dict[str, str]:
    """Commit, and whether tracked files differ from it; nothing outside a git repository."""
    head = _git(root, "rev-parse", "HEAD")
    if head is None:
        return {}
    # `dvc repro` itself rewrites dvc.lock and reports: that is no change of the code or the settings.
    changed = _git(root, "status", "--porcelain", "-uno", "--", ".", ":!dvc.lock", ":!reports")
    return {"mlflow.source.git.commit": head, "headstart.git.dirty": str(bool(changed)).lower()}


def _git(root: Path, *arguments: str) -> str | None:
    try:
        # Names of files come as bytes that need not be text.
        done = subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, errors="replace"
        )
    except FileNotFoundError:  # git is not installed
        return None
    return done.stdout.strip() if done.returncode == 0 else None


# ---------------------------------------------------------------------------------- names and times


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"a": {"b": 1}} -> {"a.b": 1}"""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def name_of(text: str) -> str:
    """A name that MLflow takes: `encode@target` -> `encode:target`."""
    return re.sub(r"[^\w./: -]", "_", text.replace("@", ":"))[:NAME_CHARACTERS]


def batches(entries: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    for start in range(0, len(entries), size):
        yield entries[start : start + size]


def now_ms() -> int:
    return int(time.time() * 1000)
