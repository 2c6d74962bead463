"""What an execution's run says of its stages: links to their runs, and whether all went well."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pipeline.tracking.plans import forget_error, having, name_of, search, set_tags

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run


def link_stages(
    client: MlflowClient,
    parent_id: str,
    stage: str,
    stages: Sequence[str],
    recipes: Mapping[str, str],
    finished: bool,
) -> None:
    """Set the parent's links to the run of each stage: its own, or for a cached stage the one that made
    what DVC kept: the newest that finished with the recipe that dvc.lock records, if it records one.

    Until `stage` has finished, the later ones may still run: they are linked once they have run, or once
    this one has finished without them.
    """
    parent = client.get_run(parent_id)
    own = {run.data.tags["headstart.stage"]: run for run in reversed(_children(client, parent))}
    names = [name_of(each) for each in stages]
    place = names.index(name_of(stage)) if name_of(stage) in names else len(names)
    links = dict(own)
    cached = []
    for name in names if finished else names[:place]:
        experiment, recipe = parent.info.experiment_id, recipes.get(name)
        earlier = None if name in own else _newest_finished(client, experiment, name, recipe)
        if earlier:
            links[name] = earlier
            cached.append(name)
    tags = {f"headstart.stage.{name}": run.info.run_id for name, run in links.items()}
    tags |= {f"headstart.cached.{name}": "true" for name in cached}
    ordered = [name for name in names if name in links] + [name for name in own if name not in names]
    tags["mlflow.note.content"] = "\n".join(_note_line(name, links[name], name in cached) for name in ordered)
    set_tags(client, parent_id, tags)
    for key in parent.data.tags:
        if key.startswith(("headstart.stage.", "headstart.cached.")) and key not in tags:
            client.delete_tag(parent_id, key)


def settle_parent(client: MlflowClient, parent_id: str) -> None:
    """The parent is what its stages are: RUNNING if one runs, else FAILED if one failed, else FINISHED."""
    parent = client.get_run(parent_id)
    children = _children(client, parent)
    states = {run.info.status for run in children}
    if "RUNNING" in states:
        return
    if states == {"FINISHED"}:
        forget_error(client, parent)
    ended_ms = max(run.info.end_time for run in children)
    client.set_terminated(parent_id, "FAILED" if states - {"FINISHED"} else "FINISHED", ended_ms)


def _children(client: MlflowClient, parent: Run) -> list[Run]:
    return search(client, parent.info.experiment_id, having({"mlflow.parentRunId": parent.info.run_id}))


def _newest_finished(client: MlflowClient, experiment: str, stage: str, recipe: str | None) -> Run | None:
    tags = {"headstart.stage": stage} | ({"headstart.recipe": recipe} if recipe else {})
    finished = f"attributes.status = 'FINISHED' and {having(tags)}"
    return next(iter(search(client, experiment, finished, limit=1)), None)


def _note_line(stage: str, run: Run, cached: bool) -> str:
    link = f"#/experiments/{run.info.experiment_id}/runs/{run.info.run_id}"
    return f"- [{stage}]({link})" + (" (cached: run of an earlier execution)" if cached else "")
