"""The report as Markdown, for the terminal and pull requests.

What settings, labels or failures say is shown as it is: it is neither HTML nor a link, ends no cell of a
table, and moves no cursor.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from pipeline.report import figures as say
from pipeline.report.figures import NAMES, Figures

_MINUTES = ("minutes", "core minutes", "GPU minutes")


def summary(figures: Figures) -> str:
    target = figures["prepare-target"]
    metrics = figures["evaluate"]
    parts = [
        "".join(f"- {line}\n" for line in say.verdict(figures)),
        f"## Classifier, on {metrics['num_documents']:,} test documents "
        f"of {target['num_classes']} classes\n\n"
        + _table(
            ["", "error (interval)", "macro F1", "log loss, nats", "calibration error", *_MINUTES],
            [_classifier(row) for row in say.classifiers(figures)],
        ),
        "## Error by number of labels\n\n" + _label_curve(figures),
        "## Language models, on validation text\n\n"
        + _table(
            ["", "bits per byte", "token perplexity", "word perplexity"],
            [
                [
                    row["name"],
                    f"{row['bits_per_byte']:.3f}",
                    f"{row['perplexity']:.1f}",
                    f"{row['word_perplexity']:,.0f}",
                ]
                for row in say.language_models(figures)
            ],
        ),
        *_search(figures),
        *_ledger(figures),
        "## Test documents that were trained on\n\n" + leakage(figures) + "\n",
        "## Vocabulary, trained on the general text\n\n"
        + _table(
            ["", "general", "target"],
            [
                [row["measure"], f"{row['general']:.3f}", f"{row['target']:.3f}"]
                for row in say.vocabulary(figures)
            ],
        ),
        "## Corpora\n\n"
        + _table(
            ["", "documents", "words", "MB"],
            [
                [
                    f"{row['corpus']}, {row['split']}",
                    f"{row['num_documents']:,}",
                    f"{row['num_words']:,}",
                    f"{row['num_bytes'] / 1e6:,.1f}",
                ]
                for row in say.corpora(figures)
            ],
        )
        + f"\nLeft out: {say.left_out(figures, 'skipped')}. "
        f"Repaired: {say.left_out(figures, 'repaired')}.\n",
    ]
    return "# Summary\n\n" + "\n".join(parts)


def leakage(figures: Figures) -> str:
    """One paragraph."""
    found, metrics = figures["find_leaks"], figures["evaluate"]
    if not found["num_leaked"]:
        return f"None of {found['num_test_documents']:,}."
    where = ", ".join(
        f"{name} {each['num_leaked']:,}" for name, each in found["sources"].items() if each["num_leaked"]
    )
    said = (
        f"{found['num_leaked']:,} of {found['num_test_documents']:,} ({found['share']:.1%}), "
        f"{found['num_exact']:,} word for word, {found['num_near']:,} nearly ({where})."
    )
    if metrics["leakage"]["action"] == "drop":
        return f"{said} They are left out of the figures."
    if "error_without" in metrics["leakage"]:
        said += f" Without them the classifier's error is {metrics['leakage']['error_without']:.1%}."
    return said


def _classifier(row: say.Row) -> list[str]:
    minutes = [say.minutes(row)[name] for name in _MINUTES]
    if "error_low" not in row:
        return [row["name"], f"{row['error']:.1%}", "", "", "", *minutes]
    return [
        row["name"],
        _error(row),
        f"{row['macro_f1']:.3f}",
        f"{row['log_loss']:.3f}",
        f"{row['calibration_error']:.3f}",
        *minutes,
    ]


def _error(row: say.Row) -> str:
    return f"{row['error']:.1%} ({row['error_low']:.1%} to {row['error_high']:.1%})"


def _label_curve(figures: Figures) -> str:
    metrics = figures["sample_efficiency"]
    counts = metrics["labels"]
    cells: dict[str, list[str]] = {NAMES[arm]: [] for arm in metrics["arms"]}
    for row in say.label_curve(figures):
        holes = f", {row['num_seeds']} of {metrics['num_seeds']} seeds"
        said = "failed" if row["error"] is None else _error(row)
        cells[row["arm"]].append(said + (holes if 0 < row["num_seeds"] < metrics["num_seeds"] else ""))
    failed = "".join(
        f"\nFailed: {_plain(name)}: {_plain(reason)}\n" for name, reason in metrics["failed"].items()
    )
    rows = [[arm, *row] for arm, row in cells.items()]
    header = ["labels", *(f"{count:,}" for count in counts)]
    above: dict[str, dict[int, str]] = {}
    for row in say.compared(figures):
        difference = (
            f"{row['difference']:+.1%} ({row['difference_low']:+.1%} to {row['difference_high']:+.1%})"
        )
        above.setdefault(row["arm"], {})[row["labels"]] = difference
    differences = [[arm, *(by_count.get(count, "") for count in counts)] for arm, by_count in above.items()]
    return (
        _table(header, rows)
        + f"\nWith {say.bands(figures)}.\n{failed}"
        + "".join(f"\n{line}\n" for line in say.crossings(figures))
        + f"\nBy how much the error is above that of {NAMES[metrics['base']]}, paired:\n\n"
        + (_table(header, differences) if differences else "There is nothing to compare with.\n")
    )


def _search(figures: Figures) -> list[str]:
    if say.search(figures) is None:
        return []
    columns = ("setting", "best", "importance")
    rows = [[row[name] for name in columns] for row in say.best_settings(figures)]
    return [f"## Search\n\n{say.search_in_words(figures)}\n\n" + _table(columns, rows)]


def _ledger(figures: Figures) -> list[str]:
    if figures.get("ablate") is None:
        return []
    columns = ("trick", "measure", "with", "without", "difference", "interval", "paper", "source")
    rows = [
        [row["trick"], row["measure"], row["failure"], "", "", "", "", ""]
        if row["failure"]
        else [row[name] for name in columns]
        for row in say.ledger(figures)
    ]
    return [f"## What each trick is worth\n\n{say.ledger_in_words(figures)}\n\n" + _table(columns, rows)]


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    ruler = ["---"] + ["---:"] * (len(header) - 1)
    cells = ([_plain(cell) for cell in row] for row in rows)
    return "".join(f"| {' | '.join(row)} |\n" for row in (header, ruler, *cells))


def _plain(text: str) -> str:
    one_line = "".join(letter if letter.isprintable() else " " for letter in text)
    return re.sub(r"([\\`*\[\]<|&])", r"\\\1", one_line)
