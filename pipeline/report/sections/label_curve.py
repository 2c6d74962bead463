"""How many labels: the label curve, its comparisons, and what it cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any

from pipeline.figures.label_curve import ByArm, ByCount, CurvePoint, LabelsNeeded
from pipeline.report.charts import Dot, Row, colour, data, dots, shape, sized
from pipeline.report.figures import Figures
from pipeline.report.section import (
    Block,
    Bullets,
    Chart,
    Code,
    Extra,
    Heading,
    Note,
    Paragraph,
    Section,
    paragraphs,
    table,
)
from pipeline.report.wording import (
    LEARNED_NOTHING,
    cell,
    cost_cells,
    counted,
    listed,
    name_of,
    sentence,
)
from pipeline.settings.arm import Arm

_ENOUGH_SEEDS = 5  # with fewer, bands over seeds are too narrow
_SAME = "-"  # an arm beside itself
_COLUMNS = {"std_over_seeds": ("spread over seeds", ".1%")}  # of scores beside the error: title and form


@dataclass(frozen=True)
class PointRow:
    """A point of the label curve, to show or to draw."""

    arm: Arm
    labels: int
    point: CurvePoint | None  # None if all seeds failed
    went_wrong: bool = False

    @property
    def name(self) -> str:
        return name_of(self.arm)


def section(figures: Figures) -> Section:
    blocks = [
        _curve(figures),
        *paragraphs([*remarks(figures), *comparisons(figures), *chosen(figures)]),
        *_differences(figures),
        *_labels_needed(figures),
        *_in_context(figures),
        *_failed(figures),
        Extra("Cost of the label curve", (table(_cost(figures)),), folded=False),
    ]
    return Section("labels", "How many labels", tuple(blocks), in_summary=True)


def _curve(figures: Figures) -> Chart:
    rows = [*point_rows(figures), *asked_rows(figures)]
    covered = _bands_said(figures)
    return Chart(
        "label-curve",
        partial(drawn, rows, figures.curve.confidence),
        f"Error on {figures.curve.num_test_documents:,} test documents by number of labels, with {covered}.",
        numbers=table(points(rows)),
        instead=(table(_by_count(figures)), Paragraph(f"With {covered}.")),
        picture="label_curve",
    )


def _by_count(figures: Figures) -> list[dict[str, str]]:
    """The label curve's errors, an arm a row."""
    rows: dict[str, dict[str, str]] = {}
    for row in point_rows(figures):
        cells = rows.setdefault(row.name, {"labels": row.name})
        cells[f"{row.labels:,}"] = _point(row, figures.curve.num_seeds)
    return [*rows.values()]


def _point(row: PointRow, num_seeds: int) -> str:
    said = shown(row)
    if row.point is None or row.point.num_seeds == num_seeds:
        return said
    return f"{said}, {row.point.num_seeds} of {num_seeds} seeds"


def _differences(figures: Figures) -> list[Block]:
    base, counts = name_of(figures.curve.base), [f"{count:,} labels" for count in figures.curve.labels]
    rows = [
        {
            "": name_of(arm),
            **dict.fromkeys(counts, ""),
            **{
                f"{count:,} labels": f"{above.value:+.1%} ({above.interval:+.1%})"
                for count, above in by_count.items()
            },
        }
        for arm, by_count in figures.curve.above_base.items()
        if by_count
    ]
    return [
        Heading(f"Error compared with {base}"),
        table(rows, is_matrix=True) if rows else Paragraph("There is nothing to compare with."),
        Note(f"The error of each arm minus that of {base}, on the same seeds, subsets and test documents."),
    ]


def _labels_needed(figures: Figures) -> list[Block]:
    """The labels that each arm needs for the error that each other has with most labels; then with fewer."""
    most, *fewer = sorted(figures.curve.labels, reverse=True)
    needed = table(labels_needed(figures, most), is_matrix=True)
    if not needed.rows:
        return []
    return [
        Heading("Labels saved"),
        Paragraph(
            f"Each row: the labels that an arm needs for the error that another one has with {most:,} labels."
        ),
        needed,
        Note(
            "Interpolated along the monotone curve in the logarithm of the number of labels; outside of the "
            "numbers tried, only a bound is known."
        ),
        *(
            Extra(f"The same with {count:,} labels", (table(rows, is_matrix=True),))
            for count in fewer
            if (rows := labels_needed(figures, count))
        ),
    ]


