"""The search: its best settings, and how each setting moved the outcome."""

from __future__ import annotations

from functools import partial

from pipeline.figures.sweeps import SearchFigures
from pipeline.report import charts, sentences, tables
from pipeline.report import figures as data
from pipeline.report.figures import Figures
from pipeline.report.section import Block, Bullets, Chart, Extra, Note, Paragraph, Section, table


def section(figures: Figures) -> Section | None:
    search = figures.search
    if search is None:
        return None
    blocks = [
        Paragraph(sentences.search(figures)),
        table(tables.best_settings(figures)),
        Note("Importance: a setting's share in the spread of the outcomes, by fANOVA."),
        *_failed(search),
        *_drawn(search),
    ]
    return Section("search", "Search", tuple(blocks), in_summary=True)


def _failed(search: SearchFigures) -> list[Block]:
    failures = {trial.trial: trial.failure for trial in search.trials if trial.failure}
    if not failures:
        return []
    said = Bullets(tuple(f"trial {trial}: {failure}" for trial, failure in failures.items()))
    return [Extra("Trials that failed", (said,), folded=False)]


def _drawn(search: SearchFigures) -> list[Block]:
    keys = data.by_importance(search)
    return [
        Chart(
            "search",
            partial(charts.parallel_coordinates, search, keys),
            f"Each line is a trial, from its settings to its {search.measure}; each axis runs from the "
            "lowest to the highest value tried.",
        ),
        *(
            Chart(
                f"setting-{number}",
                partial(charts.setting, search, key),
                f"{key} and {search.measure}, trial by trial.",
            )
            for number, key in enumerate(keys)
        ),
    ]
