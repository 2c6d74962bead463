"""The contents of the report: what stands at its top, and its sections in order."""

from __future__ import annotations

from collections.abc import Callable

from pipeline.report import section, sentences
from pipeline.report.figures import Figures
from pipeline.report.provenance import Provenance
from pipeline.report.section import Opening, Report, Section
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
from pipeline.report.verdict import at_a_glance, verdict

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
    *(study.compose for study in studies.all_sections()),
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
    return Report(_opening(figures), tuple(each for each in composed if each is not None and each.blocks))


def _opening(figures: Figures) -> Opening:
    answer, *following = verdict(figures)
    return Opening(
        answer=answer,
        following=tuple(following),
        at_a_glance=section.table(at_a_glance(figures) if figures.has_labels else []),
        remarks=tuple(sentences.remarks(figures)),
        key_figures=tuple(sentences.key_figures(figures)),
    )
