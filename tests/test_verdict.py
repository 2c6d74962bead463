"""The verdict: true, short and in plain words, whichever arms there are and whatever failed."""

from __future__ import annotations

import copy
import dataclasses
import re
from typing import Any

import pytest

from pipeline.report.figures import Figures
from pipeline.report.verdict import at_a_glance, verdict

Curve = dict[str, dict[int, float]]
COUNTS = (100, 400, 1600)
CLEAR = 0.02  # differences of at least this are clear
TFIDF, SCRATCH = (0.5, 0.4, 0.3), (0.7, 0.6, 0.5)
BETTER, ALIKE, WORSE = (0.4, 0.3, 0.2), (0.51, 0.39, 0.3), (0.6, 0.5, 0.4)


def rows(**arms: tuple[float, ...]) -> Curve:
    """Arms by name (`ulmfit__scratch`), each with an error for each of COUNTS, or for fewer."""
    return {arm.replace("__", ":"): dict(zip(COUNTS, each, strict=False)) for arm, each in arms.items()}


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
    above = {
        arm: {
            rival: {
                str(count): {"difference_low": theirs[count] - ours[count] - CLEAR + 1e-9,
                             "difference_high": theirs[count] - ours[count] + CLEAR - 1e-9}
                for count in ours.keys() & theirs.keys()
            }
            for rival, theirs in curve.items()
            if rival != arm and ours.keys() & theirs.keys()
        }
        for arm, ours in curve.items()
    }  # fmt: skip
    candidates: dict[str, Any] = {}
    for name, error in all_labels.items():
        candidates[name] = {"error": error, "validation": {"error": error}, "parts": {name: 1.0}}
        candidates[name] |= {"parts": parts[name]} if parts and name in parts else {}
        used = dict.fromkeys(part.partition(":")[0] for part in candidates[name]["parts"])
        candidates[name]["head_starts"] = [each for each in used if each != "tfidf"]
        if "tfidf" in all_labels:
            difference = all_labels["tfidf"] - error
            interval = {"above_low": difference - CLEAR + 1e-9, "above_high": difference + CLEAR - 1e-9}
            candidates[name]["tfidf_above"] = interval
    metrics: dict[str, Any] = {
        "sample_efficiency": {
            "arms": list(curve),
            "labels": list(COUNTS),
            "curve": {
                arm: {str(count): {"error": error} for count, error in each.items()}
                for arm, each in curve.items()
                if each
            },
            "above": above,
            "head_starts": {arm: [] if arm == "tfidf" else [arm.partition(":")[0]] for arm in curve},
            "labels_needed": {},
            "failed": {f"{arm} failed": "out of memory" for arm, each in curve.items() if len(each) < 3},
        },
        "evaluate": {
            "shipped": shipped or min(all_labels, key=lambda name: all_labels[name]),
            "forced": forced,
            "candidates": candidates,
            "baselines": {"majority_class": {"error": 0.75, "above_low": 0.1}},
        },
    }
    for name in head_starts:
        metrics |= {f"{stage}-{name}": {} for stage in ("pretrain_lm", "finetune_lm", "read_features")}
    return Figures(dict.fromkeys(head_starts, "pieces"), metrics, {}, [], [], [])


YES = "Yes: the head start ulmfit is worth it"
NO = "No: the head start ulmfit is not worth it"
UNCLEAR = "Not clearly: the head start ulmfit makes no clear difference"
IN_PART = "In part: the head start ulmfit is worth it with"


