"""Stage: a search over settings, judged on validation text alone -> the best ones, and what was tried."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from pipeline.artifacts.links import tokens_at
from pipeline.distributed.sampling import TrialResult, grid_points, importances
from pipeline.distributed.search import Objective, search
from pipeline.distributed.settings import Tune
from pipeline.figures.sweeps import BestTrial, NoTrials, SearchFigures, SearchTrial
from pipeline.files.atomic import atomic_folder
from pipeline.files.tables import write_csv
from pipeline.identity.fingerprint import fingerprint_of
from pipeline.project.headstarts import stage_space
from pipeline.project.project import Project
from pipeline.stages._search_jobs import Jobs, nested
from pipeline.sweeps.sweep import SearchRuns, Sweep
from pipeline.terminal.progress import counted


def run(
    project: Project,
    *,
    tokens: Path,
    general_lm: Path,
    target_lm: Path,
    features: Path,
    out: Path,
    sweep: Sweep,
) -> SearchFigures | NoTrials:
    """Search; write `best.yaml`, for `headstart use`, and all trials into the folder `out`.

    Raises ValueError for a key that does not exist, or a range that holds a value it must not have.
    """
    params, settings = project.params, project.params.tune
    if not settings.num_trials:
        with atomic_folder(out) as folder:
            _write_trials(folder / "trials.csv", [], [])
        return NoTrials(key=sweep.key)
    name = settings.headstart
    head_start = project.head_starts[name]
    settings = settings.model_copy(update={"space": stage_space(settings, head_start)})
    judged = head_start.objective.measures[0]
    measures = {
        "finetune_lm": (f"validation/{judged.name}", judged.title, _same),
        "finetune_classifier": ("validation/accuracy", "validation error", _error),
    }
    metric, measure, of_metric = measures[settings.stage]
    jobs = Jobs(
        settings,
        head_start,
        partial(project.varied, name, where="tune"),
        params.corpus.target.normalise,
        params.run.seed,
        tokens=tokens_at(tokens / name / "target.json").resolve(),
        general_lm=(general_lm / name).resolve(),
        target_lm=(target_lm / name).resolve(),
        features=features.resolve(),
    )
    jobs.check()
    read = [f"tokens/{name}/target.json", f"general_lm/{name}", f"target_lm/{name}"]
    read += [f"features/{other}" for other in jobs.beside]
    keys = sweep.keys(jobs.settings(), read, head_start.family.name)
    objective = Objective(jobs.make, keys.session, sweep.run, metric, of_metric)
    # Only what the search itself depends on: adopting its best settings must not start another search.
    asked = settings.model_dump(exclude={"overrides"}) | {
        "room": sweep.resources.model_dump(),
        "sampling": fingerprint_of("pipeline.distributed.sampling").digest,
    }
    key_of_search = keys.of({"search": asked})
    sweep.retain([key_of_search])
    folder_of_search = f"{keys.place_of(key_of_search).folder}/search"
    with (
        counted(_number_of_trials(settings), "trials") as advance,
        SearchRuns(sweep, measure, keys, advance) as runs,
    ):
        tried = search(objective, settings, sweep.resources, sweep.cluster, folder_of_search, runs)
    ended = [trial for trial in tried if trial.value is not None]
    if not ended:
        raise ValueError(
            f"none of {len(tried)} trials reached an evaluation; the first failure: {tried[0].failure}"
        )
    # What was stopped early was worse than its peers by then: the best is among those that were not.
    best = min([trial for trial in ended if trial.state == "finished"] or ended, key=_value)
    with atomic_folder(out) as folder:
        _write_best(folder / "best.yaml", best, settings, jobs.section, measure, jobs.num_labels)
        _write_trials(folder / "trials.csv", tried, list(settings.ranges))
    assert best.value is not None
    return SearchFigures(
        key=sweep.key,
        num_trials=len(tried),
        headstart=name,
        stage=settings.stage,
        labels=jobs.num_labels,
        measure=measure,
        best=BestTrial(trial=best.number, value=best.value, settings=dict(best.values)),
        states={
            state: sum(trial.state == state for trial in tried)
            for state in ("finished", "stopped early", "failed")
        },
        importance=importances(settings.ranges, tried),
        logarithmic=[key for key, each in settings.ranges.items() if each.log],
        trials=[_figures(trial) for trial in tried],
    )


def _figures(trial: TrialResult) -> SearchTrial:
    return SearchTrial(
        trial=trial.number,
        value=trial.value,
        percent=trial.percent,
        state=trial.state,
        failure=trial.failure,
        settings=dict(trial.values),
    )


def _number_of_trials(settings: Tune) -> int:
    """Number of trials. Raises ValueError for a grid with more points than `tune.num_trials`."""
    if settings.search != "grid":
        return settings.num_trials
    points = math.prod(len(grid_points(each)) for each in settings.ranges.values())
    if points > settings.num_trials:
        raise ValueError(
            f"the grid of tune.space has {points:,} points, but tune.num_trials is {settings.num_trials:,}: "
            "raise it, or take keys out of the space by null"
        )
    return points


def _same(value: float) -> float:
    return value


def _error(accuracy: float) -> float:
    return 1 - accuracy


def _value(trial: TrialResult) -> float:
    assert trial.value is not None
    return trial.value


def _write_best(
    path: Path, best: TrialResult, settings: Tune, section: str, measure: str, num_labels: int | None
) -> None:
    """Write `best.yaml`; values of the searched stage go into a section of the head start."""
    from ruamel.yaml import YAML

    found = nested(best.values)
    if settings.stage in found:
        found[section] = found.pop(settings.stage)
    found = {"headstarts": {settings.headstart: found}}
    of_what = settings.stage if num_labels is None else f"{num_labels} labels"
    with path.open("w", encoding="utf-8") as file:
        file.write(
            f"# The best of the search for {of_what}: {measure} {best.value:.4f}, trial {best.number}.\n"
        )
        YAML().dump(found, file)


def _write_trials(path: Path, tried: Sequence[TrialResult], keys: Sequence[str]) -> None:
    rows = [
        {
            "trial": trial.number,
            "value": trial.value,
            "percent": round(trial.percent, 1),
            "state": trial.state,
        }
        | {key: trial.values.get(key, "") for key in keys}
        | {"failure": trial.failure}
        for trial in tried
    ]
    write_csv(path, rows, ["trial", "value", "percent", "state", *keys, "failure"])
