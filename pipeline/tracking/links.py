"""The execution's run: links to the runs of its stages, and whether all succeeded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.tracking.plans import clear_error, mlflow_name, newest_run, search, set_tags, tag_filter

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

    from pipeline.tracking.outcomes import Outcome


def link_stages(client: MlflowClient, parent_id: str, outcome: Outcome, finished: bool) -> None:
    """Set the execution's links to the run of each stage.

    A stage that DVC has cached is linked to the newest finished run with the recipe that dvc.lock records,
    or to the newest finished run if it records none. Stages after this one may still run: they are linked
    once they have run, or once this one has finished without them.
    """
    parent = client.get_run(parent_id)
    experiment = parent.info.experiment_id
    own = {run.data.tags["headstart.stage"]: run for run in reversed(_children(client, parent))}
    names = [mlflow_name(each) for each in outcome.stages]
    stage = mlflow_name(outcome.plan.name)
    place = names.index(stage) if stage in names and not finished else len(names)
    recipes = {mlflow_name(each): recipe for each, recipe in outcome.recipes.items()}
    links: dict[str, Run] = {}
    for name in [*names, *own]:
        recipe = {"headstart.recipe": recipes[name]} if name in recipes else {}
        if name in own:
            links[name] = own[name]
        elif name in names[:place]:
            condition = "attributes.status = 'FINISHED' and "
            earlier = newest_run(client, experiment, {"headstart.stage": name, **recipe}, condition)
            links |= {name: earlier} if earlier else {}
    tags = {f"headstart.stage.{name}": run.info.run_id for name, run in links.items()}
    tags |= {f"headstart.cached.{name}": "true" for name in links if name not in own}
    notes = [_note_line(name, run, name not in own) for name, run in links.items()]
    tags["mlflow.note.content"] = "\n".join(notes)
    set_tags(client, parent_id, tags)
    for key in parent.data.tags:
        if key.startswith(("headstart.stage.", "headstart.cached.")) and key not in tags:
            client.delete_tag(parent_id, key)


def settle_parent(client: MlflowClient, parent_id: str) -> None:
    """Derive the execution's status: RUNNING if a stage runs, else FAILED if one failed, else FINISHED."""
    parent = client.get_run(parent_id)
    children = _children(client, parent)
    states = {run.info.status for run in children}
    if "RUNNING" in states:
        return
    if states == {"FINISHED"}:
        clear_error(client, parent)
    ended_ms = max(run.info.end_time for run in children)
    client.set_terminated(parent_id, "FAILED" if states - {"FINISHED"} else "FINISHED", ended_ms)


def _children(client: MlflowClient, parent: Run) -> list[Run]:
    return search(client, parent.info.experiment_id, tag_filter({"mlflow.parentRunId": parent.info.run_id}))


def _note_line(stage: str, run: Run, cached: bool) -> str:
    link = f"#/experiments/{run.info.experiment_id}/runs/{run.info.run_id}"
    return f"- [{stage}]({link})" + (" (cached: run of an earlier execution)" if cached else "")