@pytest.mark.parametrize(
    ("curve", "all_labels", "said"),
    [
        (rows(ulmfit=BETTER, ulmfit__scratch=SCRATCH, tfidf=TFIDF), {"ulmfit": 0.1, "tfidf": 0.2}, YES),
        (rows(ulmfit=WORSE, ulmfit__scratch=SCRATCH, tfidf=TFIDF), {"ulmfit": 0.3, "tfidf": 0.2}, NO),
        (rows(ulmfit=ALIKE, ulmfit__scratch=SCRATCH, tfidf=TFIDF), {"ulmfit": 0.2, "tfidf": 0.2}, UNCLEAR),
        # A network from scratch needs no head start either.
        (rows(ulmfit=BETTER, ulmfit__scratch=(0.3, 0.2, 0.1), tfidf=TFIDF), {"ulmfit": 0.1, "tfidf": 0.2},
         f"{NO}; ulmfit ships all the same, as the best of what was trained with all labels."),
        (rows(ulmfit=(0.7, 0.4, 0.2), ulmfit__scratch=BETTER, tfidf=TFIDF), {"ulmfit": 0.1, "tfidf": 0.2},
         f"{NO}; ulmfit ships all the same"),
        (rows(ulmfit=BETTER, ulmfit__scratch=BETTER, tfidf=TFIDF), {"ulmfit": 0.2, "tfidf": 0.2}, UNCLEAR),
        (rows(ulmfit=BETTER, ulmfit__scratch=SCRATCH), {"ulmfit": 0.1}, YES),
        (rows(ulmfit=WORSE, ulmfit__scratch=BETTER), {"ulmfit": 0.1}, NO),
        # At some numbers of labels alone; the last is that of all labels.
        (rows(ulmfit=BETTER, tfidf=TFIDF), {"ulmfit": 0.2, "tfidf": 0.2}, f"{IN_PART} few labels"),
        (rows(ulmfit=BETTER, tfidf=TFIDF), {"ulmfit": 0.4, "tfidf": 0.2}, f"{IN_PART} few labels"),
        (rows(ulmfit=(0.4, 0.5, 0.5), tfidf=TFIDF), {"ulmfit": 0.4, "tfidf": 0.2}, f"{IN_PART} few labels"),
        (rows(ulmfit=WORSE, tfidf=TFIDF), {"ulmfit": 0.1, "tfidf": 0.2}, f"{IN_PART} many labels"),
        (rows(ulmfit=(0.5, 0.3, 0.3), tfidf=TFIDF), {"ulmfit": 0.2, "tfidf": 0.2},
         "In part: the head start ulmfit is worth it at some numbers of labels"),
        # Missing arms and candidates.
        (rows(tfidf=TFIDF), {"ulmfit": 0.1, "tfidf": 0.2}, YES),
        (rows(ulmfit=BETTER, tfidf=TFIDF), {"ulmfit": 0.1}, YES),
        (rows(ulmfit=BETTER), {"ulmfit": 0.1},
         "Unknown: the head start ulmfit was not compared with doing without"),
        # The better of its uses decides.
        (rows(ulmfit=WORSE, ulmfit__probe=BETTER, tfidf=TFIDF), {"ulmfit": 0.1, "tfidf": 0.2}, YES),
        (rows(ulmfit=WORSE, ulmfit__with_tfidf=BETTER, tfidf=TFIDF), {"ulmfit": 0.1, "tfidf": 0.2}, YES),
        (rows(ulmfit=BETTER, ulmfit__probe=WORSE, tfidf=TFIDF), {"ulmfit": 0.1, "tfidf": 0.2}, YES),
        # A failed training settles nothing.
        (rows(ulmfit=BETTER, ulmfit__scratch=(), tfidf=TFIDF), {"ulmfit": 0.1, "tfidf": 0.2}, UNCLEAR),
        (rows(ulmfit=BETTER, tfidf=()), {"ulmfit": 0.1, "tfidf": 0.2}, f"{IN_PART} many labels"),
        (rows(ulmfit=BETTER, ulmfit__scratch=(), tfidf=()), {"ulmfit": 0.1}, UNCLEAR),
        (rows(ulmfit=(), tfidf=TFIDF), {"ulmfit": 0.1}, "Unknown: "),
        (rows(ulmfit=(0.4,), tfidf=TFIDF), {"ulmfit": 0.1, "tfidf": 0.2}, YES),
    ],
)  # fmt: skip
def test_the_first_sentence_says_whether_the_head_start_was_worth_it(curve, all_labels, said):
    figures = made(curve, all_labels)
    first = verdict(figures)[0]
    assert first.startswith(said)
    assert first.removeprefix(said).startswith((";", "the head start", ", as the best")) or first == said
    turned = copy.deepcopy(figures)
    turned["sample_efficiency"]["arms"].reverse()  # the base of the curve's own figures plays no part
    assert verdict(turned)[0] == first


