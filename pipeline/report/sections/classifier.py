"""The classifier: what ships beside its rivals, its classes, its confusions and its calibration."""

from __future__ import annotations

from functools import partial

from pipeline.report import charts, sentences, tables
from pipeline.report import figures as data
from pipeline.report.figures import Figures
from pipeline.report.section import Chart, Heading, Paragraph, Section, paragraphs, table


def section(figures: Figures) -> Section:
    num_documents = figures.evaluate.num_documents
    num_classes = figures.prepared["target"].num_classes
    blocks = [
        Paragraph(f"On {num_documents:,} test documents of {num_classes} classes:"),
        table(tables.classifiers(figures)),
        *paragraphs(sentences.of_classifiers(figures)),
        Heading("By class"),
        table(tables.classes(figures)),
        _confusion(figures),
        _calibration(figures),
    ]
    return Section("result", "The classifier", tuple(blocks), in_summary=True)


def _confusion(figures: Figures) -> Chart:
    counts = data.confusion_counts(figures)
    numbers = [
        {"actual": row.actual, "predicted": row.predicted, "documents": str(row.documents)}
        for row in counts
        if row.documents
    ]
    return Chart(
        "confusion",
        partial(charts.confusion, counts),
        "Confusion matrix: documents by actual and predicted label; the shade is the share of the row.",
        numbers=table(numbers),
        picture="confusion",
    )


def _calibration(figures: Figures) -> Chart:
    numbers = [
        {
            "confidence": f"{row.confidence:.1%}",
            "accuracy": f"{row.accuracy:.1%}",
            "documents": f"{row.num_documents:.0f}",
        }
        for row in figures.calibration
    ]
    return Chart(
        "calibration",
        partial(charts.calibration, figures.calibration),
        "Calibration: accuracy by confidence. On the dashed line the two are equal.",
        numbers=table(numbers),
        picture="calibration",
    )
