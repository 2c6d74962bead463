"""The report as one page that needs nothing else: its JavaScript is inside, it makes no request.

All text that comes from documents, labels or settings goes through `escape`; a chart's data stands in a JSON
block that no document can close. Should something get through all the same, the page's policy runs no script
but its own, which it knows by its hash.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from pipeline.report import charts
from pipeline.report import figures as say
from pipeline.report.figures import NAMES, TRAININGS, Figures, Row
from pipeline.report.markdown import leakage

_SCROLL = "<div class='scroll' tabindex='0'>"  # by the keyboard too
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
.verdict { background: var(--card); border-left: 4px solid var(--link); padding: .6rem 1rem .2rem }
.verdict p:first-child { font-size: 1.25rem }
figure { margin: .8rem 0 } figcaption, .note { color: var(--soft); font-size: .9rem }
.chart { width: 100%; min-height: 120px } .chart svg { max-width: 100% }
.scroll { overflow-x: auto } table { border-collapse: collapse; font-size: .9rem }
th, td { padding: .25rem .7rem; border-bottom: 1px solid var(--line); text-align: right; vertical-align: top }
th:first-child, td:first-child { text-align: left } td.text { text-align: left; min-width: 14rem }
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
    """Where the figures come from: what was run, on what, and where its runs are recorded."""

    facts: Mapping[str, str] = field(default_factory=dict)  # commit, versions, ...
    data: Mapping[str, str] = field(default_factory=dict)  # output of a stage -> its hash in dvc.lock
    runs: Sequence[Mapping[str, str]] = ()  # stage, run_id, url (may be empty), cached


def page(figures: Figures, provenance: Provenance) -> str:
    """The whole page, as HTML."""
    import vl_convert

    sections = [
        ("labels", "How many labels", _labels(figures)),
        ("result", "The classifier", _result(figures)),
        ("errors", "Most confident errors", _errors(figures)),
        ("models", "Language models", _language_models(figures)),
        ("rates", "Learning rates as used", _rates(figures)),
        ("search", "Search", _search(figures)),
        ("ledger", "Ledger of tricks", _ledger(figures)),
        ("vocabulary", "Vocabulary", _vocabulary(figures)),
        ("leakage", "Leakage", _leakage(figures)),
        ("corpora", "Corpora", _corpora(figures)),
        ("provenance", "Provenance", _provenance(provenance)),
    ]
    sections = [section for section in sections if section[2]]
    links = " ".join(f'<a href="#{name}">{escape(title)}</a>' for name, title, _ in sections)
    verdict = "".join(f"<p>{escape(line)}</p>" for line in say.verdict(figures))
    body = "".join(
        f'<section id="{name}"><h2>{escape(title)}</h2>{content}</section>'
        for name, title, content in sections
    )
    bundle = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;").replace("</script", "<\\/script")
    script = f"{bundle}\n{_SCRIPT}".replace("\r\n", "\n")  # as a browser reads it, which has to hash the same
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
<header><h1>Was the head start worth it?</h1><nav aria-label="Sections">{links}</nav></header>
<main>
<div class="verdict">{verdict}</div>
{body}
</main>
<script type="module">{script}</script>
</body>
</html>
"""


