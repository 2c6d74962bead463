"""Stage: metrics, curves and tables of all stages -> one page, a Markdown summary, pictures, main figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pipeline.files.atomic import atomic_folder, atomic_write_text
from pipeline.project.project import Project
from pipeline.report import charts, markdown, trust
from pipeline.report import figures as say
from pipeline.report.headline import headline_figures
from pipeline.report.model_card import model_card
from pipeline.report.page import Provenance, page
from pipeline.report.studies import read_studies


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
) -> dict[str, Any]:
    """Write the page to `out`, Markdown to `summary`, PNGs into `pictures`, the main figures to `headline`.

    The model card goes to `card`.

    Raises ValueError if the metrics of a stage are missing.
    """
    params = project.params
    tokenizers = {name: params.headstarts[name].tokenizer for name in params.run.headstarts}
    found = say.read(figures, curves, evaluation, tokenizers, read_studies(studies), params.corpus.names)
    drawn = _charts_of_labels(found) if found.has_labels else {}
    for number, (title, rows) in enumerate(say.language_model_curves(found).items(), start=1):
        drawn[f"language_models_{number}"] = charts.language_models(rows, title)
    if found.scaling is not None:
        drawn["scaling"] = charts.isoflop(found.scaling.isoflop)
    with atomic_folder(pictures) as folder:
        for name, chart in drawn.items():
            chart.properties(width=560).save(str(folder / f"{name}.png"), scale_factor=2)
    atomic_write_text(out, page(found, provenance))
    atomic_write_text(summary, markdown.summary(found))
    atomic_write_text(headline, json.dumps(headline_figures(found), indent=2) + "\n")
    about = (
        model_card(found, params.card, provenance) if found.has_labels else "Nothing ships without labels.\n"
    )
    atomic_write_text(card, about)
    return {"num_pictures": len(drawn)}


def _charts_of_labels(found: say.Figures) -> dict[str, Any]:
    return {
        "label_curve": charts.label_curve(
            [*say.label_curve(found), *say.in_context(found)], found.curve.confidence
        ),
        "prices": charts.prices(say.prices(found)),
        "confusion": charts.confusion(say.confusion_counts(found)),
        "calibration": charts.calibration(found.calibration),
        "risk_coverage": charts.risk_coverage(found.risk, trust.thresholds(found)),
    }