BOTH = ("vectors", "ulmfit")


@pytest.mark.parametrize(
    ("vectors", "ulmfit", "said"),
    [
        ((BETTER, 0.1), (WORSE, 0.3), "Yes: the head start vectors is worth it, and ulmfit is not"),
        ((WORSE, 0.3), (BETTER, 0.1), "Yes: the head start ulmfit is worth it, and vectors is not"),
        ((BETTER, 0.1), (BETTER, 0.1), "Yes: the head starts vectors and ulmfit are worth it"),
        ((BETTER, 0.1), (BETTER, 0.2),
         "Yes: the head start vectors is worth it, and ulmfit is worth it with few labels"),
        ((ALIKE, 0.2), (BETTER, 0.2),
         "In part: the head start ulmfit is worth it with few labels, and vectors makes no clear difference"),
        ((WORSE, 0.3), (WORSE, 0.3), "No: the head starts vectors and ulmfit are not worth it"),
        ((ALIKE, 0.2), (ALIKE, 0.2),
         "Not clearly: the head starts vectors and ulmfit make no clear difference"),
        ((ALIKE, 0.2), (WORSE, 0.3),
         f"{UNCLEAR.replace('ulmfit', 'vectors')}, and ulmfit is not worth it"),
    ],
)  # fmt: skip
def test_of_several_head_starts_the_most_worthwhile_comes_first(vectors, ulmfit, said):
    curve = rows(vectors=vectors[0], ulmfit=ulmfit[0], tfidf=TFIDF)
    all_labels = {"vectors": vectors[1], "ulmfit": ulmfit[1], "tfidf": 0.2}
    assert verdict(made(curve, all_labels, head_starts=BOTH))[0].startswith(f"{said}; ")


@pytest.mark.parametrize(
    ("shipped", "parts", "said"),
    [
        ("ulmfit", {}, "ship ulmfit."),
        ("ulmfit/probe", {}, "ship ulmfit (frozen features)."),
        ("tfidf", {}, "ship TF-IDF."),
        ("blend", {"tfidf": 0.2, "vectors/probe": 0.8},
         "ship the blend of vectors (frozen features) and TF-IDF."),
        ("blend", {"tfidf": 0.2, "vectors/probe": 0.3, "vectors": 0.1, "ulmfit": 0.4},
         "ship the blend of 4 classifiers, above all ulmfit."),
        ("vectors/with_tfidf", {}, "ship vectors (frozen features and TF-IDF)."),
        ("both", {"vectors": 0.5, "ulmfit": 0.5}, "ship the ensemble both."),
    ],
)  # fmt: skip
def test_the_first_sentence_says_what_to_ship(shipped, parts, said):
    curve, all_labels = rows(ulmfit=BETTER, tfidf=TFIDF), {"ulmfit": 0.2, "tfidf": 0.2, shipped: 0.2}
    blend = {shipped: parts} if parts else None
    assert verdict(made(curve, all_labels, shipped=shipped, parts=blend))[0].endswith(f"; {said}")
    forced = verdict(made(curve, all_labels, shipped=shipped, parts=blend, forced=True))[0]
    assert forced.endswith(f"; what ships, as evaluate.ship says, is {said.removeprefix('ship ')}")


def test_a_dearer_head_start_is_not_worth_it_where_a_cheaper_one_is_clearly_better():
    def first(errors: tuple[float, ...], **seconds: float | None) -> str:
        curve = rows(vectors=BETTER, ulmfit=errors, tfidf=TFIDF)
        figures = made(curve, {"vectors": 0.2, "ulmfit": 0.2, "tfidf": 0.2}, head_starts=BOTH)
        trainings = {
            f"{stage}-{name}": {} if spent is None else {"core_seconds": spent}
            for name, spent in seconds.items()
            for stage in ("pretrain_lm", "finetune_lm")
        }
        return verdict(dataclasses.replace(figures, metrics={**figures.metrics, **trainings}))[0]

    few, worse = (0.45, 0.35, 0.21), (0.45, 0.35, 0.25)  # few: with 1,600 labels the two are not told apart
    both = "In part: the head starts vectors and ulmfit are worth it with few labels; "
    assert first(few, vectors=120.0, ulmfit=60.0).startswith(both)
    assert first(few, vectors=60.0, ulmfit=None).startswith(both)
    one = "In part: the head start vectors is worth it with few labels, and ulmfit is "
    some = f"{one}worth it at some numbers of labels; "
    assert first(few, vectors=60.0, ulmfit=120.0).startswith(some)
    assert first(worse, vectors=60.0, ulmfit=120.0).startswith(f"{one}not; ")


