"""The language models: their curves, and their measures on validation text."""

from __future__ import annotations

from functools import partial

from pipeline.report import charts, sentences, tables
from pipeline.report import figures as data
from pipeline.report.figures import Figures
from pipeline.report.section import Chart, Paragraph, Section, paragraphs, table


def section(figures: Figures) -> Section:
    drawn = [
        Chart(
            f"language-models-{number}",
            partial(charts.language_models, rows, title),
            f"{title[0].upper()}{title[1:]} during pretraining and fine-tuning: training batches with "
            "dropout (lines) and validation text (dashed, with points).",
            picture=f"language_models_{number}",
        )
        for number, (title, rows) in enumerate(data.language_model_curves(figures).items(), start=1)
    ]
    measured = [table(rows) for rows in tables.language_models(figures)]
    said = [Paragraph("On validation text:")] if measured else []
    blocks = (*drawn, *said, *measured, *paragraphs(sentences.taught(figures)))
    return Section("models", "Language models", blocks, in_summary=True)