def _policy(script: str) -> str:
    """Nothing may be fetched or sent, and no script run but this one: no handler of an element either."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


# ----------------------------------------------------------------------------------------- sections


def _labels(figures: Figures) -> str:
    metrics = figures["sample_efficiency"]
    rows = say.label_curve(figures)
    needed = [
        {
            "arm": row["arm"],
            "for the error with": f"{row['base_labels']:,}",
            "takes": say.in_words(row),
            "times as many": "" if row["times"] is None else f"{row['times']:.1f}",
        }
        for row in say.labels_needed(figures)
    ]
    differences = [
        {
            "arm": row["arm"],
            "labels": f"{row['labels']:,}",
            "above": f"{row['difference']:+.1%}",
            "interval": f"{row['difference_low']:+.1%} to {row['difference_high']:+.1%}",
        }
        for row in say.compared(figures)
    ]
    failed = "".join(
        f"<li>{escape(name)}: {escape(reason)}</li>" for name, reason in metrics["failed"].items()
    )
    cost = [
        {
            "arm": NAMES[arm],
            **say.minutes(metrics["cost"][arm]),
        }
        for arm in metrics["arms"]
    ]
    return (
        _figure(
            "label-curve",
            charts.label_curve(rows, metrics["confidence"]),
            f"Error on {metrics['num_test_documents']:,} test documents by number of labels, with "
            f"{say.bands(figures)}.",
            _table(
                [
                    {
                        "arm": row["arm"],
                        "labels": f"{row['labels']:,}",
                        "error": "failed" if row["error"] is None else f"{row['error']:.1%}",
                        "interval": "" if row["error"] is None else _interval(row, "error"),
                        "spread over seeds": (
                            "" if row["std_over_seeds"] is None else f"{row['std_over_seeds']:.1%}"
                        ),
                        "seeds": str(row["num_seeds"]),
                    }
                    for row in rows
                ]
            ),
        )
        + "".join(f"<p>{escape(line)}</p>" for line in say.crossings(figures))
        + f"<h3>By how much the error is above that of: {escape(NAMES[metrics['base']])}</h3>"
        + (_table(differences) if differences else "<p>There is nothing to compare with.</p>")
        + "<p class='note'>Paired: of the same seeds, subsets and test documents.</p>"
        + f"<h3>Labels that each arm takes for the error of: {escape(NAMES[metrics['base']])}</h3>"
        + (_table(needed) if needed else "<p>There is nothing to compare with.</p>")
        + "<p class='note'>Interpolated along the monotone curve in the logarithm of the number of labels; "
        "beyond the numbers tried only a bound is known.</p>"
        + (
            f"<h3>Points that failed</h3><ul>{failed}</ul><p class='note'>DVC takes the stage as done: "
            "<code>dvc repro -f -s sample_efficiency</code> trains these again, and only these.</p>"
            if failed
            else ""
        )
        + "<h3>What the curve cost</h3>"
        + _table(cost)
    )


def _result(figures: Figures) -> str:
    rows = [
        {
            "": row["name"],
            "error": f"{row['error']:.1%}",
            "interval": _interval(row, "error") if "error_low" in row else "",
            "macro F1": f"{row['macro_f1']:.3f}" if "macro_f1" in row else "",
            "log loss, nats": f"{row['log_loss']:.3f}" if "log_loss" in row else "",
            "calibration error": f"{row['calibration_error']:.3f}" if "calibration_error" in row else "",
            **say.minutes(row),
        }
        for row in say.classifiers(figures)
    ]
    counts = say.confusion_counts(figures)
    return (
        _table(rows)
        + _figure(
            "confusion",
            charts.confusion(counts),
            "Confusion matrix: documents by actual and predicted label; the shade is the share of the row.",
            _table(
                [
                    {
                        "actual": row["actual"],
                        "predicted": row["predicted"],
                        "documents": str(row["documents"]),
                    }
                    for row in counts
                    if row["documents"]
                ]
            ),
        )
        + _figure(
            "calibration",
            charts.calibration(figures.calibration),
            "Calibration: how often the classifier is right, by how sure it is. On the dashed line it is as "
            "sure as it should be.",
            _table(
                [
                    {
                        "confidence": f"{row['confidence']:.1%}",
                        "right": f"{row['accuracy']:.1%}",
                        "documents": f"{row['num_documents']:.0f}",
                    }
                    for row in figures.calibration
                ]
            ),
        )
    )


def _errors(figures: Figures) -> str:
    if not figures.errors:
        return "<p>None are shown.</p>"
    note = (
        "<p class='note'>Integrated gradients: a green token spoke for the wrong label, an orange one "
        "against it; the deeper, the more.</p>"
    )
    return note + "".join(
        f"<h3>{escape(error['actual'])}, taken for {escape(error['predicted'])} "
        f"({error['confidence']:.0%} sure)</h3><p class='tokens'>{_tokens(error['tokens'])}</p>"
        for error in figures.errors
    )


def _tokens(tokens: Sequence[Sequence[Any]]) -> str:
    most = max((abs(value) for _, value in tokens), default=0.0) or 1.0
    return "".join(
        f'<span style="background: rgba(var(--{"for" if value > 0 else "against"}), '
        f'{0.7 * abs(value) / most:.2f})" title="{value:+.3f}">{escape(piece)}</span>'
        for piece, value in tokens
    )


def _language_models(figures: Figures) -> str:
    table = _table(
        [
            {
                "": row["name"],
                "bits per byte": f"{row['bits_per_byte']:.3f}",
                "token perplexity": f"{row['perplexity']:.1f}",
                "word perplexity": f"{row['word_perplexity']:,.0f}",
            }
            for row in say.language_models(figures)
        ]
    )
    return _figure(
        "language-models",
        charts.language_models(say.language_model_curves(figures)),
        "Bits per byte through pretraining and fine-tuning: of the training text as it went by (with "
        "dropout), and of the validation text (points).",
        table,
    )


def _rates(figures: Figures) -> str:
    direction = figures.directions[0]
    return "".join(
        _figure(
            f"rates-{stage}",
            charts.rates(say.rates(figures, stage)),
            f"{stage}, {direction}: learning rate of each layer group, 0 the lowest. 0 is frozen.",
        )
        for stage in TRAININGS
    )


def _interval(row: Row, name: str) -> str:
    return f"{row[f'{name}_low']:.1%} to {row[f'{name}_high']:.1%}"


def _search(figures: Figures) -> str:
    found = say.search(figures)
    if found is None:
        return ""
    rows, keys, measure = found
    metrics = figures["tune"]
    failed = "".join(
        f"<li>trial {trial['trial']}: {escape(trial['failure'])}</li>"
        for trial in metrics["trials"]
        if trial["failure"]
    )
    return (
        f"<p>{escape(say.search_in_words(figures))}</p>"
        + _table(say.best_settings(figures))
        + "<p class='note'>Importance: the share of a setting in the spread of the outcomes, by fANOVA.</p>"
        + (f"<h3>Trials that failed</h3><ul>{failed}</ul>" if failed else "")
        + _figure(
            "search",
            charts.parallel(rows, keys, metrics["logarithmic"], measure),
            f"Each trial through its settings to its {measure}; each axis from its least to its most.",
        )
        + "".join(
            _figure(
                f"slice-{place}",
                charts.slices(rows, key, key in metrics["logarithmic"], measure),
                f"{key} and {measure}, trial by trial.",
            )
            for place, key in enumerate(keys)
        )
    )


def _ledger(figures: Figures) -> str:
    metrics = figures.get("ablate")
    if metrics is None:
        return ""
    parts = [f"<p>{escape(say.ledger_in_words(figures))}</p>"]
    columns = ("trick", "with", "without", "difference", "interval", "paper", "source")
    for number, measure in enumerate(dict.fromkeys(row["measure"] for row in metrics["rows"])):
        drawn = [
            row for row in metrics["rows"] if row["measure"] == measure and row["difference"] is not None
        ]
        said = [row for row in say.ledger(figures) if row["measure"] == measure]
        table = [{name: row[name] for name in columns} for row in said if not row["failure"]]
        if drawn:
            parts.append(
                _figure(
                    f"ledger-{number}",
                    charts.ledger(drawn, measure),
                    f"By how much the {measure} rises without each trick, with its interval.",
                )
                + _table(table)
            )
        failed = "".join(
            f"<li>{escape(row['trick'])}: {escape(row['failure'])}</li>" for row in said if row["failure"]
        )
        parts.append(f"<h3>Without a figure</h3><ul>{failed}</ul>" if failed else "")
    return "".join(parts)


def _vocabulary(figures: Figures) -> str:
    return _table(
        [
            {"": row["measure"], "general": f"{row['general']:.3f}", "target": f"{row['target']:.3f}"}
            for row in say.vocabulary(figures)
        ]
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
    table = _table(examples, text=("test document", "training document")) if examples else ""
    return f"<p>{escape(leakage(figures))}</p>" + (
        f"<details><summary>Examples</summary>{table}</details>" if table else ""
    )


def _corpora(figures: Figures) -> str:
    rows = [
        {
            "": f"{row['corpus']}, {row['split']}",
            "documents": f"{row['num_documents']:,}",
            "words": f"{row['num_words']:,}",
            "MB": f"{row['num_bytes'] / 1e6:,.1f}",
        }
        for row in say.corpora(figures)
    ]
    return _table(rows) + (
        f"<p>Left out: {escape(say.left_out(figures, 'skipped'))}. "
        f"Repaired: {escape(say.left_out(figures, 'repaired'))}.</p>"
    )


def _provenance(provenance: Provenance) -> str:
    facts = _table([{"": name, "value": value} for name, value in provenance.facts.items()])
    data = _table([{"data": name, "hash": value} for name, value in provenance.data.items()])
    runs = "".join(
        f"<tr><td>{escape(run['stage'])}</td><td>{_run(run)}</td><td>{escape(run['cached'])}</td></tr>"
        for run in provenance.runs
    )
    return (
        facts
        + (f"<details><summary>Data, by hash</summary>{data}</details>" if provenance.data else "")
        + (
            f"<h3>Runs in MLflow</h3>{_SCROLL}<table><tr><th>stage</th><th>run</th><th></th></tr>{runs}"
            "</table></div>"
            if runs
            else ""
        )
    )


def _run(run: Mapping[str, str]) -> str:
    name = escape(run["run_id"])
    return (
        f'<a href="{escape(run["url"])}">{name}</a>'
        if run["url"].startswith(("http://", "https://"))
        else name
    )


# ------------------------------------------------------------------------------------------- pieces


def _figure(name: str, chart: Any, caption: str, table: str = "") -> str:
    spec = {**chart.to_dict(), "description": caption}
    block = json.dumps(spec, ensure_ascii=False).replace("<", "\\u003c")
    numbers = f"<details><summary>The numbers</summary>{table}</details>" if table else ""
    return (
        f'<figure><div class="chart" id="chart-{name}" role="img" aria-label="{escape(caption)}"></div>'
        f"<figcaption>{escape(caption)}</figcaption>{numbers}</figure>"
        f'<script type="application/json" data-chart="chart-{name}">{block}</script>'
    )


def _table(rows: Sequence[Row], text: Sequence[str] = ()) -> str:
    if not rows:
        return ""
    head = "".join(f"<th scope='col'>{escape(name)}</th>" for name in rows[0])
    body = "".join(
        "<tr>"
        + "".join(
            f"<td class='text'>{escape(str(value))}</td>"
            if name in text
            else f"<td>{escape(str(value))}</td>"
            for name, value in row.items()
        )
        + "</tr>"
        for row in rows
    )
    return f"{_SCROLL}<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
