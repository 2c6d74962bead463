"""The search: its best settings, and how each setting moved the outcome."""

from __future__ import annotations

from functools import partial

from pipeline.report import charts, sentences, tables
from pipeline.report import figures as data
from pipeline.report.figures import Figures
from pipeline.report.section import Block, Bullets, Chart, Extra, Note, Paragraph, Section, table


def section(figures: Figures) -> Section | None:
    if figures.get("tune") is None:
        return None
    blocks = [
        Paragraph(sentences.search(figures)),
        table(tables.best_settings(figures)),
        Note("Importance: a setting's share in the spread of the outcomes, by fANOVA."),
        *_failed(figures),
        *_drawn(figures),
    ]
    return Section("search", "Search", tuple(blocks), in_summary=True)


def _failed(figures: Figures) -> list[Block]:
    trials = figures["tune"]["trials"]
    failures = {trial["trial"]: trial["failure"] for trial in trials if trial["failure"]}
    if not failures:
        return []
    said = Bullets(tuple(f"trial {trial}: {failure}" for trial, failure in failures.items()))
    return [Extra("Trials that failed", (said,), folded=False)]


def _drawn(figures: Figures) -> list[Block]:
    metrics = figures["tune"]
    measure, logarithmic = metrics["measure"], metrics["logarithmic"]
    rows, keys = data.trials(figures), data.by_importance(figures)
    return [
        Chart(
            "search",
            partial(charts.parallel_coordinates, rows, keys, logarithmic, measure),
            f"Each line is a trial, from its settings to its {measure}; each axis runs from the lowest to "
            "the highest value tried.",
        ),
        *(
            Chart(
                f"setting-{number}",
                partial(charts.setting, rows, key, key in logarithmic, measure),
                f"{key} and {measure}, trial by trial.",
            )
            for number, key in enumerate(keys)
        ),
    ]
