"""The language models: their curves, and their measures on validation text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal

from pipeline.figures.trainings import LanguageModelFigures
from pipeline.report.charts import colour, data, sized
from pipeline.report.figures import CORPORA, Figures
from pipeline.report.section import Chart, Paragraph, Section, paragraphs, table


@dataclass(frozen=True)
class MeasuredStep:
    """A measure of a language model at an optimizer step of its training."""

    stage: str  # with its head start
    text: Literal["training", "validation"]
    step: int
    value: float


def section(figures: Figures) -> Section:
    drawn = [
        Chart(
            f"language-models-{number}",
            partial(_drawn, rows, title),
            f"{title[0].upper()}{title[1:]} during pretraining and fine-tuning: training batches with "
            "dropout (lines) and validation text (dashed, with points).",
            picture=f"language_models_{number}",
        )
        for number, (title, rows) in enumerate(curves(figures).items(), start=1)
    ]
    measured = [table(rows) for rows in _measured(figures)]
    said = [Paragraph("On validation text:")] if measured else []
    blocks = (*drawn, *said, *measured, *paragraphs(_taught(figures)))
    return Section("models", "Language models", blocks, in_summary=True)


def curves(figures: Figures) -> dict[str, list[MeasuredStep]]:
    """A measure's title -> its values by optimizer step, of the head starts that are judged by it.

    Bits per byte are known of the training batches, too.
    """
    charts: dict[str, list[MeasuredStep]] = {}
    for name, trained in figures.trained.items():
        corpora = zip(trained.language_models.items(), CORPORA, strict=True)
        for (stage, training), corpus in corpora:
            measure = training.main_measure
            if measure is None:  # a text that its objective cannot be judged on
                continue
            measured = charts.setdefault(measure.title, [])
            bytes_per_token = figures.encoded[figures.tokenizers[name]][corpus].vocabulary.bytes_per_token
            scale = {"bits_per_byte": 1 / math.log(2) / bytes_per_token, "loss": 1.0}.get(measure.name)
            title = f"{name}, {stage}"
            for step in figures.curves[stage, name]:
                if step.train_loss is not None and scale is not None:
                    measured.append(MeasuredStep(title, "training", step.step, step.train_loss * scale))
                if measure.name in step.validation:
                    value = step.validation[measure.name]
                    measured.append(MeasuredStep(title, "validation", step.step, value))
    return charts


def _measured(figures: Figures) -> list[list[dict[str, str]]]:
    """A table for each kind of measures: those of different objectives do not compare."""
    tables: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for name, trained in figures.trained.items():
        general, target = trained.pretrain_lm, trained.finetune_lm
        for what, measured in (
            ("general text, pretrained", _by_measure(general, general.after)),
            ("target text, before fine-tuning", _by_measure(target, target.before)),
            ("target text, fine-tuned", _by_measure(target, target.after)),
        ):
            if measured:  # else it is a text that the objective cannot be judged on
                tables.setdefault(tuple(measured), []).append({"": f"{name}: {what}"} | measured)
    return list(tables.values())


def _by_measure(training: LanguageModelFigures, values: Mapping[str, float]) -> dict[str, str]:
    return {each.title: f"{values[each.name]:,.{each.digits}f}" for each in training.measures}


def _taught(figures: Figures) -> list[str]:
    """Name the head starts that had a teacher, and the part of each that began as it."""
    teachers = {name: each.pretrain_lm.teacher for name, each in figures.trained.items()}
    return [
        f"The language models of {name} learned from those of {teacher.headstart}; "
        f"{teacher.begun_share:.0%} of its numbers began as its teacher's."
        for name, teacher in teachers.items()
        if teacher is not None
    ]


def _drawn(measured: Sequence[MeasuredStep], title: str) -> Any:
    import altair as alt

    base = alt.Chart(data([asdict(each) for each in measured])).encode(
        x=alt.X("step:Q", title="optimizer step of the stage"),
        y=alt.Y("value:Q", title=title, scale=alt.Scale(zero=False)),
        color=colour("stage:N", ""),
        tooltip=["stage:N", "text:N", "step:Q", alt.Tooltip("value:Q", format=".3f")],
    )
    train = base.transform_filter("datum.text == 'training'").mark_line(opacity=0.5)
    validation = base.transform_filter("datum.text == 'validation'")
    return sized(
        alt.layer(train, validation.mark_line(strokeDash=[4, 3]), validation.mark_point(filled=True, size=70))
    )
