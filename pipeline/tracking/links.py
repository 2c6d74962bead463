"""The execution's run: links to the runs of its stages, and whether all succeeded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pipeline.tracking.plans import children_of, mlflow_name, newest_run, set_tags

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run


def link_stages(
    client: MlflowClient,
    parent_id: str,
    stage: str,
    stages: Sequence[str],
    records: Mapping[str, str],
    *,
    finished: bool,
) -> None:
    """Set the execution's links to the run of each stage.

    A stage that DVC has cached is linked to the newest finished run with the record that dvc.lock has,
    or to the newest finished run if it records none. Stages after this one may still run: they are linked
    once they have run, or once this one has finished without them.

    Args:
        stage: the one that has begun, or ended.
        stages: all of the pipeline, in their order.
        records: those of dvc.lock, by stage.
        finished: whether `stage` has finished.
    """
    parent = client.get_run(parent_id)
    experiment = parent.info.experiment_id
    own = {run.data.tags["headstart.stage"]: run for run in reversed(children_of(client, parent))}
    names, own_name = [mlflow_name(name) for name in stages], mlflow_name(stage)
    num_before = names.index(own_name) if own_name in names and not finished else len(names)
    record_of = {mlflow_name(name): record for name, record in records.items()}
    links: dict[str, Run] = {}
    for name in [*names, *own]:
        record = {"headstart.record": record_of[name]} if name in record_of else {}
        if name in own:
            links[name] = own[name]
        elif name in names[:num_before]:
            condition = "attributes.status = 'FINISHED' and "
            earlier = newest_run(client, experiment, {"headstart.stage": name, **record}, condition)
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
