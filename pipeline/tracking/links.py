"""The execution's run: links to the runs of its stages, and whether all succeeded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.tracking.plans import children_of, mlflow_name, newest_run, set_tags

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
    own = {run.data.tags["headstart.stage"]: run for run in reversed(children_of(client, parent))}
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


def _note_line(stage: str, run: Run, cached: bool) -> str:
    link = f"#/experiments/{run.info.experiment_id}/runs/{run.info.run_id}"
    return f"- [{stage}]({link})" + (" (cached: run of an earlier execution)" if cached else "")
