"""The report as one self-contained page: its JavaScript is inside, and it makes no request.

Text from documents, labels and settings goes through `escape`; a chart's data is in a JSON block that no
document can close. If something gets through all the same, the page's policy runs no script but its own,
which it identifies by its hash.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from pipeline.report import charts, scaling, sentences, tables, trust
from pipeline.report import figures as data
from pipeline.report.figures import TRAININGS, Figures, Row, name_of
from pipeline.report.verdict import at_a_glance, verdict

_SCROLL = "<div class='scroll' tabindex='0'>"  # can be scrolled by the keyboard, too
_STYLE = """
:root { color-scheme: light dark; --ink: #1b1b1f; --soft: #5a5a66; --line: #d8d8e0; --paper: #fff;
  --card: #f6f7f9; --link: #0b57a4; --for: 0, 158, 115; --against: 213, 94, 0 }
@media (prefers-color-scheme: dark) { :root { --ink: #ececf1; --soft: #a9a9b6; --line: #3a3a44;
  --paper: #16161a; --card: #1f1f25; --link: #7ab8f5 } }
* { box-sizing: border-box }
body { margin: 0 auto; max-width: 62rem; padding: 1rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.55 system-ui, sans-serif }
h1 { font-size: 1.6rem } h2 { font-size: 1.2rem; margin: 2.4rem 0 .6rem; border-top: 1px solid var(--line);
  padding-top: 1.2rem } h3 { font-size: 1rem; margin: 1.2rem 0 .3rem }
a { color: var(--link) } nav { font-size: .9rem } nav a { margin-right: .9rem; white-space: nowrap }
.verdict { background: var(--card); border-left: 4px solid var(--link); padding: .8rem 1rem;
  margin: .8rem 0 }
.verdict p { margin: .3rem 0 } .verdict p:first-child { font-size: 1.25rem }
.stale { border: 2px solid rgb(213, 94, 0); padding: .5rem 1rem }
figure { margin: .8rem 0 } figcaption, .note { color: var(--soft); font-size: .9rem }
.chart { width: 100%; min-height: 120px } .chart svg { max-width: 100% }
.scroll { overflow-x: auto } table { border-collapse: collapse; font-size: .9rem }
th, td { padding: .25rem .7rem; border-bottom: 1px solid var(--line); text-align: right; vertical-align: top }
th:first-child, td:first-child { text-align: left } .text { text-align: left; min-width: 14rem }
.pairs th { font-weight: normal } .pairs tbody th { text-align: left; min-width: 8rem }
.pairs th, .pairs td { padding: .25rem .4rem }
@media (max-width: 48rem) { /* a block for each row, a line for each column */
  .pairs thead, .pairs .same { display: none } .pairs tr { display: block; margin: 0 0 .8rem }
  .pairs th { display: block; font-weight: bold; padding: .25rem 0 }
  .pairs td { display: flex; justify-content: space-between; gap: 1rem; padding: .25rem 0 }
  .pairs td::before { content: attr(data-column); text-align: left; color: var(--soft) } }
details { margin: .4rem 0 } summary { cursor: pointer; color: var(--soft) }
:focus-visible { outline: 3px solid var(--link); outline-offset: 2px }
.tokens { line-height: 1.9; overflow-wrap: anywhere } .tokens span { border-radius: 3px }
"""

_SCRIPT = """
const dark = matchMedia("(prefers-color-scheme: dark)");
function draw() {
  const ink = dark.matches ? "#ececf1" : "#1b1b1f", line = dark.matches ? "#3a3a44" : "#d8d8e0";
  const config = { background: "transparent", font: "system-ui, sans-serif",
    axis: { labelColor: ink, titleColor: ink, gridColor: line, domainColor: line, tickColor: line },
    legend: { labelColor: ink, titleColor: ink }, view: { stroke: line }, title: { color: ink } };
  for (const block of document.querySelectorAll("script[type='application/json'][data-chart]")) {
    const place = document.getElementById(block.dataset.chart);
    vegaEmbed(place, JSON.parse(block.textContent), { renderer: "svg", actions: false, ast: true, config })
      .catch(error => { place.textContent = "not drawn: " + error; console.error(error); });
  }
}
dark.addEventListener("change", draw);
draw();
"""


@dataclass(frozen=True)
class Provenance:
    """The code, data and MLflow runs behind the figures."""

    facts: Mapping[str, str] = field(default_factory=dict)  # commit, versions, ...
    data: Mapping[str, str] = field(default_factory=dict)  # output of a stage -> its hash in dvc.lock
    runs: Sequence[Mapping[str, str]] = ()  # stage, run_id, url (may be empty), cached


def page(figures: Figures, provenance: Provenance) -> str:
    """The whole page, as HTML."""
    import vl_convert

    of_labels = [
        ("labels", "How many labels", _labels),
        ("price", "Error against price", _prices),
        ("result", "The classifier", _result),
        ("trust", "When to trust it", _trust),
        ("distilled", "Distilled", _distilled),
        ("errors", "Most confident errors", _errors),
        ("attention", "What the attention looked at", _attention),
    ]
    sections = [
        *((name, title, draw(figures)) for name, title, draw in of_labels if figures.has_labels),
        ("models", "Language models", _language_models(figures)),
        ("layers", "Which layers serve a probe", _layers(figures)),
        ("forms", "Exported forms", _forms(figures)),
        ("choosing", "Which documents to label", _choosing(figures)),
        ("doubtful", "Labels that look wrong", _doubtful(figures)),
        ("anatomy", "How contextual each layer is", _anatomy(figures)),
        ("alignments", "Translations, and where the attention looked", _alignments(figures)),
        ("rates", "Learning rates as used", _rates(figures)),
        ("search", "Search", _search(figures)),
        ("ablations", "What each trick is worth", _ablations(figures)),
        ("scaling", "What more compute would buy", _scaling(figures)),
        ("vocabulary", "Vocabulary", _table(tables.vocabulary(figures))),
        ("leakage", "Leakage", _leakage(figures)),
        ("corpora", "Corpora", _corpora(figures)),
        ("provenance", "Provenance", _provenance(provenance)),
    ]
    sections = [section for section in sections if section[2]]
    links = " ".join(f'<a href="#{name}">{escape(title)}</a>' for name, title, _ in sections)
    answer, how_much, *following = [*verdict(figures), ""]
    body = "".join(
        f'<section id="{name}"><h2>{escape(title)}</h2>{content}</section>'
        for name, title, content in sections
    )
    bundle = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;").replace("</script", "<\\/script")
    script = f"{bundle}\n{_SCRIPT}".replace("\r\n", "\n")  # as browsers read it before they hash it
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_policy(script)}">
<title>headstart: report</title>
<style>{_STYLE}</style>
</head>
<body>
<header><h1>Was the head start worth it?</h1>
<div class="verdict"><p>{escape(f"{answer} {how_much}")}</p><p>{escape(" ".join(following))}</p></div>
{_table(at_a_glance(figures)) if figures.has_labels else ""}
{_paragraphs(sentences.remarks(figures))}</header>
<nav aria-label="Sections">{links}</nav>
<main>
{_paragraphs(sentences.key_figures(figures))}
{body}
</main>
<script type="module">{script}</script>
</body>
</html>
"""


def _policy(script: str) -> str:
    """Let the page fetch and send nothing, and run only this script: event handlers are blocked, too."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


# ----------------------------------------------------------------------------------------- sections


def _labels(figures: Figures) -> str:
    curve = figures.curve
    rows = [*data.label_curve(figures), *data.in_context(figures)]
    base = escape(name_of(curve.base))
    nothing = "<p>There is nothing to compare with.</p>"
    failed = _list(f"{name}: {reason}" for name, reason in curve.failed.items())
    return (
        _figure(
            "label-curve",
            charts.label_curve(rows, curve.confidence),
            f"Error on {curve.num_test_documents:,} test documents by number of labels, with "
            f"{sentences.bands(figures)}.",
            _table(tables.points(rows)),
        )
        + _paragraphs(
            [
                *sentences.label_curve(figures),
                *sentences.comparisons(figures),
                *sentences.chosen(figures),
            ]
        )
        + f"<h3>Error compared with {base}</h3>"
        + (_table(tables.differences(figures)) or nothing)
        + f"<p class='note'>The error of each arm minus that of {base}, on the same seeds, subsets and test "
        "documents.</p>"
        + _labels_needed(figures)
        + _in_context(figures)
        + (
            f"<h3>Points that failed</h3>{failed}<p class='note'>DVC counts the stage as finished: "
            "<code>dvc repro -f -s sample_efficiency</code> retries these points, and only these.</p>"
            if failed
            else ""
        )
        + "<h3>Cost of the label curve</h3>"
        + _table(tables.label_curve_cost(figures))
    )


def _labels_needed(figures: Figures) -> str:
    """The labels that each arm needs for the error that each other has with most labels; then with fewer."""
    most, *fewer = sorted(figures.curve.labels, reverse=True)
    table = _pairs(tables.labels_needed(figures, most))
    if not table:
        return ""
    return (
        "<h3>Labels saved</h3>"
        f"<p>{sentences.labels_needed(most)}</p>"
        f"{table}"
        "<p class='note'>Interpolated along the monotone curve in the logarithm of the number of labels; "
        "outside of the numbers tried, only a bound is known.</p>"
        + "".join(
            _details(f"The same with {count:,} labels", _pairs(tables.labels_needed(figures, count)))
            for count in fewer
        )
    )


def _in_context(figures: Figures) -> str:
    said = sentences.in_context(figures)
    if not said:
        return ""
    return "<h3>Without training</h3>" + _paragraphs(said) + _pairs(tables.in_context(figures))


def _prices(figures: Figures) -> str:
    rows = data.prices(figures)
    return _figure(
        "prices",
        charts.prices(rows),
        "Test error against what it took: core minutes of the language models that an arm starts from, and "
        "of one training; a larger point has more labels. Nothing cheaper lies below the dashed line.",
        _table(tables.prices(figures)),
    )


def _result(figures: Figures) -> str:
    counts = data.confusion_counts(figures)
    confusion = [
        {"actual": row.actual, "predicted": row.predicted, "documents": str(row.documents)}
        for row in counts
        if row.documents
    ]
    calibration = [
        {
            "confidence": f"{row.confidence:.1%}",
            "accuracy": f"{row.accuracy:.1%}",
            "documents": str(row.num_documents),
        }
        for row in figures.calibration
    ]
    return (
        _table(tables.classifiers(figures))
        + _paragraphs(sentences.of_classifiers(figures))
        + "<h3>By class</h3>"
        + _table(tables.classes(figures))
        + _figure(
            "confusion",
            charts.confusion(counts),
            "Confusion matrix: documents by actual and predicted label; the shade is the share of the row.",
            _table(confusion),
        )
        + _figure(
            "calibration",
            charts.calibration(figures.calibration),
            "Calibration: the classifier's accuracy by its confidence. On the dashed line the two are equal.",
            _table(calibration),
        )
    )


def _trust(figures: Figures) -> str:
    sets = trust.label_sets(figures)
    chosen = sets and (
        "<h3>Sets of labels</h3><p>A set holds each label whose probability is high enough, so that the "
        "wanted share of all sets holds the right one: on the average over documents, not for each class.</p>"
    )
    return (
        _paragraphs(trust.sentences(figures))
        + _table(trust.selective(figures))
        + _figure(
            "risk-coverage",
            charts.risk_coverage(figures.risk, trust.thresholds(figures)),
            f"Test error by the share of documents that is labelled; the points are the thresholds. "
            f"{trust.area(figures)}",
        )
        + f"{chosen or ''}{_table(sets)}"
        "<p class='note'><code>headstart predict</code> takes <code>--most-wrong</code> and "
        "<code>--label-sets</code>; both hold for texts of this kind alone.</p>"
    )


def _distilled(figures: Figures) -> str:
    if figures.distilled is None:
        return ""
    return f"<p>{escape(sentences.distilled(figures))}</p>" + _table(tables.distilled(figures))


def _errors(figures: Figures) -> str:
    if not figures.errors:
        return "<p>None are shown.</p>"
    note = (
        "<p class='note'>Integrated gradients: a green token speaks for the wrong label, an orange one "
        "against it; a deeper shade means more.</p>"
    )
    return note + "".join(
        f"<h3>{escape(error.actual)}, labelled {escape(error.predicted)} "
        f"({error.confidence:.0%} confident)</h3><p class='tokens'>{_tokens(error.tokens)}</p>"
        for error in figures.errors
    )


def _attention(figures: Figures) -> str:
    return "".join(
        f"<h3>{escape(name)}</h3><p class='note'>{escape(sentences.attention(found))}</p>"
        + _table(tables.looked_at(found))
        + "".join(
            f"<p class='tokens'><b>{escape(text.actual)}</b>, labelled {escape(text.predicted)}: "
            f"{_tokens(text.tokens)}</p>"
            for text in found.texts
        )
        for name, found in figures.attention.items()
    )


def _tokens(tokens: Sequence[tuple[str, float]]) -> str:
    most = max((abs(value) for _, value in tokens), default=0.0) or 1.0
    return "".join(
        f'<span style="background: rgba(var(--{"for" if value > 0 else "against"}), '
        f'{0.7 * abs(value) / most:.2f})" title="{value:+.3f}">{escape(piece)}</span>'
        for piece, value in tokens
    )


def _language_models(figures: Figures) -> str:
    drawn = data.language_model_curves(figures)
    return (
        "".join(
            _figure(
                f"language-models-{number}",
                charts.language_models(rows, title),
                f"{title[0].upper()}{title[1:]} during pretraining and fine-tuning: training batches with "
                "dropout (lines) and validation text (dashed, with points).",
            )
            for number, (title, rows) in enumerate(drawn.items(), start=1)
        )
        + "".join(map(_table, tables.language_models(figures)))
        + _paragraphs(sentences.taught(figures))
    )


def _layers(figures: Figures) -> str:
    return "".join(
        _figure(
            f"layers-{study['headstart']}",
            charts.layers(study["rows"], study["num_judged"]),
            f"{study['headstart']}: error of a probe by the layers that it reads, fitted to "
            f"{study['num_labels']:,} labels, with two standard errors on either side.",
            _table(tables.layers(study)),
        )
        for study in figures.studies_of("layers")
    )


def _forms(figures: Figures) -> str:
    studies = figures.studies_of("onnx") + figures.studies_of("onnx_int8")
    return "".join(
        f"<p>{escape(str(study['headstart']))}, on {study['num_judged']:,} test documents:</p>"
        + _table(tables.forms(study))
        for study in studies
    )


def _choosing(figures: Figures) -> str:
    return "".join(
        f"<p>{escape(sentences.choosing(study))}</p>" + _table(tables.choosing(study))
        for study in figures.choosing_studies()
    )


def _doubtful(figures: Figures) -> str:
    return "".join(
        f"<p>{escape(sentences.doubtful(study, figures.studies_of('doubtful_flipped')))}</p>"
        + _details("The most doubtful", _table(tables.doubtful(study), text=("text",)))
        for study in figures.studies_of("doubtful")
    )


def _anatomy(figures: Figures) -> str:
    return "".join(
        _figure(
            f"anatomy-{study['headstart']}",
            charts.anatomy(data.anatomy(study)),
            f"{study['headstart']}: {sentences.anatomy(study)}",
            _table(tables.anatomy(study)),
        )
        + "".join(
            _figure(
                f"anatomy-{study['headstart']}-{number}",
                charts.contexts(example["points"]),
                sentences.contexts(example),
            )
            + _table(tables.contexts(example), text=("before", "after"))
            for number, example in enumerate(study["examples"], start=1)
        )
        for study in figures.studies_of("anatomy")
    )


def _alignments(figures: Figures) -> str:
    return "".join(
        _figure(
            f"alignment-{study['headstart']}-{number}",
            charts.alignment(data.alignment(pair)),
            f"{study['headstart']}: {sentences.translation(pair)}",
        )
        for study in figures.studies_of("alignment")
        for number, pair in enumerate(study["pairs"], start=1)
    )


def _rates(figures: Figures) -> str:
    return "".join(
        _figure(
            f"rates-{stage}-{name}",
            charts.rates(data.rates(figures, stage, name)),
            f"{name}, {stage}: learning rate of each layer group. Group 0 is the lowest; a rate of 0 means "
            "frozen.",
        )
        for name in figures.head_starts
        for stage in TRAININGS
        if data.rates(figures, stage, name)
    )


def _search(figures: Figures) -> str:
    search = figures.search
    if search is None:
        return ""
    measure, keys = search.measure, data.by_importance(search)
    failures = {each.trial: each.failure for each in search.trials if each.failure}
    failed = _list(f"trial {trial}: {failure}" for trial, failure in failures.items())
    return (
        f"<p>{escape(sentences.search(figures))}</p>"
        + _table(tables.best_settings(figures))
        + "<p class='note'>Importance: a setting's share in the spread of the outcomes, by fANOVA.</p>"
        + (f"<h3>Trials that failed</h3>{failed}" if failed else "")
        + _figure(
            "search",
            charts.parallel_coordinates(search, keys),
            f"Each line is a trial, through its settings to its {measure}; each axis runs from the lowest to "
            "the highest value tried.",
        )
        + "".join(
            _figure(
                f"setting-{place}",
                charts.setting(search, key),
                f"{key} and {measure}, trial by trial.",
            )
            for place, key in enumerate(keys)
        )
    )


def _ablations(figures: Figures) -> str:
    if figures.ablations is None:
        return ""
    parts = [f"<p>{escape(sentences.ablations(figures))}</p>"]
    columns = ("trick", "with", "without", "difference", "interval", "paper", "source")
    for number, measure in enumerate(dict.fromkeys(row.measure for row in figures.ablations.rows)):
        rows = [row for row in figures.ablations.rows if row.measure == measure]
        drawn = [row for row in rows if row.difference is not None]
        said = [row for row in tables.ablations(figures) if row["measure"] == measure]
        if drawn:
            parts.append(
                _figure(
                    f"ablations-{number}",
                    charts.ablations(drawn, measure),
                    f"The rise in {measure} without each trick, with its interval.",
                )
            )
        parts.append(_table([{name: row[name] for name in columns} for row in said if not row["failure"]]))
        failed = _list(f"{row['trick']}: {row['failure']}" for row in said if row["failure"])
        parts.append(f"<h3>Tricks without a figure</h3>{failed}" if failed else "")
    return "".join(parts)


def _scaling(figures: Figures) -> str:
    found = figures.scaling
    if found is None:
        return ""
    return (
        _paragraphs(scaling.sentences(found))
        + _figure(
            "scaling-runs",
            charts.loss_by_size(found),
            "Each point is a run; the lines are the law, by number of tokens.",
        )
        + _figure(
            "scaling-isoflop",
            charts.isoflop(found.isoflop),
            "By the law, equal compute spent on other sizes: a small network reads more text. The points are "
            "the best sizes, with their intervals. The topmost line is of the smallest run, the lowest of "
            "four times the largest.",
        )
        + "<h3>The law</h3>"
        + _table(scaling.law(found))
        + "<h3>What a budget is best spent on</h3>"
        + _table(scaling.budgets(found))
        + "<p class='note'>At the speed measured here. Other budgets: <code>headstart plan</code>.</p>"
        + "<h3>The runs</h3>"
        + _table(scaling.runs(found))
    )


def _leakage(figures: Figures) -> str:
    examples = [
        {
            "trained on in": example["source"],
            "shared": f"{example['containment']:.0%}",
            "test document": example["test_text"],
            "training document": example["training_text"],
        }
        for example in figures["find_leaks"]["examples"]
    ]
    table = _details("Examples", _table(examples, text=("test document", "training document")))
    said = f"Test documents that are also in the training text: {sentences.leakage(figures)}"
    return f"<p>{escape(said)}</p>{table}"


def _corpora(figures: Figures) -> str:
    return f"{_table(tables.corpora(figures))}<p>{escape(sentences.left_out(figures))}</p>"


def _provenance(provenance: Provenance) -> str:
    facts = _table([{"": name, "value": value} for name, value in provenance.facts.items()])
    hashes = _table([{"data": name, "hash": value} for name, value in provenance.data.items()])
    runs = "".join(
        f"<tr><td>{escape(run['stage'])}</td><td>{_run(run)}</td><td>{escape(run['cached'])}</td></tr>"
        for run in provenance.runs
    )
    head = "<tr><th>stage</th><th>run</th><th></th></tr>"
    table = f"<h3>Runs in MLflow</h3>{_SCROLL}<table>{head}{runs}</table></div>" if runs else ""
    return facts + _details("Data, by hash", hashes) + table


def _run(run: Mapping[str, str]) -> str:
    name = escape(run["run_id"])
    is_link = run["url"].startswith(("http://", "https://"))
    return f'<a href="{escape(run["url"])}">{name}</a>' if is_link else name


# ------------------------------------------------------------------------------------------- pieces


def _figure(name: str, chart: Any, caption: str, table: str = "") -> str:
    spec = {**chart.to_dict(), "description": caption}
    block = json.dumps(spec, ensure_ascii=False).replace("<", "\\u003c")
    return (
        f'<figure><div class="chart" id="chart-{name}" role="img" aria-label="{escape(caption)}"></div>'
        f"<figcaption>{escape(caption)}</figcaption>{_details('The numbers', table)}</figure>"
        f'<script type="application/json" data-chart="chart-{name}">{block}</script>'
    )


def _paragraphs(lines: Iterable[str]) -> str:
    return "".join(f"<p>{escape(line)}</p>" for line in lines)


def _details(title: str, content: str) -> str:
    return f"<details><summary>{title}</summary>{content}</details>" if content else ""


def _list(lines: Iterable[str]) -> str:
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f"<ul>{items}</ul>" if items else ""


def _table(rows: Sequence[Row], text: Sequence[str] = ()) -> str:
    """Empty without rows. Columns named in `text` hold prose."""
    if not rows:
        return ""
    head = "".join(f"<th scope='col'{_kind(name in text)}>{escape(name)}</th>" for name in rows[0])
    body = "".join("<tr>" + "".join(_cell(name in text, value) for name, value in row.items()) + "</tr>"
                   for row in rows)  # fmt: skip
    return f"{_SCROLL}<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"


def _pairs(rows: Sequence[Row]) -> str:
    """A table of every row against every column; on a narrow screen each row becomes a list."""
    if not rows:
        return ""
    head = "".join(f"<th scope='col'>{escape(name)}</th>" for name in rows[0])
    body = ""
    for row in rows:
        (_, name), *cells = row.items()
        body += f"<tr><th scope='row'>{escape(name)}</th>"
        for column, text in cells:
            kind = " class='same'" if text == tables.SAME else ""
            one_line = text.replace(
                " to ", "\N{NO-BREAK SPACE}to\N{NO-BREAK SPACE}"
            )  # the interval breaks at its bracket alone
            body += f'<td{kind} data-column="{escape(column)}"><span>{escape(one_line)}</span></td>'
        body += "</tr>"
    return f"{_SCROLL}<table class='pairs'><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"


def _cell(is_text: bool, value: Any) -> str:
    return f"<td{_kind(is_text)}>{escape(str(value))}</td>"


def _kind(is_text: bool) -> str:
    return " class='text'" if is_text else ""
