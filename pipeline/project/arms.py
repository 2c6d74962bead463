"""Which candidates and arms of the label curve the settings have; recipes count this module."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.settings.arm import BLEND, TFIDF, Arm, Use

if TYPE_CHECKING:
    from pipeline.project.params import Params

PAIR = 2  # texts of a document; more: one and answers to choose from


def trained_ensembles(params: Params) -> dict[str, list[str]]:
    """The ensembles whose members the route trains."""
    trained = set(params.run.headstarts)
    return {name: members for name, members in params.ensembles.items() if trained.issuperset(members)}


def candidates(params: Params, num_texts: int) -> list[Arm]:
    """The candidates that `evaluate` chooses from.

    What reads a document as one text tells no answers apart, so with answers there are networks alone.

    Args:
        num_texts: of a labelled document.
    """
    networks = [Arm(name) for name in params.run.headstarts]
    ensembles = [Arm(name) for name in trained_ensembles(params)]
    if num_texts > PAIR:
        return [*networks, *ensembles, BLEND]
    single = [*networks, *(arm.using(Use.PROBE) for arm in (*networks, *ensembles))]
    if params.evaluate.baseline_tfidf:
        single += [TFIDF, *(arm.using(Use.WITH_TFIDF) for arm in (*networks, *ensembles))]
    return [*single, *ensembles, BLEND]


def head_starts_of(arm: Arm, params: Params) -> list[str]:
    """The head starts that an arm of the label curve trains: none, one, or the members of an ensemble."""
    return [] if arm.source is None else params.ensembles.get(arm.source, [arm.source])


def curve_arms(params: Params, num_texts: int) -> list[Arm]:
    """The arms of the label curve that can be trained: those of head starts that the route trains.

    With answers to choose from there are networks alone, as in `candidates`.
    """
    trained = {*params.run.headstarts, *trained_ensembles(params), None}
    arms = [arm for arm in params.sample_efficiency.arms if arm.source in trained]
    if num_texts > PAIR:
        arms = [arm for arm in arms if not (arm.use.is_frozen or arm.use.reads_tfidf)]
    return arms


def trained_arms(params: Params, num_texts: int) -> list[Arm]:
    """The arms that train something on each number of labels."""
    return [arm for arm in curve_arms(params, num_texts) if arm.use is not Use.IN_CONTEXT]
