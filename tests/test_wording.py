"""Golden sentences of the report, a dozen at most. What they say is decided elsewhere, and tested there."""

from __future__ import annotations

import dataclasses

from pipeline.figures.classifiers import Baselines, Rival
from pipeline.figures.estimates import Difference, Estimate
from pipeline.report import opening
from pipeline.report.decision import (
    Advice,
    AllLabels,
    AtCount,
    Best,
    Caveats,
    Price,
    Shipping,
    Verdict,
    Worth,
)
from pipeline.report.verdict import worded
from pipeline.settings.arm import BLEND, TFIDF, Arm
from tests.figures import arm, difference, needed, with_evaluate
from tests.sentences import numbers_in
from tests.test_verdict import ALIKE, BETTER, made, rows

ULMFIT = Arm("ulmfit")
NO_CAVEATS = Caveats(majority_error=None, few_documents={}, went_wrong=())
PARTS = tuple(map(arm, ("vectors/with_tfidf", "vectors", "tfidf", "ulmfit")))
FIRST = Verdict(
    worth={"ulmfit": Worth.NOT_ALONE, "vectors": Worth.FEW},
    shipping=Shipping(Best(BLEND, 0.1, PARTS), Advice.SHIP),
    fewest=AtCount(
        labels=100, ours=Best(ULMFIT, 0.4), theirs=Best(TFIDF, 0.5), above=difference(0.1),
        needed=needed(1139.4, 773.0, 1500.0), core_minutes=2.5,
    ),
    at_a_glance=(),
    all_arms_failed=False,
    some_points_failed=False,
    rivals_tried=True,
    every=AllLabels(Best(BLEND, 0.1, PARTS), Best(BLEND, 0.1, PARTS), 0.12, difference(0.02)),
    caveats=NO_CAVEATS,
    price=Price({"vectors": 0.3, "ulmfit": 1.5}, 1.5),
)  # fmt: skip
OTHER = Verdict(
    worth={"vectors": Worth.ALWAYS, "ulmfit": Worth.NEVER},
    shipping=Shipping(Best(ULMFIT, 0.7, (ULMFIT,)), Advice.USE_NONE),
    fewest=None,
    at_a_glance=(),
    all_arms_failed=True,
    some_points_failed=True,
    rivals_tried=False,
    every=AllLabels(Best(ULMFIT, 0.7, (ULMFIT,)), Best(ULMFIT, 0.7, (ULMFIT,)), 0.705, difference(0.005)),
    caveats=Caveats(majority_error=0.75, few_documents={}, went_wrong=()),
    price=Price({}, None),
)


def test_the_verdict_of_a_blend():
    assert worded(FIRST) == [
        "Partly: vectors pays off with few labels, and ulmfit does not on its own. Ship the blend of 4 "
        "classifiers (mostly vectors (frozen features and TF-IDF)).",
        "With 100 labels, ulmfit gets 40.0% wrong and TF-IDF 50.0%; TF-IDF takes about 1,100 labels to get "
        "there, for 2.5 core minutes of training.",
        "With all labels, what ships gets 10.0% wrong and TF-IDF 12.0%.",
        "The head start vectors took 0.3 core minutes to train and ulmfit 1.5; what ships takes 1.50 ms a "
        "document.",
    ]


def test_the_verdict_of_a_classifier_that_is_of_no_use():
    assert worded(OTHER) == [
        "Yes: vectors pays off, and ulmfit does not. Use none of them yet, not even ulmfit, which ships as "
        "the best of them.",
        "All trainings of the label curve that begin with a head start failed.",
        "It is not clearly better than always answering the largest class, which gets 75.0% wrong.",
        "With all labels, what ships gets 70.0% wrong and TF-IDF 70.5%, no clear difference.",
    ]


def test_each_caveat_is_a_sentence_with_its_figures():
    few = {"test": 4, "validation": 10}
    caveats = dataclasses.replace(OTHER.caveats, few_documents=few, went_wrong=(arm("ulmfit/scratch"),))
    before, after = worded(OTHER), worded(dataclasses.replace(OTHER, caveats=caveats))
    few_documents, went_wrong = after[3:5]
    assert after == [*before[:3], few_documents, went_wrong, *before[3:]]
    assert "4 test and 10 validation" in few_documents
    assert numbers_in(few_documents) == ["4", "10"]
    assert "ulmfit (from scratch)" in went_wrong


def test_the_error_of_what_ships_beside_that_of_tf_idf():
    figures = made(rows(ulmfit=BETTER, tfidf=ALIKE), {"ulmfit": 0.1, "tfidf": 0.2})
    worse = Rival(error=0.2, above=Difference(value=-0.01, low=-0.04, high=0.02))
    majority = figures.evaluate.baselines.majority_class
    found = with_evaluate(figures, baselines=Baselines(majority_class=majority, tfidf=worse))
    assert opening.key_figures(found)[0] == (
        "The classifier that ships, ulmfit, gets 10.0% of 500 held-out documents wrong (8.0% to 12.0%). That "
        "is 1.0 points (-2.0 to 4.0) worse than TF-IDF with logistic regression on the same labels and "
        "documents, which gets 20.0% wrong: no clear difference."
    )


def test_one_formatter_spells_intervals():
    found = Estimate(value=0.1, low=0.08, high=0.12)
    assert f"{found:.1%}, {found.interval:+.1%}" == "10.0% (8.0% to 12.0%), +8.0% to +12.0%"
    assert f"{-difference(0.1):.2f}" == "-0.10 (-0.11 to -0.09)"
    assert f"{Difference(value=0.0, low=-0.0, high=0.0).points:.1f}" == "0.0 (0.0 to 0.0)"
