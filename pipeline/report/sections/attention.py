"""What attention pooling looked at: its words, and some documents."""

from __future__ import annotations

from pipeline.figures.predictions import Attention
from pipeline.report.figures import Figures
from pipeline.report.section import Block, Excerpt, Heading, Note, Section, table


def section(figures: Figures) -> Section | None:
    blocks = [block for name, weights in figures.attention.items() for block in _of(name, weights)]
    return Section("attention", "What the attention looked at", tuple(blocks)) if blocks else None


def _of(name: str, weights: Attention) -> list[Block]:
    return [
        Heading(name),
        Note(
            f"The words that attention pooling looked at most in {weights.num_documents:,} test documents, "
            "by how many times the weight that they would have if it looked at all alike; and some of the "
            "documents, where a deeper shade is more weight."
        ),
        table(
            [
                {
                    "word": each.word,
                    "times an even share": f"{each.times_even:.1f}",
                    "occurrences": f"{each.count:,}",
                }
                for each in weights.words
            ]
        ),
        *(
            Excerpt(
                tuple(text.tokens),
                lead=(text.actual, f", labelled {text.predicted}: "),
            )
            for text in weights.texts
        ),
    ]
