"""The model card of what ships: one page of Markdown for whoever is about to use it.

Source: Mitchell et al. 2019, "Model Cards for Model Reporting" (arXiv 1810.03993), section 4. It shows no
text of a document: the card goes where the classifier goes.
"""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.evaluation.settings import Card
from pipeline.figures.classifiers import Scores
from pipeline.report import figures as data
from pipeline.report import sentences, tables, trust
from pipeline.report.figures import Figures, name_of
from pipeline.report.markdown import plain, table
from pipeline.report.page import Provenance
from pipeline.settings.arm import TFIDF

_NOT_STATED = "not stated; write it into the section `card` of params.yaml"
_MIX_UPS = 5  # kinds of mistakes that are shown, the most frequent ones


def model_card(figures: Figures, card: Card, provenance: Provenance) -> str:
    """Return the card. It needs labels: without them nothing ships."""
    sections = [
        ("What it is", _what(figures)),
        ("Use", _use(card)),
        ("Data", _data(figures, card)),
        ("How good it is", _quality(figures)),
        ("When to trust it", _trust(figures)),
        ("Known errors", _errors(figures)),
        ("Versions", table([{"": name, "is": value} for name, value in provenance.facts.items()])),
    ]
    title = card.title or f"Classifier of texts into {figures['prepare-target']['num_classes']} classes"
    return f"# Model card: {plain(title)}\n\n" + "\n".join(f"## {name}\n\n{said}" for name, said in sections)


def _what(figures: Figures) -> str:
    found, ships = figures.evaluate, figures.evaluate.ships
    labels = ", ".join(plain(str(row["class"])) for row in tables.classes(figures))
    shares = table(
        [
            {"part": name_of(part), "share": f"{share:.2f}"}
            for part, share in sorted(ships.parts.items(), key=lambda each: -each[1])
        ]
    )
    trained = ", ".join(ships.head_starts) or "none"
    why = "named by evaluate.ship among" if found.forced else "the best of"
    return (
        f"{name_of(found.shipped)}, {why} {len(found.candidates)} candidates on "
        f"{found.num_validation_documents:,} validation documents. Head starts: {trained}. It gives "
        f"each of these labels a probability: {labels}.\n\n{shares}"
        + "".join(
            f"\n{plain(said)}\n"
            for said in sentences.features_beside(figures, sentences.networks(ships.parts))
        )
    )


def _use(card: Card) -> str:
    stated: Mapping[str, str | None] = {
        "Meant for": card.purpose,
        "Not meant for": card.not_for,
        "Owner": card.owner,
        "Contact": card.contact,
        "Licence": card.licence,
    }
    return "".join(f"- {name}: {plain(said) if said else _NOT_STATED}\n" for name, said in stated.items())


def _data(figures: Figures, card: Card) -> str:
    return (
        f"{table(tables.corpora(figures))}\n{plain(sentences.left_out(figures))}\n\n"
        f"Licence of the text: {plain(card.data_licence) if card.data_licence else _NOT_STATED}\n"
    )


def _quality(figures: Figures) -> str:
    found = figures.evaluate
    rows = [_row(name_of(found.shipped), found.ships)]
    if found.tfidf is not None:
        rows.append(_row(name_of(TFIDF), found.tfidf))
    majority = {"": "the most frequent class", "error": f"{found.baselines.majority_class.error:.1%}"}
    rows.append({name: majority.get(name, "") for name in rows[0]})
    return (
        f"On {found.num_documents:,} test documents that nothing was chosen by, with intervals over "
        f"them:\n\n{table(rows)}\nTest documents that are also in the training text: "
        f"{plain(sentences.leakage(figures))}\n\n"
        "Text of another kind, time or language can be labelled far worse; no figure here says how much.\n"
    )


def _trust(figures: Figures) -> str:
    said = "".join(f"{plain(line)}\n\n" for line in trust.sentences(figures))
    return f"{said}{table(trust.selective(figures))}\n{table(trust.label_sets(figures))}"


def _row(name: str, found: Scores) -> dict[str, str]:
    return {
        "": name,
        "error": f"{found.error:.1%}",
        "macro F1": f"{found.macro_f1.value:.3f}",
        "log loss, nats": f"{found.log_loss.value:.3f}",
        "calibration error": f"{found.calibration_error:.3f}",
    }


def _errors(figures: Figures) -> str:
    mistakes = [row for row in data.confusion_counts(figures) if row.actual != row.predicted]
    worst = sorted(mistakes, key=lambda row: (-row.documents, row.actual, row.predicted))[:_MIX_UPS]
    mixed = [
        {
            "is": row.actual,
            "is taken for": row.predicted,
            "documents": f"{row.documents:,}",
            "of its class": f"{row.share:.0%}",
        }
        for row in worst
        if row.documents
    ]
    said = table(mixed) if mixed else "It made no mistake on the test documents.\n"
    never = "".join(f"\n{plain(line)}\n" for line in sentences.never_predicted(figures))
    return f"{said}{never}\n{table(tables.classes(figures))}"
