"""How contextual each layer is: the study of `headstart anatomy`."""

from __future__ import annotations

from functools import partial

from pipeline.report import charts, sentences, tables
from pipeline.report import figures as data
from pipeline.report.figures import Figures
from pipeline.report.section import Block, Chart, Section, table
from pipeline.report.sections._studies import section_of
from pipeline.report.studies import Study


def section(figures: Figures) -> Section | None:
    return section_of(figures.studies_of("anatomy"), "anatomy", "How contextual each layer is", blocks)


def blocks(study: Study) -> list[Block]:
    name = f"anatomy-{study['headstart']}"
    measures = Chart(
        name,
        lambda: charts.anatomy(data.anatomy(study)),
        f"{study['headstart']}: {sentences.anatomy(study)}",
        numbers=table(tables.anatomy(study)),
    )
    return [
        measures,
        *(
            block
            for number, example in enumerate(study["examples"], start=1)
            for block in (
                Chart(
                    f"{name}-{number}",
                    partial(charts.contexts, example["points"]),
                    sentences.contexts(example),
                ),
                table(tables.contexts(example), prose=("before", "after")),
            )
        ),
    ]
