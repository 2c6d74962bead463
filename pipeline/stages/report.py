"""Stage: metrics, curves and tables of all stages -> one page, a Markdown summary, pictures, main figures."""

from __future__ import annotations

import json
from pathlib import Path

from pipeline.figures.report import ReportFigures
from pipeline.files.atomic import atomic_folder, atomic_write_text
from pipeline.project.project import Project
from pipeline.report import markdown
from pipeline.report.contents import compose
from pipeline.report.figure_files import read_all
from pipeline.report.headline import headline_figures
from pipeline.report.model_card import model_card
from pipeline.report.page import page
from pipeline.report.provenance import Provenance
from pipeline.report.sections.studies import all_sections
from pipeline.report.study_files import read_studies

_PICTURE_WIDTH = 560


def run(
    project: Project,
    *,
    figures: Path,
    curves: Path,
    evaluation: Path,
    studies: Path,
    out: Path,
    summary: Path,
    pictures: Path,
    headline: Path,
    card: Path,
    provenance: Provenance,
) -> ReportFigures:
    """Write the page to `out`, Markdown to `summary`, PNGs into `pictures`, the main figures to `headline`.

    The model card goes to `card`.

    Raises ValueError if the metrics of a stage are missing.
    """
    params = project.params
    tokenizers = {name: params.headstarts[name].tokenizer for name in params.run.headstarts}
    kinds = [kind for section in all_sections() for kind in section.kinds]
    known = read_studies(studies, kinds)
    found = read_all(figures, curves, evaluation, tokenizers, known, params.corpus.names)
    report = compose(found, provenance)
    drawn = report.pictures()
    with atomic_folder(pictures) as folder:
        for chart in drawn:
            picture = chart.draw().properties(width=_PICTURE_WIDTH)
            picture.save(str(folder / f"{chart.picture}.png"), scale_factor=2)
    atomic_write_text(out, page(report))
    atomic_write_text(summary, markdown.summary(report))
    atomic_write_text(headline, json.dumps(headline_figures(found), indent=2) + "\n")
    about = (
        model_card(found, params.card, provenance) if found.has_labels else "Nothing ships without labels.\n"
    )
    atomic_write_text(card, about)
    return ReportFigures(num_pictures=len(drawn))
