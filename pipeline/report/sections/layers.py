"""Which layers serve a probe: the study of `headstart layers`."""

from __future__ import annotations

from functools import partial

from pipeline.report import charts, tables
from pipeline.report.figures import Figures
from pipeline.report.section import Block, Chart, Section, paragraphs, table
from pipeline.report.sections._studies import section_of
from pipeline.report.studies import Study


def section(figures: Figures) -> Section | None:
    return section_of(figures.studies_of("layers"), "layers", "Which layers serve a probe", blocks)


def blocks(study: Study) -> list[Block]:
    rows, probes = study["rows"], _probes(study)
    best = min(probes, key=lambda row: row["error"])
    chart = Chart(
        f"layers-{study['headstart']}",
        partial(charts.layers, rows, study["num_judged"]),
        f"{study['headstart']}: error of a probe by the layers that it reads, with two standard errors on "
        f"either side. Each was fitted to {study['num_labels']:,} labels and judged on "
        f"{study['num_judged']:,} validation documents.",
        numbers=table(tables.layers(study), strong=[rows.index(best)]),
    )
    return [chart, *paragraphs(_advice(study))]


def _probes(study: Study) -> list[Study]:
    """All but the learned mean, which a probe cannot be set to."""
    return [row for row in study["rows"] if row["weights"] is None]


def _advice(study: Study) -> list[str]:
    name, probes = study["headstart"], _probes(study)
    best = min(probes, key=lambda row: row["error"])
    as_good = [
        row["name"]
        for row in probes
        if row is not best and row["error"] <= best["error"] + best["standard_error"]
    ]
    near = f" Within its standard error, so as good: {', '.join(as_good)}." if as_good else ""
    mixed = [
        f"The learned mean weighs the layers {', '.join(f'{weight:.2f}' for weight in row['weights'])}, from "
        f"the lowest; a classifier learns one with headstarts.{name}.finetune_classifier: "
        "{layers: all, combine: mix}."
        for row in study["rows"]
        if row["weights"] is not None
    ]
    setting = f"{{layers: {best['layers']}, combine: {best['combine']}}}"
    return [f"The best: headstarts.{name}.probe: {setting}.{near}", *mixed]
