"""Which layers serve a probe: the study of `headstart layers`."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

from pipeline.figures.studies import LayerProbe, Study
from pipeline.report.charts import PALETTE, data, sized
from pipeline.report.figures import Figures
from pipeline.report.section import Block, Chart, Section, paragraphs, table
from pipeline.report.sections._studies import StudySection, section_of


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


def section(figures: Figures) -> Section | None:
    return section_of(figures.studies_of(Layers), "layers", "Which layers serve a probe", blocks)


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
    """Error of a probe by the layers that it reads, with two standard errors on either side."""
    import altair as alt

    drawn = [
        {
            "layers": row.name,
            "error": row.error,
            "low": row.error - 2 * row.standard_error,
            "high": row.error + 2 * row.standard_error,
        }
        for row in study.rows
    ]
    base = alt.Chart(data(drawn)).encode(
        y=alt.Y("layers:N", sort=None, title=None, axis=alt.Axis(labelLimit=240)),
        tooltip=["layers:N", alt.Tooltip("error:Q", format=".1%")],
    )
    scale, title = alt.Scale(zero=False), f"error on {study.num_judged:,} validation documents"
    ends = base.mark_rule(strokeWidth=2, color=PALETTE[0]).encode(
        x=alt.X("low:Q", scale=scale, title=title, axis=alt.Axis(format="%")), x2="high:Q"
    )
    points = base.mark_point(filled=True, size=60, opacity=1, color=PALETTE[0]).encode(
        x=alt.X("error:Q", scale=scale, title=title)
    )
    return sized(alt.layer(ends, points), height=26 * len(study.rows))


SECTION = StudySection(1, (Layers,), section)
