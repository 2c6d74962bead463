"""The corpora: their sizes, and the rows that were left out of them."""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.report.figures import Figures
from pipeline.report.section import Block, Paragraph, Section, table


def section(figures: Figures) -> Section:
    return Section("corpora", "Corpora", blocks(figures), in_summary=True)


def blocks(figures: Figures) -> tuple[Block, ...]:
    return (table(_sizes(figures)), Paragraph(_left_out(figures)))


def _sizes(figures: Figures) -> list[dict[str, str]]:
    return [
        {
            "": f"{corpus}, {split}",
            "documents": f"{size.num_documents:,}",
            "words": f"{size.num_words:,}",
            "MB": f"{size.num_bytes / 1e6:,.1f}",
        }
        for corpus, prepared in figures.prepared.items()
        for split, size in prepared.splits.items()
    ]


def _left_out(figures: Figures) -> str:
    """The rows that `prepare` left out and repaired, and what it remarked."""

    def rows(by_corpus: Mapping[str, Mapping[str, int]]) -> str:
        counts = [
            f"{corpus}: {count:,} ({reason.replace('_', ' ')})"
            for corpus, by_reason in by_corpus.items()
            for reason, count in by_reason.items()
            if count
        ]
        return "; ".join(counts) or "nothing"

    prepared = figures.prepared
    skipped = rows({corpus: each.skipped for corpus, each in prepared.items()})
    repaired = rows({corpus: each.repaired for corpus, each in prepared.items()})
    remarks = [
        f" {corpus[0].upper()}{corpus[1:]}: {remark}."
        for corpus, each in prepared.items()
        for remark in each.remarks
    ]
    return f"Rows left out: {skipped}. Repaired: {repaired}.{''.join(remarks)}"