def _in_context(figures: Figures) -> list[Block]:
    said = asked(figures)
    if not said:
        return []
    beside = table(asked_beside_trained(figures), is_matrix=True)
    return [Heading("Without training"), *paragraphs(said), beside]


def _failed(figures: Figures) -> list[Block]:
    failed = figures.curve.failed
    if not failed:
        return []
    return [
        Heading("Points that failed"),
        Bullets(tuple(f"{name}: {reason}" for name, reason in failed.items())),
        Note(
            (
                "DVC counts the stage as finished: ",
                Code("dvc repro -f -s sample_efficiency"),
                " retries these points, and only these.",
            )
        ),
    ]


def _cost(figures: Figures) -> list[dict[str, str]]:
    return [{"arm": name_of(arm), **cost_cells(spent)} for arm, spent in figures.curve.cost.items()]


# ------------------------------------------------------------------------------------- what is said


@dataclass(frozen=True)
class Standing:
    """At which numbers of labels an arm is clearly better or worse than the first arm."""

    base: Arm
    arm: Arm
    behind: tuple[int, ...]  # it has clearly more errors than the base
    ahead: tuple[int, ...]
    unclear: tuple[int, ...]

    @property
    def is_behind_everywhere(self) -> bool:
        return not self.ahead and not self.unclear

    @property
    def crossing(self) -> tuple[int, int] | None:
        """The numbers of labels between which the two cross, if they do so once."""
        if not self.ahead or not self.behind:
            return None
        low, high = sorted((self.ahead, self.behind))
        return (max(low), min(high)) if max(low) < min(high) else None


def standings(figures: Figures) -> list[Standing]:
    """Each other arm beside the first, without points that went wrong."""
    curve, found = figures.curve, []
    for arm, at_all_counts in curve.above_base.items():
        by_count = {
            count: above
            for count, above in at_all_counts.items()
            if not curve.went_wrong(arm, count) and not curve.went_wrong(curve.base, count)
        }
        if by_count:
            found.append(
                Standing(
                    curve.base,
                    arm,
                    behind=tuple(count for count, above in by_count.items() if above.is_clearly_more),
                    ahead=tuple(count for count, above in by_count.items() if above.is_clearly_less),
                    unclear=tuple(count for count, above in by_count.items() if not above.is_clear),
                )
            )
    return found


def comparisons(figures: Figures) -> list[str]:
    """Which arm is ahead at which numbers of labels, the base or the other, by their paired interval.

    Arms that are behind the base everywhere, at the same numbers of labels, share a sentence.
    """
    behind_everywhere: dict[tuple[int, ...], list[str]] = {}
    said, base = [], name_of(figures.curve.base)
    for standing in standings(figures):
        arm = name_of(standing.arm)
        if standing.is_behind_everywhere:
            behind_everywhere.setdefault(standing.behind, []).append(arm)
            continue
        parts = [
            f"{first} is ahead of {second} with {counted(counts)} labels"
            for first, second, counts in ((base, arm, standing.behind), (arm, base, standing.ahead))
            if counts
        ]
        if standing.unclear:
            parts.append(
                f"with {counted(standing.unclear)} labels there is no clear difference between "
                f"{base} and {arm}"
            )
        if standing.crossing is not None:
            parts.append(f"they cross between {standing.crossing[0]:,} and {standing.crossing[1]:,}")
        said.append(sentence(parts))
    return said + [
        sentence([f"{base} is ahead of {listed(names)} with {counted(counts)} labels"])
        for counts, names in behind_everywhere.items()
    ]


@dataclass(frozen=True)
class ChosenLabels:
    """The labels that an arm saves by choosing them, beside the same arm with labels drawn at random."""

    drawn: Arm
    better: tuple[int, ...]  # numbers of labels with clearly fewer mistakes
    worth: Mapping[int, LabelsNeeded]  # labels drawn at random, by number of chosen labels that are as good