def test_a_blend_counts_for_its_head_starts():
    curve = rows(vectors=WORSE, ulmfit=WORSE, tfidf=TFIDF)
    all_labels = {"vectors": 0.3, "ulmfit": 0.3, "tfidf": 0.2, "blend": 0.1}

    def first(**parts: float) -> str:
        return verdict(made(curve, all_labels, head_starts=BOTH, parts={"blend": parts}))[0]

    alone = "In part: the head start vectors is worth it with many labels, and ulmfit is not; "
    assert first(vectors=0.4, tfidf=0.6).startswith(alone)
    one = {"vectors": BETTER, "ulmfit": WORSE, "tfidf": TFIDF}
    better = verdict(made(rows(**one), all_labels | {"vectors": 0.1}, head_starts=BOTH, shipped="blend",
                          parts={"blend": {"vectors": 0.5, "ulmfit": 0.5}}))[0]  # fmt: skip
    assert better.startswith("Yes: the head start vectors is worth it, and ulmfit is not on its own; ")
    for above, said in ((0.001, "is worth it as a part of the blend"), (-0.001, "is not on its own")):
        figures = made(rows(**one), all_labels | {"vectors": 0.1}, head_starts=BOTH, shipped="blend",
                       parts={"blend": {"vectors": 0.5, "ulmfit": 0.5}})  # fmt: skip
        metrics = dict(figures["evaluate"])
        metrics["blend_without"] = {"ulmfit": {"above_low": above}}
        figures = dataclasses.replace(figures, metrics={**figures.metrics, "evaluate": metrics})
        said = f"Yes: the head start vectors is worth it, and ulmfit {said}; "
        assert verdict(figures)[0].startswith(said)
    together = "In part: the head starts vectors and ulmfit are worth it together, with all labels; "
    assert first(vectors=0.4, ulmfit=0.2, tfidf=0.4).startswith(together)
    curve |= rows(ulmfit__scratch=ALIKE)
    neither = "No: the head starts vectors and ulmfit are not worth it; "
    assert first(vectors=0.4, ulmfit=0.2, tfidf=0.4).startswith(neither)
    del curve["ulmfit/scratch"]
    all_labels["blend"] = 0.195  # not clearly better than TF-IDF
    assert first(vectors=0.4, ulmfit=0.2, tfidf=0.4).startswith(neither)


def test_validation_documents_choose_the_candidate_that_counts_with_all_labels():
    """On test documents, the best of several is better than it is on others."""
    curve, all_labels = rows(tfidf=TFIDF), {"ulmfit": 0.1, "ulmfit/probe": 0.3, "tfidf": 0.2}
    figures = made(curve, all_labels)
    assert verdict(figures)[0].startswith(YES)
    candidates: Any = figures["evaluate"]["candidates"]
    candidates["ulmfit"]["validation"] = {"error": 0.4}
    assert verdict(figures)[0].startswith(NO)


def few(curve: Curve, needed: dict[str, float] | None = None) -> str:
    """The sentence on few labels, where TF-IDF needs as many for what ulmfit reaches with 100."""
    figures = made(curve, {"ulmfit": 0.1, "tfidf": 0.2}, head_starts=BOTH)
    if needed is not None:
        metrics: Any = figures["sample_efficiency"]
        metrics["labels_needed"] = {"tfidf": {"ulmfit": {"100": needed}}}
    return verdict(figures)[1]


