"""The search: its best settings, and how each setting moved the outcome."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from pipeline.figures.sweeps import SearchFigures
from pipeline.report.charts import colour, data, sized
from pipeline.report.figures import Figures
from pipeline.report.section import Block, Bullets, Chart, Extra, Note, Paragraph, Section, table


def section(figures: Figures) -> Section | None:
    search = figures.search
    if search is None:
        return None
    blocks = [
        Paragraph(_said(search)),
        table(_best_settings(search)),
        Note("Importance: a setting's share in the spread of the outcomes, by fANOVA."),
        *_failed(search),
        *_charts(search),
    ]
    return Section("search", "Search", tuple(blocks), in_summary=True)


def _failed(search: SearchFigures) -> list[Block]:
    failures = {trial.trial: trial.failure for trial in search.trials if trial.failure}
    if not failures:
        return []
    said = Bullets(tuple(f"trial {trial}: {failure}" for trial, failure in failures.items()))
    return [Extra("Trials that failed", (said,), folded=False)]


def _charts(search: SearchFigures) -> list[Block]:
    keys = _by_importance(search)
    return [
        Chart(
            "search",
            partial(_parallel_coordinates, search, keys),
            f"Each line is a trial, from its settings to its {search.measure}; each axis runs from the "
            "lowest to the highest value tried.",
        ),
        *(
            Chart(
                f"setting-{number}",
                partial(_setting, search, key),
                f"{key} and {search.measure}, trial by trial.",
            )
            for number, key in enumerate(keys)
        ),
    ]


def _said(search: SearchFigures) -> str:
    states = ", ".join(f"{count} {state}" for state, count in search.states.items() if count)
    what = search.stage + ("" if search.labels is None else f" with {search.labels:,} labels")
    return (
        f"{search.num_trials} trials of {what} ({states}). The best, trial {search.best.trial}: "
        f"{search.measure} {search.best.value:.4f}, on validation text."
    )


def _best_settings(search: SearchFigures) -> list[dict[str, str]]:
    """The search's best settings, the most important first."""
    settings, importance = search.best.settings, search.importance
    return [
        {
            "setting": key,
            "best": f"{value:.4g}" if isinstance(value := settings[key], float) else str(value),
            "importance": f"{importance[key]:.0%}" if key in importance else "",
        }
        for key in _by_importance(search)
    ]


def _by_importance(search: SearchFigures) -> list[str]:
    """The settings that the search tried, the most important first."""
    return sorted(search.best.settings, key=lambda key: -search.importance.get(key, 0.0))


def _setting(search: SearchFigures, key: str) -> Any:
    """One setting of a search against its measure, a point a trial."""
    import altair as alt

    trials = search.judged
    rows = [
        {key: trial.settings[key], "trial": trial.trial, "value": trial.value, "state": trial.state}
        for trial in trials
    ]
    scale = alt.Scale(type="log") if key in search.logarithmic else alt.Scale(zero=False)
    number = all(isinstance(trial.settings[key], int | float) for trial in trials)
    x = alt.X(f"{_field(key)}:{'Q' if number else 'N'}", title=key, scale=scale if number else alt.Undefined)
    return sized(
        alt.Chart(data(rows))
        .mark_point(filled=True, size=60, opacity=0.8)
        .encode(
            x=x,
            y=alt.Y("value:Q", title=search.measure, scale=alt.Scale(zero=False)),
            color=colour("state:N", ""),
            tooltip=["trial:Q", alt.Tooltip("value:Q", format=".4f"), "state:N"],
        ),
        height=180,
    )


def _parallel_coordinates(search: SearchFigures, keys: Sequence[str]) -> Any:
    """Every trial as a line through its settings, each on its own scale from the lowest to the highest."""
    import altair as alt

    columns = {key: [trial.settings[key] for trial in search.judged] for key in keys}
    columns[search.measure] = [trial.value for trial in search.judged]
    points = [
        {
            "trial": trial.trial,
            "axis": _without_section(axis),
            "height": _relative(column[place], column, axis in search.logarithmic),
            "shown": column[place],
            "value": trial.value,
        }
        for place, trial in enumerate(search.judged)
        for axis, column in columns.items()
    ]
    return sized(
        alt.Chart(data(points))
        .mark_line(opacity=0.7, point=True)
        .encode(
            x=alt.X(
                "axis:N",
                sort=[_without_section(axis) for axis in columns],
                title=None,
                axis=alt.Axis(labelAngle=-40, labelLimit=140, labelOverlap=False),
            ),
            y=alt.Y("height:Q", title="lowest to highest", axis=alt.Axis(labels=False, ticks=False)),
            detail="trial:Q",
            color=alt.Color("value:Q", title=search.measure, scale=alt.Scale(scheme="viridis", reverse=True)),
            tooltip=["trial:Q", "axis:N", "shown:N", alt.Tooltip("value:Q", format=".4f")],
        )
    )


def _without_section(key: str) -> str:
    """A search's setting without its section, all the same anyway: there is little room below an axis."""
    return key.partition(".")[2] or key


def _relative(value: Any, column: Sequence[Any], logarithmic: bool) -> float:
    """0 for the lowest value of the column, 1 for the highest."""
    if not all(isinstance(setting, int | float) for setting in column):
        kinds = sorted({str(setting) for setting in column})
        return kinds.index(str(value)) / max(1, len(kinds) - 1)
    if logarithmic:
        value, column = math.log(value), [math.log(setting) for setting in column]
    low, high = min(column), max(column)
    return 0.5 if high == low else float((value - low) / (high - low))


def _field(key: str) -> str:
    """A dotted key as a field name: Vega reads an unescaped dot as access to a nested object."""
    return key.replace(".", "\\.")
