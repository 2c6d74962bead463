"""Distilled: how much of what ships a smaller student keeps."""

from __future__ import annotations

from pipeline.figures.classifiers import Scores
from pipeline.figures.sweeps import DistilFigures, MeasuredClassifier
from pipeline.report.figures import Figures
from pipeline.report.section import Paragraph, Section, table
from pipeline.report.wording import candidate_name
from pipeline.settings.arm import Arm


def section(figures: Figures) -> Section | None:
    if (distilled := figures.distilled) is None:
        return None
    blocks = (Paragraph(_said(distilled)), table(_compared(figures, distilled)))
    return Section("distilled", "Distilled", blocks, in_summary=True)


def _said(distilled: DistilFigures) -> str:
    """Tell how much a student keeps of the classifier that ships, and how much it saves."""
    teacher, student = distilled.teacher, distilled.distilled
    faster = student.documents_per_second / teacher.documents_per_second
    kept = student.scores.accuracy.value / teacher.scores.accuracy.value
    return (
        f"The classifier of {distilled.student} learned from what ships on {distilled.num_taught:,} "
        f"documents, {distilled.num_labels:,} of them labelled. It keeps {kept:.1%} of its accuracy and "
        f"agrees with it on {distilled.agreement:.1%} of {distilled.num_documents:,} test documents. On the "
        f"machine of the run it labels {faster:,.1f} times as many a second. Its files, in data/distilled, "
        f"take {student.num_bytes / 1e6:,.1f} MB instead of {teacher.num_bytes / 1e6:,.1f}."
    )


def _compared(figures: Figures, distilled: DistilFigures) -> list[dict[str, str]]:
    """Compare what ships with its student, and with the same head start without a teacher."""
    evaluated = figures.evaluate
    untaught = evaluated.candidates[Arm(distilled.student)].scores
    return [
        _measured(
            f"{candidate_name(evaluated.shipped)} (ships)", distilled.teacher.scores, distilled.teacher
        ),
        _measured(f"{distilled.student}, taught by it", distilled.distilled.scores, distilled.distilled),
        _measured(f"{distilled.student}, without it", untaught),
    ]


def _measured(name: str, scores: Scores, use: MeasuredClassifier | None = None) -> dict[str, str]:
    return {
        "": name,
        "error (interval)": f"{scores.error:.1%}",
        "log loss, nats": f"{scores.log_loss.value:.3f}",
        "documents a second": "" if use is None else f"{use.documents_per_second:,.0f}",
        "MB": "" if use is None else f"{use.num_bytes / 1e6:,.1f}",
    }