def test_the_second_sentence_compares_the_best_arms_with_the_fewest_labels():
    curve = rows(vectors=WORSE, ulmfit=BETTER, ulmfit__scratch=SCRATCH, tfidf=TFIDF)
    said = "With 100 labels, ulmfit gets 40.0% wrong and TF-IDF 50.0%"
    assert few(curve) == f"{said}."
    numbers: list[tuple[dict[str, float], str]] = [
        ({"labels": 1139.4, "labels_low": 773.0}, "about 1,100"),
        ({"labels": 99.6}, "about 100"),
        ({"more_than": 1600}, "more than 1,600"),
    ]
    for needed, number in numbers:
        assert few(curve, needed) == f"{said}; TF-IDF takes {number} labels to get there."
    unclear = "With 100 labels, vectors (frozen features) gets 49.0% wrong and TF-IDF 50.0%, no clear"
    assert few(rows(vectors__probe=(0.49, 0.3, 0.2), tfidf=TFIDF)) == f"{unclear} difference."
    worse = rows(ulmfit=WORSE, ulmfit__scratch=BETTER, tfidf=TFIDF)
    assert few(worse) == "With 100 labels, ulmfit gets 60.0% wrong and ulmfit (from scratch) 40.0%."


def test_the_second_sentence_says_what_failed_or_was_not_tried():
    left_out = "; trainings that failed are left out."
    assert few(rows(ulmfit=BETTER, vectors=(), tfidf=TFIDF)).endswith(f"and TF-IDF 50.0%{left_out}")
    assert few(rows(ulmfit=BETTER)).endswith("; doing without a head start was not tried.")
    assert few(rows(ulmfit=BETTER, tfidf=())).endswith("; doing without a head start failed.")
    assert few(rows(ulmfit=(), tfidf=TFIDF)) == (
        "All trainings of the label curve that begin with a head start failed."
    )
    assert few(rows(tfidf=TFIDF)).startswith("With all labels, ")  # there is nothing to say on few
    late = made(rows(ulmfit=BETTER, tfidf=TFIDF), {"ulmfit": 0.1, "tfidf": 0.2})
    late["sample_efficiency"]["curve"]["ulmfit"].pop("100")
    assert verdict(late)[1].startswith("With 400 labels, ulmfit gets 30.0% wrong and TF-IDF 40.0%")


@pytest.mark.parametrize(
    ("all_labels", "said"),
    [
        ({"ulmfit": 0.1, "tfidf": 0.2}, "what ships gets 10.0% wrong and TF-IDF 20.0%."),
        ({"ulmfit": 0.19, "tfidf": 0.2},
         "what ships gets 19.0% wrong and TF-IDF 20.0%, no clear difference."),
        ({"ulmfit": 0.4, "ulmfit/probe": 0.3, "tfidf": 0.2},
         "TF-IDF gets 20.0% wrong, and ulmfit (frozen features) gets 30.0% wrong."),
        ({"ulmfit": 0.21, "tfidf": 0.2},
         "TF-IDF gets 20.0% wrong, and ulmfit gets 21.0% wrong, no clear difference."),
        ({"tfidf": 0.2}, "TF-IDF gets 20.0% wrong."),
        ({"ulmfit": 0.1}, "what ships gets 10.0% wrong; TF-IDF was not tried."),
    ],
)  # fmt: skip
def test_the_third_sentence_is_on_all_labels(all_labels, said):
    found = verdict(made(rows(ulmfit=BETTER, tfidf=TFIDF), all_labels))
    assert found[2] == f"With all labels, {said}"


def test_the_last_sentence_is_on_the_price_as_far_as_it_was_recorded():
    all_labels = {"ulmfit": 0.1, "tfidf": 0.2}
    figures = made(rows(vectors=BETTER, ulmfit=BETTER, tfidf=TFIDF), all_labels, head_starts=BOTH)
    assert len(verdict(figures)) == 3
    metrics: Any = figures.metrics
    metrics["evaluate"]["candidates"]["ulmfit"]["milliseconds_per_document"] = 1.5
    assert verdict(figures)[3] == "What ships takes 1.50 ms a document."
    for stage, seconds in (("pretrain_lm", 60.0), ("finetune_lm", 30.0)):
        metrics[f"{stage}-ulmfit"]["core_seconds"] = seconds
    only = "The head start ulmfit took 1.5 core minutes to train; what ships takes 1.50 ms a document."
    assert verdict(figures)[3] == only
    for stage, seconds in (("pretrain_lm", 12.0), ("finetune_lm", 6.0)):
        metrics[f"{stage}-vectors"]["core_seconds"] = seconds
    assert verdict(figures)[3].startswith(
        "The head start vectors took 0.3 core minutes to train and ulmfit 1.5; what"
    )


