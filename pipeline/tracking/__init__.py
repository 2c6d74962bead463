"""Runs, training curves and models in MLflow: the only import of mlflow (with `serving`, which MLflow loads).

    stores.py     where runs are kept: addresses, credentials, a client, what its errors mean
    processes.py  who a run belongs to
    plans.py      which runs there are, and how one is opened, at once or later
    curves.py     training curves: a file first, from there to MLflow
    links.py      what an execution's run says of its stages
    outcomes.py   how runs end, and that MLflow is told of it, once
    runs.py       the runs of stages and trials, while they are open
    models.py     files and registered models

DVC starts every stage as a process of its own, so an execution is recognised by the nearest `dvc` process
above. MLflow may be away at any time: nothing waits for it, and nothing is lost.
"""

from pipeline.tracking.curves import Delivery, Record, Recorder, RecorderConfig, read_records, sync
from pipeline.tracking.models import aliased_keys, linked_runs, log_artifact, register_model
from pipeline.tracking.outcomes import Delivered, Left, deliver
from pipeline.tracking.plans import commit
from pipeline.tracking.processes import dvc_above
from pipeline.tracking.runs import (
    StageInfo,
    StageRun,
    TrialRun,
    log_metrics,
    log_points,
    settle_trial,
    stage_run,
    trial_run,
)
from pipeline.tracking.stores import FencedError, redact, tracking_uri

__all__ = [
    "Delivered",
    "Delivery",
    "FencedError",
    "Left",
    "Record",
    "Recorder",
    "RecorderConfig",
    "StageInfo",
    "StageRun",
    "TrialRun",
    "aliased_keys",
    "commit",
    "deliver",
    "dvc_above",
    "linked_runs",
    "log_artifact",
    "log_metrics",
    "log_points",
    "read_records",
    "redact",
    "register_model",
    "settle_trial",
    "stage_run",
    "sync",
    "tracking_uri",
    "trial_run",
]