def chosen_labels(figures: Figures) -> list[ChosenLabels]:
    """For each arm that chooses its labels and whose twin draws them; none for a single number of labels."""
    curve, found = figures.curve, []
    for arm in (arm for arm in curve.arms if arm.use.chooses_labels):
        drawn = arm.using(arm.use.drawn)
        if drawn not in curve.arms or len(curve.labels) < 2:
            continue
        above = curve.above.get(arm, {}).get(drawn, {})
        better = tuple(count for count, difference in above.items() if difference.is_clearly_more)
        needed = {count: curve.needed(drawn, arm, count) for count in better}
        worth = {count: labels for count, labels in needed.items() if labels is not None}
        found.append(ChosenLabels(drawn, better, worth))
    return found


def chosen(figures: Figures) -> list[str]:
    """Tell for each arm that chooses its labels what that saved, beside the same arm with labels drawn."""
    said = []
    for arm in chosen_labels(figures):
        if not arm.better:
            said.append(
                f"{name_of(arm.drawn)}: choosing labels clearly saves none; at no number of labels are "
                "there clearly fewer mistakes than with labels drawn at random."
            )
            continue
        worth = [
            f"{count:,} chosen labels are worth {needed} drawn at random"
            for count, needed in arm.worth.items()
        ]
        said.append(
            f"{name_of(arm.drawn)}: with chosen labels there are clearly fewer mistakes at "
            f"{counted(arm.better)}" + (f"; {listed(worth)}." if worth else ".")
        )
    return said


def remarks(figures: Figures) -> list[str]:
    """Remarks on the label curve's points."""
    return [*labels_left_out(figures), *worse_than_fewer(figures), *restarts(figures)]


def left_out_by_reason(figures: Figures) -> dict[str, list[int]]:
    """Numbers of labels that were asked for and could not be trained on, by reason."""
    by_reason: dict[str, list[int]] = {}
    for count, reason in figures.curve.left_out.items():
        by_reason.setdefault(reason, []).append(count)
    return by_reason


def labels_left_out(figures: Figures) -> list[str]:
    return [
        f"Left out: {counted(counts)} labels, as {reason}."
        for reason, counts in left_out_by_reason(figures).items()
    ]


def worse_than_fewer(figures: Figures) -> list[str]:
    """Points that are clearly worse than one of the same arm with fewer labels; empty without any."""
    return [
        f"{name_of(arm)} is clearly worse with {count:,} labels than with {fewer:,}: trainings went wrong "
        "there, and comparisons and the labels saved leave this point out."
        for arm, worse in figures.curve.worse_than_fewer.items()
        for count, fewer in worse.items()
    ]


def restarts(figures: Figures) -> list[str]:
    """Trainings of the label curve that restarted, and those that never took off; empty without any."""
    curve, said = figures.curve, []
    if curve.began_anew:
        trainings = _trainings(figures, curve.began_anew)
        said.append(f"These trainings {LEARNED_NOTHING} and restarted at half the rates: {trainings}.")
    if curve.never_took_off:
        trainings = _trainings(figures, curve.never_took_off)
        said.append(
            f"These trainings {LEARNED_NOTHING} to the end, and count in the curve all the same: {trainings}."
        )
    return said


def _trainings(figures: Figures, by_arm: ByArm[ByCount[int]]) -> str:
    """The number of such trainings, by arm and number of labels."""
    return "; ".join(
        f"{name_of(arm)} with "
        + listed([
            f"{count:,} labels ({num} of {num_trainings(figures, arm, count)})"
            for count, num in by_count.items()
        ])
        for arm, by_count in by_arm.items()
    )  # fmt: skip


def num_trainings(figures: Figures, arm: Arm, count: int) -> int:
    """The trainings of a point: one for each seed and, in an ensemble, for each of its members."""
    curve = figures.curve
    return len(curve.head_starts[arm]) * curve.curve[arm][count].num_seeds


class Bands(StrEnum):
    """The variation, besides that over test documents, which the bands of the label curve cover."""

    NO_SEEDS = "not the spread over seeds, as there is one"
    FEW_SEEDS = "so few seeds that they are too narrow"
    SEEDS = "seeds"