def test_a_classifier_that_is_no_better_than_the_largest_class_is_not_to_be_used():
    figures = made(rows(ulmfit=BETTER, tfidf=TFIDF), {"ulmfit": 0.7, "tfidf": 0.72})
    figures["evaluate"]["baselines"]["majority_class"]["above_low"] = -0.01
    first, _, warning, *_ = verdict(figures)
    assert first.endswith("; use none of them yet, not even ulmfit, which ships as the best of them.")
    assert warning == (
        "It is not clearly better than always answering the largest class, which gets 75.0% wrong."
    )


def test_few_documents_are_said_to_tell_nothing():
    figures = made(rows(ulmfit=BETTER, tfidf=TFIDF), {"ulmfit": 0.7, "tfidf": 0.72})
    evaluation: dict[str, Any] = figures["evaluate"]  # type: ignore[assignment]
    evaluation |= {"num_documents": 4, "num_validation_documents": 1440}
    assert "There are but 4 test documents, too few to tell classifiers apart" in verdict(figures)[2]
    evaluation["num_validation_documents"] = 10
    assert "There are but 4 test and 10 validation documents" in verdict(figures)[2]
    evaluation |= {"num_documents": 100, "num_validation_documents": 100}
    assert not any("documents" in sentence for sentence in verdict(figures))


def test_a_table_has_the_best_with_and_without_at_both_ends():
    figures = made(
        rows(ulmfit=BETTER, ulmfit__scratch=SCRATCH, tfidf=TFIDF), {"ulmfit": 0.1, "tfidf": 0.2, "blend": 0.3}
    )
    for stage, seconds in (("pretrain_lm", 60.0), ("finetune_lm", 30.0)):
        figures[f"{stage}-ulmfit"]["core_seconds"] = seconds  # type: ignore[index]
    few, every = at_a_glance(figures)
    assert few == {
        "labels": "100", "with a head start": "ulmfit: 40.0%", "without": "TF-IDF: 50.0%",
        "fewer wrong": "(8.0 to 12.0)", "labels without, for the same": "",
        "core minutes of head starts": "1.5",
    }  # fmt: skip
    assert every == {
        "labels": "all", "with a head start": "ulmfit: 10.0%", "without": "TF-IDF: 20.0%",
        "fewer wrong": "(8.0 to 12.0)", "labels without, for the same": "",
        "core minutes of head starts": "1.5",
    }  # fmt: skip
    assert at_a_glance(made(rows(ulmfit=BETTER), {"ulmfit": 0.1})) == []


def test_points_that_went_wrong_are_named():
    figures = made(rows(ulmfit=BETTER, ulmfit__scratch=SCRATCH, tfidf=TFIDF), {"ulmfit": 0.1, "tfidf": 0.2})
    metrics = {**figures["sample_efficiency"], "worse_than_fewer": {"ulmfit/scratch": {"1600": 400}}}
    figures = dataclasses.replace(figures, metrics={**figures.metrics, "sample_efficiency": metrics})
    assert verdict(figures)[2] == "Trainings of ulmfit (from scratch) went wrong: see the label curve."


@pytest.mark.parametrize("ulmfit", [BETTER, ALIKE, WORSE, (), (0.1,)])
@pytest.mark.parametrize("tfidf", [TFIDF, ()])
def test_it_is_one_sentence_without_figures_and_at_most_three_more(ulmfit, tfidf):
    first, *following = verdict(made(rows(ulmfit=ulmfit, tfidf=tfidf), {"ulmfit": 0.1, "tfidf": 0.2}))
    assert not re.search(r"\d", first)
    assert len(following) <= 3
    for sentence in (first, *following):
        assert re.fullmatch(r"[A-Z].{10,200}\.", sentence)
