"""The model card of what ships: one page of Markdown for whoever is about to use it.

Source: Mitchell et al. 2019, "Model Cards for Model Reporting" (arXiv 1810.03993), section 4. It shows no
text of a document: the card goes where the classifier goes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pipeline.evaluation.settings import Card
from pipeline.figures.classifiers import Scores
from pipeline.report.figures import Figures
from pipeline.report.markdown import document
from pipeline.report.provenance import Provenance
from pipeline.report.section import Block, Bullets, Code, Paragraph, Text, paragraphs, table
from pipeline.report.sections import classifier, corpora, leakage, runs, trust
from pipeline.report.wording import name_of
from pipeline.settings.arm import TFIDF

_MIX_UPS = 5  # kinds of mistakes that are shown, the most frequent ones


def model_card(figures: Figures, card: Card, provenance: Provenance) -> str:
    """Return the card. It needs labels: without them nothing ships."""
    parts: Mapping[str, Sequence[Block]] = {
        "What it is": _what(figures),
        "Use": [_use(card)],
        "Data": [*corpora.blocks(figures), Paragraph(_stated("Licence of the text", card.data_licence))],
        "How good it is": _quality(figures),
        "When to trust it": trust.blocks(figures),
        "Known errors": _errors(figures),
        "Versions": [runs.facts(provenance)],
    }
    title = card.title or f"Classifier of texts into {figures.prepared['target'].num_classes} classes"
    return document(f"Model card: {title}", parts)


def _what(figures: Figures) -> list[Block]:
    evaluated, ships = figures.evaluate, figures.evaluate.ships
    labels = ", ".join(str(row["class"]) for row in classifier.classes(figures))
    why = "named by evaluate.ship among" if evaluated.forced else "the best of"
    largest_first = sorted(ships.parts.items(), key=lambda item: -item[1])
    return [
        Paragraph(
            f"{name_of(evaluated.shipped)}, {why} {len(evaluated.candidates)} candidates on "
            f"{evaluated.num_validation_documents:,} validation documents. Head starts: "
            f"{', '.join(ships.head_starts) or 'none'}. It gives each of these labels a probability: "
            f"{labels}."
        ),
        table([{"part": name_of(part), "share": f"{share:.2f}"} for part, share in largest_first]),
        *paragraphs(classifier.features_beside(figures, classifier.networks(ships.parts))),
    ]


def _use(card: Card) -> Bullets:
    stated = {
        "Meant for": card.purpose,
        "Not meant for": card.not_for,
        "Owner": card.owner,
        "Contact": card.contact,
        "Licence": card.licence,
    }
    return Bullets(tuple(_stated(name, said) for name, said in stated.items()))


def _stated(name: str, said: str | None) -> Text:
    if said:
        return f"{name}: {said}"
    return (f"{name}: not stated; write it into the section ", Code("card"), " of params.yaml")


def _quality(figures: Figures) -> list[Block]:
    evaluated = figures.evaluate
    rows = [_row(name_of(evaluated.shipped), evaluated.scores)]
    if evaluated.tfidf is not None:
        rows.append(_row(name_of(TFIDF), evaluated.tfidf.scores))
    most_frequent = {
        "": "the most frequent class",
        "error": f"{evaluated.baselines.majority_class.error:.1%}",
    }
    rows.append(dict.fromkeys(rows[0], "") | most_frequent)
    return [
        Paragraph(
            f"On {evaluated.num_documents:,} test documents, which played no part in any choice, with "
            "intervals over them:"
        ),
        table(rows),
        leakage.paragraph(figures),
        Paragraph(
            "Expect more errors on text of another kind, period or language; no figure here says how many."
        ),
    ]


def _row(name: str, scores: Scores) -> dict[str, str]:
    return {"": name, "error": f"{scores.error:.1%}", **scores.beside_error}


def _errors(figures: Figures) -> list[Block]:
    mistakes = [
        row for row in classifier.confusion_counts(figures) if row.actual != row.predicted and row.documents
    ]
    worst = sorted(mistakes, key=lambda row: (-row.documents, row.actual, row.predicted))[:_MIX_UPS]
    mixed = [
        {
            "is": row.actual,
            "is taken for": row.predicted,
            "documents": f"{row.documents:,}",
            "of its class": f"{row.share:.0%}",
        }
        for row in worst
    ]
    return [
        table(mixed) if mixed else Paragraph("It made no mistake on the test documents."),
        *paragraphs(classifier.never_predicted_said(figures)),
        table(classifier.classes(figures)),
    ]