def bands(figures: Figures) -> Bands:
    num_seeds = figures.curve.num_seeds
    if num_seeds == 1:
        return Bands.NO_SEEDS
    return Bands.FEW_SEEDS if num_seeds < _ENOUGH_SEEDS else Bands.SEEDS


def _bands_said(figures: Figures) -> str:
    over = f"{figures.curve.confidence:.0%} bootstrap bands over test documents"
    seeds = f"{over} and {figures.curve.num_seeds} seeds"
    match bands(figures):
        case Bands.NO_SEEDS:
            return f"{over}; there is one seed, so they do not cover its spread"
        case Bands.FEW_SEEDS:
            return f"{seeds}; with so few seeds they are too narrow"
        case Bands.SEEDS:
            return seeds


def asked(figures: Figures) -> list[str]:
    """Tell what the arms that train nothing were asked, and what could not be asked; empty without any."""
    rows, in_context = asked_rows(figures), figures.curve.in_context
    if not rows and not in_context.left_out:
        return []
    said = [
        "A language model was asked, and nothing trained: how likely it finds the words of each class behind "
        "a text, in the template zero_shot.template. Before the text it was shown labelled examples, as many "
        "as the number of labels says. Always answering the largest class gets "
        f"{in_context.majority_error:.1%} wrong."
    ]
    if rows and not asked_with_success(figures):
        said.append("None of them is clearly better than that.")
    return said + [
        f"{name_of(arm)} was not shown {count:,} examples: {reason}."
        for arm, reasons in in_context.left_out.items()
        for count, reason in reasons.items()
    ]


def asked_with_success(figures: Figures) -> list[PointRow]:
    """The points of arms that train nothing and clearly beat always answering the largest class."""
    majority_error = figures.curve.in_context.majority_error
    return [
        row for row in asked_rows(figures) if row.point is not None and row.point.error.high < majority_error
    ]


# ------------------------------------------------------------------------------------- tables


def point_rows(figures: Figures) -> list[PointRow]:
    """All points of the arms that are trained."""
    curve = figures.curve
    return [
        PointRow(arm, count, curve.curve.get(arm, {}).get(count), curve.went_wrong(arm, count))
        for arm in curve.arms
        for count in curve.labels
    ]


def asked_rows(figures: Figures) -> list[PointRow]:
    """All points of the arms that train nothing, by the number of labelled examples that they are shown."""
    return [
        PointRow(arm, count, point)
        for arm, by_count in figures.curve.in_context.curve.items()
        for count, point in by_count.items()
    ]


def shown(row: PointRow) -> str:
    """A point of the label curve."""
    if row.point is None:
        return "failed"
    return f"{row.point.error:.1%}, went wrong" if row.went_wrong else f"{row.point.error:.1%}"


def points(rows: Iterable[PointRow]) -> list[dict[str, str]]:
    """The points of the label curve, one a row."""
    return [
        {
            "arm": row.name,
            "labels": f"{row.labels:,}",
            "error (interval)": shown(row),
            **_scores(row.point),
            "seeds": str(0 if row.point is None else row.point.num_seeds),
        }
        for row in rows
    ]


def _scores(point: CurvePoint | None) -> dict[str, str]:
    """All scores of a point but its error; one without a title in `_COLUMNS` under its own name."""
    names = [name for name in CurvePoint.model_fields if name not in ("error", "num_seeds")]
    shown_as = {name: _COLUMNS.get(name, (name.replace("_", " "), ".3f")) for name in names}
    return {
        title: cell(None if point is None else getattr(point, name), form)
        for name, (title, form) in shown_as.items()
    }


def labels_needed(figures: Figures, count: int) -> list[dict[str, str]]:
    """How many labels each arm needs for the error that each other arm reaches with `count` labels."""
    curve = figures.curve
    needed = {arm: curve.labels_needed.get(arm, {}) for arm in curve.curve}
    others = [arm for arm in curve.curve if any(count in row.get(arm, {}) for row in needed.values())]
    return [
        {
            "": name_of(arm),
            **{
                f"{name_of(other)}: {curve.curve[other][count].error.value:.1%}": str(row[other][count])
                if count in row.get(other, {})
                else _SAME
                if arm == other
                else ""
                for other in others
            },
        }
        for arm, row in needed.items()
        if any(count in cells for cells in row.values())
    ]


