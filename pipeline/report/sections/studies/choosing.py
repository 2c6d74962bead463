"""Which documents to label: the study of `headstart suggest --simulate`."""

from __future__ import annotations

from typing import ClassVar

from pipeline.figures.studies import Choosing, Study
from pipeline.report.section import Block, Paragraph, table
from pipeline.report.sections.studies import StudySection, one_by_one
from pipeline.report.wording import listed


class ChoosingStudy(Study):
    """Ways to choose what to label, tried on the features of a head start."""

    kind: ClassVar[str] = "choosing"
    num_documents: int
    num_judged: int
    tried: Choosing


def blocks(study: ChoosingStudy) -> list[Block]:
    return [Paragraph(said(study)), table(rows(study.tried))]


def strategies_that_help(tried: Choosing) -> list[str]:
    """The ways to choose labels that are clearly better than random choice at some number of labels."""
    first = tried.counts[0]
    return [
        name
        for name, by_count in tried.above.items()
        if any(each.is_clearly_less for count, each in by_count.items() if count != first)
    ]


def said(study: ChoosingStudy) -> str:
    """Tell what was tried, and whether choosing saves labels."""
    tried = study.tried
    better = strategies_that_help(tried)
    verdict = "None is clearly better than random choice: choosing saves nothing."
    if better:
        verdict = (
            "Clearly better than random choice at some number, each interval taken by itself: "
            f"{listed(better)}."
        )
    return (
        f"Labels chosen in rounds among {study.num_documents:,} documents, the first {tried.counts[0]:,} at "
        f"random and the others by probes on the features of {study.headstart}; error on "
        f"{study.num_judged:,} test documents, mean of {tried.num_seeds} first draws; in brackets the "
        f"interval of the points above random choice. {verdict}"
    )


def rows(tried: Choosing) -> list[dict[str, str]]:
    """Error by number of labels of each way to choose them; in brackets the interval above random choice."""
    made, (first, *_), middle = [], tried.counts, tried.counts[len(tried.counts) // 2]
    for name, by_count in tried.curve.items():
        needed = tried.needed.get(name, {}).get(middle)
        row = {"strategy": name, f"{middle:,} are worth, at random": "" if needed is None else str(needed)}
        for count in tried.counts:
            above = tried.above.get(name, {}).get(count)
            interval = "" if above is None or count == first else f" ({above.points.interval:+.1f})"
            row[f"{count:,}"] = f"{by_count[count].error.value:.1%}{interval}"
        made.append(row)
    return made


SECTION = StudySection(3, "choosing", "Which documents to label", (ChoosingStudy,), one_by_one(blocks))
