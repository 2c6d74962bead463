"""Runs, training curves and models in MLflow: the only import of mlflow (with `serving`, which MLflow loads).

    stores.py     addresses, credentials, a client that never hangs, its errors
    processes.py  which process owns a run
    plans.py      which runs exist, and how one is opened, at once or later
    curves.py     training curves: in a file first, from there in MLflow
    links.py      what an execution's run shows of its stages
    outcomes.py   how runs end, and how MLflow hears of it exactly once
    runs.py       open runs of stages and trials
    models.py     files and registered models

DVC starts every stage in a process of its own, so the nearest `dvc` process above identifies an execution.
MLflow may be away at any time: nothing waits for it, and nothing is lost.
"""

# ruff: noqa: F401
from pipeline.tracking.curves import Record, Recorder, RecorderConfig, read_records, sync
from pipeline.tracking.models import aliased_keys, describe_model, linked_runs, register_model
from pipeline.tracking.outcomes import Kept, deliver
from pipeline.tracking.processes import dvc_above, was_adopted, was_asked_by_force
from pipeline.tracking.runs import (
    StageInfo,
    StageRun,
    begin_trial,
    log_headline,
    log_metrics,
    log_points,
    settle_trial,
    stage_run,
    trial_run,
)
from pipeline.tracking.stores import FencedError, tracking_uri