def asked_beside_trained(figures: Figures) -> list[dict[str, str]]:
    """The error of each arm that trains nothing, and the labels that trained arms need for it."""
    rows_asked = asked_rows(figures)
    if not rows_asked:
        return []
    titles = [f"{row.name}, {row.labels:,} example{'s' * (row.labels != 1)}" for row in rows_asked]
    needed = [_labels_to_match(figures, row.arm, row.labels) for row in rows_asked]
    arms = [arm for arm in figures.curve.arms if any(arm in by_arm for by_arm in needed)]
    rows = [{"": "error (interval)"} | dict(zip(titles, map(shown, rows_asked), strict=True))]
    for arm in arms:
        cells = [str(by_arm[arm]) if arm in by_arm else "" for by_arm in needed]
        rows.append({"": f"labels that {name_of(arm)} needs"} | dict(zip(titles, cells, strict=True)))
    return rows


def _labels_to_match(figures: Figures, arm: Arm, count: int) -> dict[Arm, LabelsNeeded]:
    """How many labels each trained arm needs for the error of one that trains nothing, by trained arm."""
    return {
        trained: row[arm][count]
        for trained, row in figures.curve.in_context.labels_needed.items()
        if count in row.get(arm, {})
    }


# ------------------------------------------------------------------------------------- chart


def drawn(points: Sequence[PointRow], confidence: float) -> Any:
    """Error by number of labels, a line an arm; with one number of labels, the arms below one another."""
    import altair as alt

    counts = sorted({row.labels for row in points})
    if len(counts) == 1:
        arms_below = [
            Dot(row.name, None, None)
            if row.point is None
            else Dot(row.name, row.point.error.value, row.point.error.interval)
            for row in points
        ]
        return dots(arms_below, "arm", f"test error with {counts[0]:,} labels", ".1%", by_colour=True)
    rows = [_drawn_point(row) for row in points]
    measured = alt.Axis(values=counts, format=",d", labelOverlap="greedy")
    scale = alt.Scale(type="log" if all(counts) else "symlog", nice=False, padding=20)  # no logarithm of 0
    arms = list(dict.fromkeys(row.name for row in points))
    base = alt.Chart(data(rows)).encode(
        x=alt.X("labels:Q", scale=scale, axis=measured, title="labels (logarithmic)"),
        color=colour("arm:N", "", arms),
    )
    error = alt.Y("error:Q", title="test error", axis=alt.Axis(format="%"), scale=alt.Scale(zero=False))
    sound = base.transform_filter("!datum.went_wrong")
    tips = [
        alt.Tooltip("arm:N"),
        alt.Tooltip("labels:Q", format=","),
        alt.Tooltip("error:Q", format=".1%"),
        alt.Tooltip("error_low:Q", format=".1%", title=f"low, {confidence:.0%}"),
        alt.Tooltip("error_high:Q", format=".1%", title=f"high, {confidence:.0%}"),
    ]
    crosses = [
        base.transform_filter("datum.went_wrong")
        .mark_point(shape="cross", angle=45, size=140, filled=True, opacity=1)
        .encode(y=error, tooltip=[*tips, alt.Tooltip("went_wrong:N", title="went wrong")])
    ][: any(row.went_wrong for row in points)]
    band = sound.mark_area(opacity=0.18).encode(y=alt.Y("error_low:Q", title="test error"), y2="error_high:Q")
    line = sound.mark_line().encode(y=error)
    marks = sound.mark_point(filled=True, size=60, opacity=1).encode(
        y=error, shape=shape("arm:N", arms), tooltip=tips
    )
    if len(counts) < 3:  # two points are no curve
        ends = base.mark_rule(opacity=0.6).encode(
            y=alt.Y("error_low:Q", title="test error"), y2="error_high:Q"
        )
        return sized(alt.layer(ends, marks, *crosses))
    return sized(alt.layer(band, line, marks, *crosses))


def _drawn_point(row: PointRow) -> Row:
    error = None if row.point is None else row.point.error
    return {
        "arm": row.name,
        "labels": row.labels,
        "error": error and error.value,
        "error_low": error and error.low,
        "error_high": error and error.high,
        "went_wrong": row.went_wrong,
    }
