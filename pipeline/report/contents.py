"""The contents of the report: its opening, and its sections in order."""

from __future__ import annotations

from collections.abc import Callable

from pipeline.report.figures import Figures
from pipeline.report.opening import opening
from pipeline.report.provenance import Provenance
from pipeline.report.section import Report, Section
from pipeline.report.sections import (
    ablations,
    attention,
    classifier,
    corpora,
    distilled,
    errors,
    label_curve,
    language_models,
    leakage,
    learning_rates,
    prices,
    runs,
    scaling,
    search,
    studies,
    trust,
    vocabulary,
)

Composer = Callable[[Figures], Section | None]

OF_LABELS: tuple[Composer, ...] = (
    label_curve.section,
    prices.section,
    classifier.section,
    trust.section,
    distilled.section,
    errors.section,
    attention.section,
)
OF_ALL: tuple[Composer, ...] = (
    language_models.section,
    *(study.section for study in studies.all_sections()),
    learning_rates.section,
    search.section,
    ablations.section,
    scaling.section,
    vocabulary.section,
    leakage.section,
    corpora.section,
)


def compose(figures: Figures, provenance: Provenance) -> Report:
    composers = (*OF_LABELS, *OF_ALL) if figures.has_labels else OF_ALL
    composed = [*(composer(figures) for composer in composers), runs.section(provenance)]
    return Report(opening(figures), tuple(each for each in composed if each is not None and each.blocks))
