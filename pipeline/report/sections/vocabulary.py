"""Vocabulary: how each tokenizer fits the general and the target text."""

from __future__ import annotations

from pipeline.figures.corpora import VocabularyFigures
from pipeline.report.figures import Figures
from pipeline.report.section import Section, table


def section(figures: Figures) -> Section:
    blocks = (table(_rows(figures)),)
    return Section("vocabulary", "Vocabulary of each tokenizer", blocks, in_summary=True)


def _rows(figures: Figures) -> list[dict[str, str]]:
    """How each tokenizer fits the general and the target text."""
    return [
        {
            "": f"{tokenizer}: {name.replace('_', ' ')}",
            **{corpus: f"{value:.3f}" for corpus, value in values.items()},
        }
        for tokenizer, by_corpus in figures.encoded.items()
        for name in VocabularyFigures.model_fields
        for values in [{corpus: getattr(found.vocabulary, name) for corpus, found in by_corpus.items()}]
    ]
