"""Which layers serve a probe: the study of `headstart layers`."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

from pipeline.figures.estimates import Interval
from pipeline.figures.studies import LayerProbe, Study
from pipeline.report.charts import Dot, dots
from pipeline.report.section import Block, Chart, paragraphs, table
from pipeline.report.sections.studies import StudySection, one_by_one


class Layers(Study):
    """Probes on some labels, judged on validation documents."""

    kind: ClassVar[str] = "layers"
    num_labels: int
    num_judged: int
    rows: list[LayerProbe]

    @property
    def probes(self) -> list[LayerProbe]:
        """All but the learned mean, which a probe cannot be set to."""
        return [row for row in self.rows if row.weights is None]

    @property
    def best(self) -> LayerProbe:
        return min(self.probes, key=lambda row: row.error)


def blocks(study: Layers) -> list[Block]:
    chart = Chart(
        f"layers-{study.headstart}",
        partial(_drawn, study),
        f"{study.headstart}: error of a probe by the layers that it reads, with two standard errors on "
        f"either side. Each was fitted to {study.num_labels:,} labels and judged on "
        f"{study.num_judged:,} validation documents.",
        numbers=table([_row(row) for row in study.rows], strong=[study.rows.index(study.best)]),
    )
    return [chart, *paragraphs(_advice(study))]


def _row(row: LayerProbe) -> dict[str, str]:
    return {
        "layers": row.name,
        "wrong": f"{row.error:.1%}",
        "standard error": f"{row.standard_error:.1%}",
        "log loss, nats": f"{row.log_loss:.3f}",
        "weights of the layers": _weights(row),
    }


def _weights(row: LayerProbe) -> str:
    return ", ".join(f"{weight:.2f}" for weight in row.weights or ())


def _advice(study: Layers) -> list[str]:
    name, best = study.headstart, study.best
    as_good = [
        row.name for row in study.probes if row is not best and row.error <= best.error + best.standard_error
    ]
    near = f" Within its standard error, so as good: {', '.join(as_good)}." if as_good else ""
    mixed = [
        f"The learned mean weighs the layers {_weights(row)}, from "
        f"the lowest; a classifier learns one with headstarts.{name}.finetune_classifier: "
        "{layers: all, combine: mix}."
        for row in study.rows
        if row.weights is not None
    ]
    setting = f"{{layers: {best.layers}, combine: {best.combine}}}"
    return [f"The best: headstarts.{name}.probe: {setting}.{near}", *mixed]


def _drawn(study: Layers) -> Any:
    probes = [
        Dot(row.name, row.error, Interval(low=row.error - 2 * row.standard_error,
                                          high=row.error + 2 * row.standard_error))
        for row in study.rows
    ]  # fmt: skip
    return dots(probes, "layers", f"error on {study.num_judged:,} validation documents", ".1%")


SECTION = StudySection(1, "layers", "Which layers serve a probe", (Layers,), one_by_one(blocks))
