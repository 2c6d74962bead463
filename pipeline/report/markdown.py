"""The report as Markdown, for the terminal and pull requests.

Text from settings, labels and failures is shown as it is: it becomes neither HTML nor a link, ends no table
cell and moves no cursor.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from pipeline.report import figures as data
from pipeline.report import scaling, sentences, tables
from pipeline.report.figures import Figures, name_of
from pipeline.report.verdict import at_a_glance, verdict


def summary(figures: Figures) -> str:
    sections = [
        *(_of_labels(figures) if figures.has_labels else []),
        (
            "Language models, on validation text",
            "\n".join(map(table, tables.language_models(figures)))
            + _paragraphs([plain(said) for said in sentences.taught(figures)]),
        ),
    ]
    if figures.distilled is not None:
        found = f"{plain(sentences.distilled(figures))}\n\n{table(tables.distilled(figures))}"
        sections.insert(1, ("Distilled", found))
    if figures.search is not None:
        found = f"{sentences.search(figures)}\n\n{table(tables.best_settings(figures))}"
        sections.append(("Search", found))
    if figures.ablations is not None:
        found = f"{sentences.ablations(figures)}\n\n{table(_ablations(figures))}"
        sections.append(("What each trick is worth", found))
    if (law := figures.scaling) is not None:
        found = _paragraphs([plain(said) for said in scaling.sentences(law)]).lstrip()
        found += f"\n{table(scaling.law(law))}\n{table(scaling.budgets(law))}"
        sections.append(("What more compute would buy", found))
    sections += [
        ("Test documents that are also in the training text", f"{sentences.leakage(figures)}\n"),
        ("Vocabulary of each tokenizer", table(tables.vocabulary(figures))),
        ("Corpora", f"{table(tables.corpora(figures))}\n{plain(sentences.left_out(figures))}\n"),
    ]
    key_figures = "".join(f"- {line}\n" for line in sentences.key_figures(figures))
    answer, *following = verdict(figures)
    glance = f"\n{table(at_a_glance(figures))}" if figures.has_labels else ""
    remarks = _paragraphs([plain(remark) for remark in sentences.remarks(figures)])
    parts = [
        f"# Summary\n\n**{answer}**\n{_paragraphs([' '.join(following)])}{glance}{remarks}",
        key_figures,
    ]
    return "\n".join(parts + [f"## {title}\n\n{content}" for title, content in sections])


def _of_labels(figures: Figures) -> list[tuple[str, str]]:
    num_documents = figures.evaluate.num_documents
    num_classes = figures["prepare-target"]["num_classes"]
    return [
        (
            f"Classifier, on {num_documents:,} test documents of {num_classes} classes",
            table(tables.classifiers(figures))
            + _paragraphs([plain(said) for said in sentences.of_classifiers(figures)]),
        ),
        ("By class", table(tables.classes(figures))),
        ("Error by number of labels", _label_curve(figures)),
        ("The cheapest ways to lower errors", table(tables.prices(figures))),
    ]


def _label_curve(figures: Figures) -> str:
    curve = figures.curve
    base = name_of(curve.base)
    errors: dict[str, dict[str, str]] = {}
    for point in data.label_curve(figures):
        said = tables.point(point)
        if point.point is not None and point.point.num_seeds < curve.num_seeds:
            said += f", {point.point.num_seeds} of {curve.num_seeds} seeds"
        errors.setdefault(point.name, {"labels": point.name})[f"{point.labels:,}"] = said
    differences = {
        row["arm"]: {"labels": row["arm"]} | {f"{count:,}": "" for count in curve.labels}
        for row in tables.differences(figures)
    }
    for row in tables.differences(figures):
        differences[row["arm"]][row["labels"]] = f"{row['difference']} ({row['interval']})"
    return (
        table(list(errors.values()))
        + f"\nWith {sentences.bands(figures)}.\n"
        + "".join(f"\nFailed: {plain(name)}: {plain(why)}\n" for name, why in curve.failed.items())
        + _paragraphs(sentences.label_curve(figures))
        + _paragraphs(sentences.comparisons(figures))
        + _paragraphs(sentences.chosen(figures))
        + f"\nError minus that of {base}, on the same seeds, subsets and test documents:\n\n"
        + (table(list(differences.values())) or "There is nothing to compare with.\n")
        + _labels_needed(figures)
        + _paragraphs(sentences.in_context(figures))
        + (f"\n{asked}" if (asked := table(tables.in_context(figures))) else "")
    )


def _labels_needed(figures: Figures) -> str:
    most = max(figures.curve.labels)
    needed = table(tables.labels_needed(figures, most))
    return needed and f"\n{sentences.labels_needed(most)}\n\n{needed}"


def _paragraphs(lines: Sequence[str]) -> str:
    return "".join(f"\n{line}\n" for line in lines)


def _ablations(figures: Figures) -> list[dict[str, str]]:
    """A failure takes the place of the first figure."""
    rows = ({**row, "with": row["failure"] or row["with"]} for row in tables.ablations(figures))
    return [{name: cell for name, cell in row.items() if name != "failure"} for row in rows]


def table(rows: Sequence[Mapping[str, str]]) -> str:
    if not rows:
        return ""
    ruler = ["---"] + ["---:"] * (len(rows[0]) - 1)
    cells = ([plain(cell) for cell in row.values()] for row in rows)
    return "".join(f"| {' | '.join(row)} |\n" for row in (list(rows[0]), ruler, *cells))


def plain(text: str) -> str:
    one_line = "".join(letter if letter.isprintable() else " " for letter in text)
    return re.sub(r"([\\`*\[\]<|&])", r"\\\1", one_line)
