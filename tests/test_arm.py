"""The one spelling of an arm of the label curve."""

from __future__ import annotations

import pytest

from pipeline.settings.arm import BLEND, RESERVED_NAMES, TFIDF, Arm, Use
from pipeline.settings.loader import parsed

ARMS = [TFIDF, BLEND, *(Arm("bag_2", use) for use in Use if str(use) not in RESERVED_NAMES)]


@pytest.mark.parametrize("arm", ARMS, ids=str)
def test_an_arm_is_read_as_it_is_printed(arm):
    assert Arm.parse(str(arm)) == arm


@pytest.mark.parametrize("arm", ARMS, ids=str)
def test_yaml_needs_no_quotes_in_any_list(arm):
    assert parsed(f"[{arm}, x]") == parsed(f"- {arm}\n- x") == [str(arm), "x"]


def test_no_two_arms_are_spelled_alike():
    assert len({str(arm) for arm in ARMS}) == len(ARMS)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("bag/prob", "bag/prob has an unknown use 'prob'; did you mean probe?"),
        ("bag/network", "unknown use 'network'"),
        ("bag/tfidf", "unknown use 'tfidf'"),
        ("bag/", "unknown use ''"),
        ("bag:probe", "bag:probe has a colon; write bag/probe"),
        ("/probe", "'/probe' names no head start; write the name"),
        ("", "'' names no head start"),
        ("tfidf/scratch", "tfidf/scratch is not an arm: tfidf has no head start; write tfidf alone"),
    ],
)
def test_a_misspelled_arm_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        Arm.parse(text)


def test_labels_are_chosen_by_arms_that_read_frozen_features():
    chosen = [use for use in Use if use.chooses_labels]
    assert [use.drawn for use in chosen] == [Use.PROBE, Use.WITH_TFIDF]
    assert all(use.is_frozen and not use.drawn.chooses_labels for use in chosen)
