"""The verdict: true, whichever arms there are and whatever failed. `test_wording.py` has its words."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest

from pipeline.figures.classifiers import Baselines, Rival
from pipeline.report.decision import Advice, AtCount, Outcome, Worth, decide
from pipeline.report.figures import Figures, Labelled
from pipeline.report.verdict import at_a_glance
from pipeline.settings.arm import TFIDF as TFIDF_ARM
from pipeline.settings.arm import Arm
from tests.figures import (
    COST,
    above,
    arm,
    candidate,
    difference,
    evaluated,
    head_start,
    label_curve,
    leaks,
    needed,
    point,
    validation,
    verdict,
    with_candidate,
    with_curve,
    with_evaluate,
    with_training,
)

Curve = dict[str, dict[int, float]]
COUNTS = (100, 400, 1600)
CLEAR = 0.02 - 1e-9  # half of an interval: differences of 0.02 are clear
TFIDF, SCRATCH = (0.5, 0.4, 0.3), (0.7, 0.6, 0.5)
BETTER, ALIKE, WORSE = (0.4, 0.3, 0.2), (0.51, 0.39, 0.3), (0.6, 0.5, 0.4)
ULMFIT, VECTORS = Arm("ulmfit"), Arm("vectors")


def rows(**arms: tuple[float, ...]) -> Curve:
    """Arms by name (`ulmfit__scratch`), each with an error for each of COUNTS, or for fewer."""
    return {name.replace("__", "/"): dict(zip(COUNTS, each, strict=False)) for name, each in arms.items()}


def made(
    curve: Curve,
    all_labels: dict[str, float],
    *,
    shipped: str | None = None,
    forced: bool = False,
    head_starts: tuple[str, ...] = ("ulmfit",),
    parts: dict[str, dict[str, float]] | None = None,
) -> Figures:
    """Errors on the label curve and of the candidates of all labels; an arm without any has failed."""
    differences = {
        arm(name): {
            arm(rival): {
                count: above(theirs[count] - ours[count], CLEAR) for count in ours.keys() & theirs.keys()
            }
            for rival, theirs in curve.items()
            if rival != name and ours.keys() & theirs.keys()
        }
        for name, ours in curve.items()
    }
    curve_figures = label_curve(
        {name: {count: point(error) for count, error in each.items()} for name, each in curve.items()},
        COUNTS,
        above=differences,
        failed={f"{name} failed": "out of memory" for name, each in curve.items() if len(each) < 3},
    )
    candidates = {
        name: candidate(
            error,
            (parts or {}).get(name, {name: 1.0}),
            validation_error=error,
            tfidf_above=difference(all_labels["tfidf"] - error, CLEAR) if "tfidf" in all_labels else None,
        )
        for name, error in all_labels.items()
    }
    ships = shipped or min(all_labels, key=lambda name: all_labels[name])
    labelled = Labelled(evaluated(candidates, ships, forced=forced), curve_figures)
    trained = {name: head_start() for name in head_starts}
    return Figures(
        trained, labelled, tokenizers={}, prepared={}, encoded={}, leaks=leaks(), curves={}, confusion=[],
        calibration=[], errors=[],
    )  # fmt: skip


def with_core_seconds(figures: Figures, name: str, *seconds: float) -> Figures:
    """`seconds`: of pretraining and fine-tuning."""
    for stage, each in zip(("pretrain_lm", "finetune_lm"), seconds, strict=True):
        cost = COST.model_copy(update={"core_seconds": each})
        figures = with_training(figures, stage, name, cost=cost)
    return figures


@pytest.mark.parametrize(
    ("curve", "all_labels", "worth"),
    [
        (rows(ulmfit=BETTER, ulmfit__scratch=SCRATCH, tfidf=TFIDF), {"ulmfit": 0.1, "tfidf": 0.2},
         Worth.ALWAYS),
        (rows(ulmfit=WORSE, ulmfit__scratch=SCRATCH, tfidf=TFIDF), {"ulmfit": 0.3, "tfidf": 0.2},
         Worth.NEVER),
        (rows(ulmfit=ALIKE, ulmfit__scratch=SCRATCH, tfidf=TFIDF), {"ulmfit": 0.2, "tfidf": 0.2},
         Worth.UNCLEAR),
        # A network from scratch needs no head start either.
        (rows(ulmfit=BETTER, ulmfit__scratch=(0.3, 0.2, 0.1), tfidf=TFIDF), {"ulmfit": 0.1, "tfidf": 0.2},
         Worth.NEVER),
        (rows(ulmfit=(0.7, 0.4, 0.2), ulmfit__scratch=BETTER, tfidf=TFIDF), {"ulmfit": 0.1, "tfidf": 0.2},
         Worth.NEVER),
        (rows(ulmfit=BETTER, ulmfit__scratch=BETTER, tfidf=TFIDF), {"ulmfit": 0.2, "tfidf": 0.2},
         Worth.UNCLEAR),
        (rows(ulmfit=BETTER, ulmfit__scratch=SCRATCH), {"ulmfit": 0.1}, Worth.ALWAYS),
        (rows(ulmfit=WORSE, ulmfit__scratch=BETTER), {"ulmfit": 0.1}, Worth.NEVER),
        # At some numbers of labels alone; the last is that of all labels.
        (rows(ulmfit=BETTER, tfidf=TFIDF), {"ulmfit": 0.2, "tfidf": 0.2}, Worth.FEW),
        (rows(ulmfit=BETTER, tfidf=TFIDF), {"ulmfit": 0.4, "tfidf": 0.2}, Worth.FEW),
        (rows(ulmfit=(0.4, 0.5, 0.5), tfidf=TFIDF), {"ulmfit": 0.4, "tfidf": 0.2}, Worth.FEW),
        (rows(ulmfit=WORSE, tfidf=TFIDF), {"ulmfit": 0.1, "tfidf": 0.2}, Worth.MANY),
        (rows(ulmfit=(0.5, 0.3, 0.3), tfidf=TFIDF), {"ulmfit": 0.2, "tfidf": 0.2}, Worth.SOME),
        # Missing arms and candidates.
        (rows(tfidf=TFIDF), {"ulmfit": 0.1, "tfidf": 0.2}, Worth.ALWAYS),
        (rows(ulmfit=BETTER, tfidf=TFIDF), {"ulmfit": 0.1}, Worth.ALWAYS),
        (rows(ulmfit=BETTER), {"ulmfit": 0.1}, Worth.UNKNOWN),
        # The better of its uses decides.
        (rows(ulmfit=WORSE, ulmfit__probe=BETTER, tfidf=TFIDF), {"ulmfit": 0.1, "tfidf": 0.2}, Worth.ALWAYS),
        (rows(ulmfit=WORSE, ulmfit__with_tfidf=BETTER, tfidf=TFIDF), {"ulmfit": 0.1, "tfidf": 0.2},
         Worth.ALWAYS),
        (rows(ulmfit=BETTER, ulmfit__probe=WORSE, tfidf=TFIDF), {"ulmfit": 0.1, "tfidf": 0.2}, Worth.ALWAYS),
        # A failed training settles nothing.
        (rows(ulmfit=BETTER, ulmfit__scratch=(), tfidf=TFIDF), {"ulmfit": 0.1, "tfidf": 0.2}, Worth.UNCLEAR),
        (rows(ulmfit=BETTER, tfidf=()), {"ulmfit": 0.1, "tfidf": 0.2}, Worth.MANY),
        (rows(ulmfit=BETTER, ulmfit__scratch=(), tfidf=()), {"ulmfit": 0.1}, Worth.UNCLEAR),
        (rows(ulmfit=(), tfidf=TFIDF), {"ulmfit": 0.1}, Worth.UNKNOWN),
        (rows(ulmfit=(0.4,), tfidf=TFIDF), {"ulmfit": 0.1, "tfidf": 0.2}, Worth.ALWAYS),
    ],
)  # fmt: skip
def test_whether_the_head_start_pays_off(curve, all_labels, worth):
    figures = made(curve, all_labels)
    decided = decide(figures)
    assert decided.worth == {"ulmfit": worth}
    assert decided.answer is worth
    ships_anyway = worth is Worth.NEVER and figures.evaluate.shipped == ULMFIT
    assert decided.shipping.advice is (Advice.SHIP_ANYWAY if ships_anyway else Advice.SHIP)
    turned = with_curve(figures, arms=figures.curve.arms[::-1])
    assert decide(turned).worth == decided.worth  # the base of the curve's own figures plays no part


BOTH = ("vectors", "ulmfit")


@pytest.mark.parametrize(
    ("vectors", "ulmfit", "worth", "answer"),
    [
        ((BETTER, 0.1), (WORSE, 0.3), (Worth.ALWAYS, Worth.NEVER), Worth.ALWAYS),
        ((WORSE, 0.3), (BETTER, 0.1), (Worth.NEVER, Worth.ALWAYS), Worth.ALWAYS),
        ((BETTER, 0.1), (BETTER, 0.1), (Worth.ALWAYS, Worth.ALWAYS), Worth.ALWAYS),
        ((BETTER, 0.1), (BETTER, 0.2), (Worth.ALWAYS, Worth.FEW), Worth.ALWAYS),
        ((ALIKE, 0.2), (BETTER, 0.2), (Worth.UNCLEAR, Worth.FEW), Worth.FEW),
        ((WORSE, 0.3), (WORSE, 0.3), (Worth.NEVER, Worth.NEVER), Worth.NEVER),
        ((ALIKE, 0.2), (ALIKE, 0.2), (Worth.UNCLEAR, Worth.UNCLEAR), Worth.UNCLEAR),
        ((ALIKE, 0.2), (WORSE, 0.3), (Worth.UNCLEAR, Worth.NEVER), Worth.UNCLEAR),
    ],
)
def test_of_several_head_starts_the_most_worthwhile_is_the_answer(vectors, ulmfit, worth, answer):
    curve = rows(vectors=vectors[0], ulmfit=ulmfit[0], tfidf=TFIDF)
    all_labels = {"vectors": vectors[1], "ulmfit": ulmfit[1], "tfidf": 0.2}
    decided = decide(made(curve, all_labels, head_starts=BOTH))
    assert decided.worth == dict(zip(BOTH, worth, strict=True))
    assert decided.answer is answer


@pytest.mark.parametrize(
    ("shipped", "parts", "heaviest_first"),
    [
        ("ulmfit", {}, ["ulmfit"]),
        ("ulmfit/probe", {}, ["ulmfit/probe"]),
        ("tfidf", {}, ["tfidf"]),
        ("blend", {"tfidf": 0.2, "vectors/probe": 0.8}, ["vectors/probe", "tfidf"]),
        ("blend", {"tfidf": 0.2, "vectors/probe": 0.3, "vectors": 0.1, "ulmfit": 0.4},
         ["ulmfit", "vectors/probe", "tfidf", "vectors"]),
        ("vectors/with_tfidf", {}, ["vectors/with_tfidf"]),
        ("both", {"vectors": 0.5, "ulmfit": 0.5}, ["vectors", "ulmfit"]),
    ],
)  # fmt: skip
def test_what_to_ship(shipped, parts, heaviest_first):
    curve, all_labels = rows(ulmfit=BETTER, tfidf=TFIDF), {"ulmfit": 0.2, "tfidf": 0.2, shipped: 0.2}
    for part in parts:
        all_labels.setdefault(part, 0.2)
    blend = {shipped: parts} if parts else None
    shipping = decide(made(curve, all_labels, shipped=shipped, parts=blend, head_starts=BOTH)).shipping
    assert shipping.advice is Advice.SHIP
    assert shipping.classifier.arm == arm(shipped)
    assert [*map(str, shipping.classifier.parts)] == heaviest_first
    forced = decide(
        made(curve, all_labels, shipped=shipped, parts=blend, forced=True, head_starts=BOTH)
    ).shipping
    assert forced == dataclasses.replace(shipping, advice=Advice.FORCED)


def test_a_dearer_head_start_does_not_pay_off_where_a_cheaper_one_is_clearly_better():
    def worth(errors: tuple[float, ...], **seconds: float) -> list[Worth]:
        curve = rows(vectors=BETTER, ulmfit=errors, tfidf=TFIDF)
        figures = made(curve, {"vectors": 0.2, "ulmfit": 0.2, "tfidf": 0.2}, head_starts=BOTH)
        for name, spent in seconds.items():
            figures = with_core_seconds(figures, name, spent, spent)
        return [*decide(figures).worth.values()]

    few, worse = (0.45, 0.35, 0.21), (0.45, 0.35, 0.25)  # few: with 1,600 labels the two are not told apart
    assert worth(few, vectors=120.0, ulmfit=60.0) == [Worth.FEW, Worth.FEW]
    assert worth(few, vectors=60.0, ulmfit=60.0) == [Worth.FEW, Worth.FEW]
    assert worth(few, vectors=60.0, ulmfit=120.0) == [Worth.FEW, Worth.SOME]
    assert worth(worse, vectors=60.0, ulmfit=120.0) == [Worth.FEW, Worth.NEVER]


def test_a_blend_counts_for_its_head_starts():
    curve = rows(vectors=WORSE, ulmfit=WORSE, tfidf=TFIDF)
    all_labels = {"vectors": 0.3, "ulmfit": 0.3, "tfidf": 0.2, "blend": 0.1}

    def worth(**parts: float) -> list[Worth]:
        found = made(curve, all_labels, head_starts=BOTH, parts={"blend": parts})
        return [*decide(found).worth.values()]

    assert worth(vectors=0.4, tfidf=0.6) == [Worth.MANY, Worth.NEVER]
    one = made(
        rows(vectors=BETTER, ulmfit=WORSE, tfidf=TFIDF), all_labels | {"vectors": 0.1}, head_starts=BOTH,
        shipped="blend", parts={"blend": {"vectors": 0.5, "ulmfit": 0.5}},
    )  # fmt: skip
    assert [*decide(one).worth.values()] == [Worth.ALWAYS, Worth.NOT_ALONE]
    for low, expected in ((0.001, Worth.IN_BLEND), (-0.001, Worth.NOT_ALONE)):
        without = Rival(error=0.11, above=difference(low + 0.01, 0.01))
        found = decide(with_evaluate(one, blend_without={"ulmfit": without})).worth
        assert [*found.values()] == [Worth.ALWAYS, expected]
    assert worth(vectors=0.4, ulmfit=0.2, tfidf=0.4) == [Worth.TOGETHER, Worth.TOGETHER]
    curve |= rows(ulmfit__scratch=ALIKE)
    assert worth(vectors=0.4, ulmfit=0.2, tfidf=0.4) == [Worth.NEVER, Worth.NEVER]
    del curve["ulmfit/scratch"]
    all_labels["blend"] = 0.195  # not clearly better than TF-IDF
    assert worth(vectors=0.4, ulmfit=0.2, tfidf=0.4) == [Worth.NEVER, Worth.NEVER]


def test_validation_documents_choose_the_candidate_that_counts_with_all_labels():
    """On test documents, the best of several is better than it is on others."""
    curve, all_labels = rows(tfidf=TFIDF), {"ulmfit": 0.1, "ulmfit/probe": 0.3, "tfidf": 0.2}
    figures = made(curve, all_labels)
    assert decide(figures).answer is Worth.ALWAYS
    assert decide(with_candidate(figures, "ulmfit", validation=validation(0.4))).answer is Worth.NEVER


def fewest(curve: Curve) -> AtCount:
    found = decide(made(curve, {"ulmfit": 0.1, "tfidf": 0.2}, head_starts=BOTH)).fewest
    assert found is not None
    return found


def test_the_best_arms_are_compared_with_the_fewest_labels():
    curve = rows(vectors=WORSE, ulmfit=BETTER, ulmfit__scratch=SCRATCH, tfidf=TFIDF)
    found = fewest(curve)
    assert found.theirs is not None
    assert (found.labels, found.ours.arm, found.theirs.arm) == (100, ULMFIT, TFIDF_ARM)
    assert (found.ours.error, found.theirs.error) == (0.4, 0.5)
    assert found.outcome is Outcome.FEWER
    assert found.needed is None
    figures = made(curve, {"ulmfit": 0.1, "tfidf": 0.2}, head_starts=BOTH)
    number = needed(1139.4, 773.0, 1500.0)
    known = with_curve(figures, labels_needed={TFIDF_ARM: {ULMFIT: {100: number}}})
    assert decide(known).fewest == dataclasses.replace(found, needed=number)
    unclear = fewest(rows(vectors__probe=(0.49, 0.3, 0.2), tfidf=TFIDF))
    assert (unclear.ours.arm, unclear.outcome) == (arm("vectors/probe"), Outcome.UNCLEAR)
    worse = fewest(rows(ulmfit=WORSE, ulmfit__scratch=BETTER, tfidf=TFIDF))
    assert worse.theirs is not None
    assert (worse.theirs.arm, worse.outcome) == (arm("ulmfit/scratch"), Outcome.MORE)


def test_what_failed_or_was_not_tried_is_known():
    def decided(curve: Curve) -> Any:
        return decide(made(curve, {"ulmfit": 0.1, "tfidf": 0.2}, head_starts=BOTH))

    assert decided(rows(ulmfit=BETTER, vectors=(), tfidf=TFIDF)).some_points_failed
    assert not decided(rows(ulmfit=BETTER, tfidf=TFIDF)).some_points_failed
    not_tried, failed = decided(rows(ulmfit=BETTER)), decided(rows(ulmfit=BETTER, tfidf=()))
    assert not_tried.fewest.theirs is failed.fewest.theirs is None
    assert (not_tried.rivals_tried, failed.rivals_tried) == (False, True)
    none = decided(rows(ulmfit=(), tfidf=TFIDF))
    assert none.fewest is None
    assert none.all_arms_failed
    without = decided(rows(tfidf=TFIDF))  # there is nothing to say on few labels
    assert without.fewest is None
    assert not without.all_arms_failed
    late = made(rows(ulmfit=BETTER, tfidf=TFIDF), {"ulmfit": 0.1, "tfidf": 0.2})
    curve = late.curve.curve
    later = {count: each for count, each in curve[ULMFIT].items() if count > 100}
    found = decide(with_curve(late, curve=curve | {ULMFIT: later})).fewest
    assert found is not None
    assert (found.labels, found.ours.error) == (400, 0.3)


@pytest.mark.parametrize(
    ("all_labels", "ships", "ours", "tfidf", "outcome"),
    [
        ({"ulmfit": 0.1, "tfidf": 0.2}, "ulmfit", "ulmfit", 0.2, Outcome.FEWER),
        ({"ulmfit": 0.19, "tfidf": 0.2}, "ulmfit", "ulmfit", 0.2, Outcome.UNCLEAR),
        ({"ulmfit": 0.4, "ulmfit/probe": 0.3, "tfidf": 0.2}, "tfidf", "ulmfit/probe", 0.2, Outcome.MORE),
        ({"ulmfit": 0.21, "tfidf": 0.2}, "tfidf", "ulmfit", 0.2, Outcome.UNCLEAR),
        ({"tfidf": 0.2}, "tfidf", None, 0.2, Outcome.UNCLEAR),
        ({"ulmfit": 0.1}, "ulmfit", "ulmfit", None, Outcome.UNCLEAR),
    ],
)
def test_what_is_best_with_all_labels(all_labels, ships, ours, tfidf, outcome):
    found = decide(made(rows(ulmfit=BETTER, tfidf=TFIDF), all_labels)).every
    assert str(found.ships.arm) == ships
    assert found.ships.error == all_labels[ships]
    assert (None if found.ours is None else str(found.ours.arm)) == ours
    assert found.tfidf == tfidf
    assert found.outcome is outcome


def test_the_price_is_the_core_time_of_the_language_models_and_the_time_of_a_prediction():
    all_labels = {"ulmfit": 0.1, "tfidf": 0.2}
    figures = made(rows(vectors=BETTER, ulmfit=BETTER, tfidf=TFIDF), all_labels, head_starts=BOTH)
    figures = with_candidate(figures, "ulmfit", milliseconds_per_document=1.5)
    assert decide(figures).price.milliseconds == 1.5
    figures = with_core_seconds(figures, "ulmfit", 60.0, 30.0)
    figures = with_core_seconds(figures, "vectors", 12.0, 6.0)
    assert decide(figures).price.core_minutes == pytest.approx({"vectors": 0.3, "ulmfit": 1.5})


def test_a_classifier_that_is_no_better_than_the_largest_class_is_not_to_be_used():
    figures = made(rows(ulmfit=BETTER, tfidf=TFIDF), {"ulmfit": 0.7, "tfidf": 0.72})
    assert decide(figures).caveats.majority_error is None
    majority = Rival(error=0.75, above=difference(0.0))
    useless = decide(with_evaluate(figures, baselines=Baselines(majority_class=majority)))
    assert useless.shipping.advice is Advice.USE_NONE
    assert useless.caveats.majority_error == 0.75


def test_few_documents_are_known_to_tell_nothing():
    figures = made(rows(ulmfit=BETTER, tfidf=TFIDF), {"ulmfit": 0.7, "tfidf": 0.72})

    def few(test: int, validation: int) -> dict[str, int]:
        found = with_evaluate(figures, num_documents=test, num_validation_documents=validation)
        return dict(decide(found).caveats.few_documents)

    assert few(4, 1440) == {"test": 4}
    assert few(4, 10) == {"test": 4, "validation": 10}
    assert few(100, 100) == {}


def test_points_that_went_wrong_are_named():
    figures = made(rows(ulmfit=BETTER, ulmfit__scratch=SCRATCH, tfidf=TFIDF), {"ulmfit": 0.1, "tfidf": 0.2})
    scratch = arm("ulmfit/scratch")
    found = decide(with_curve(figures, worse_than_fewer={scratch: {1600: 400}}))
    assert found.caveats.went_wrong == (scratch,)


def test_a_table_has_the_best_with_and_without_at_both_ends():
    figures = made(
        rows(ulmfit=BETTER, ulmfit__scratch=SCRATCH, tfidf=TFIDF),
        {"ulmfit": 0.1, "tfidf": 0.2, "blend": 0.3},
        parts={"blend": {"ulmfit": 0.5, "tfidf": 0.5}},
    )  # fmt: skip
    figures = with_core_seconds(figures, "ulmfit", 60.0, 30.0)
    few, every = at_a_glance(decide(figures))
    assert few == {
        "labels": "100", "with a head start": "ulmfit: 40.0%", "without": "TF-IDF: 50.0%",
        "fewer wrong": "10.0 points (8.0 to 12.0)", "labels without, for the same": "",
        "core minutes of head starts": "1.5",
    }  # fmt: skip
    assert every == {
        "labels": "all", "with a head start": "ulmfit: 10.0%", "without": "TF-IDF: 20.0%",
        "fewer wrong": "10.0 points (8.0 to 12.0)", "labels without, for the same": "",
        "core minutes of head starts": "1.5",
    }  # fmt: skip
    assert decide(made(rows(ulmfit=BETTER), {"ulmfit": 0.1})).at_a_glance == ()


@pytest.mark.parametrize("ulmfit", [BETTER, ALIKE, WORSE, (), (0.1,)])
@pytest.mark.parametrize("tfidf", [TFIDF, ()])
def test_the_first_sentences_have_no_figures_and_at_most_three_follow(ulmfit, tfidf):
    first, *following = verdict(made(rows(ulmfit=ulmfit, tfidf=tfidf), {"ulmfit": 0.1, "tfidf": 0.2}))
    assert not re.search(r"\d", first)
    assert len(following) <= 3
    for sentence in (first, *following):
        assert re.fullmatch(r"[A-Z].{10,200}\.", sentence)
