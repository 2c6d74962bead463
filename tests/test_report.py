"""The report: true sentences, escaped text, and charts that a real browser draws without a request."""

from __future__ import annotations

import dataclasses
import functools
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from pipeline.evaluation.scaling_law import EXPONENTS
from pipeline.evaluation.settings import Card
from pipeline.figures.classifiers import Baselines, LabelSets, Leakage, Rival, Threshold, Trust
from pipeline.figures.corpora import EncodeFigures, LeakCounts, LeakExample, TextSize, VocabularyFigures
from pipeline.figures.cost import Spent
from pipeline.figures.estimates import Difference, Estimate, Figure, Interval
from pipeline.figures.files import write_figures
from pipeline.figures.label_curve import InContext
from pipeline.figures.predictions import (
    Attention,
    CalibrationBin,
    ExplainedText,
    Mistake,
    Prediction,
    RiskPoint,
    WordWeight,
)
from pipeline.figures.scaling import (
    BestUse,
    Budget,
    Check,
    IsoflopPoint,
    ScalingFigures,
    ScalingRun,
    SizeLoss,
)
from pipeline.figures.studies import Anatomy, Example, LayerAnatomy, LayerProbe, Point
from pipeline.figures.sweeps import Ablation, AblationFigures, BestTrial, NoTrials, SearchFigures, SearchTrial
from pipeline.figures.trainings import Coverage, CurveStep, Measure, Mix
from pipeline.report import figure_files, markdown, opening
from pipeline.report import figures as data
from pipeline.report import page as html_page
from pipeline.report.contents import compose
from pipeline.report.decision import decide
from pipeline.report.figures import Figures, HeadStart, Labelled
from pipeline.report.headline import headline_figures
from pipeline.report.model_card import model_card
from pipeline.report.provenance import Provenance
from pipeline.report.section import Block, Chart, Extra, Heading, Link, Note, Paragraph, Section, Table
from pipeline.report.sections import classifier as classifier_section
from pipeline.report.sections import label_curve as label_curve_section
from pipeline.report.sections import language_models as language_models_section
from pipeline.report.sections import leakage as leakage_section
from pipeline.report.sections import prices as prices_section
from pipeline.report.sections import runs
from pipeline.report.sections import scaling as scaling_section
from pipeline.report.sections import trust as trust_section
from pipeline.report.sections.label_curve import Bands
from pipeline.report.sections.scaling import Floor, Limits
from pipeline.report.sections.studies import alignments, anatomy, doubtful
from pipeline.report.sections.studies.alignments import Alignment, Translation
from pipeline.report.sections.studies.anatomy import AnatomyStudy
from pipeline.report.sections.studies.doubtful import Doubtful, DoubtfulLabel, DoubtfulTrial
from pipeline.report.sections.studies.exported_forms import Form, Int8Forms
from pipeline.report.sections.studies.layers import Layers
from pipeline.report.wording import name_of
from pipeline.settings.arm import TFIDF, Arm
from tests.figures import (
    COST,
    above,
    arm,
    candidate,
    classifier,
    difference,
    estimate,
    evaluated,
    features,
    head_start,
    language_model,
    leaks,
    needed,
    point,
    prepared,
    validation,
    verdict,
    with_candidate,
    with_curve,
    with_evaluate,
    with_training,
)
from tests.figures import label_curve as made_label_curve
from tests.sentences import numbers_in, without_numbers

EVIL = "<script>document.title='owned'</script><img src=x onerror=alert(1)>"
# Text that a review, a label, a path, a commit or a failure may contain.
PAYLOADS = {
    "script": "<script>document.title='owned'</script>",
    "end of the script": "</script><script>document.title='owned'</script>",
    "end of the script, oddly": "</ScRiPt\t\n/x><svg/onload=\"document.title='owned'\">",
    "script within a comment": "<!--<script>document.title='owned'//--></script>",
    "end of a comment": "--><img src=x onerror=\"document.title='owned'\"><!--",
    "image": "<img src=x onerror=\"document.title='owned'\">",
    "attribute": "x\" autofocus onfocus=\"document.title='owned'\" y='",
    "attribute, single": "x' onmouseover='document.title=1' style='position:fixed;inset:0",
    "address": "javascript:document.title='owned'",
    "frame": "<iframe srcdoc=\"<script>parent.document.title='owned'</script>\">",
    "base": "<base href='https://evil.invalid/'><form action='https://evil.invalid'><button>",
    "style": "</style><style>body{display:none}@import 'https://evil.invalid/x'</style>",
    "entity": "&lt;script&gt;document.title='owned'&lt;/script&gt;&#60;img src=x&#62;",
    "title": "</title><title>owned</title></textarea></noscript></template>",
    "json": "\\u003c/script\\u003e\\\"}]};document.title='owned';//\u2028\u2029",
    "expression": "datum['x'] === constructor.constructor('document.title=\"owned\"')()",
    "markdown": "[x](javascript:alert(1)) ![x](https://evil.invalid) <https://evil.invalid> `|` **x** | y",
    "terminal": "\x1b]0;owned\x07\x1b[2J\x9b31m\x00\r\b",
}
SIZES = {"train": TextSize(num_documents=40, num_words=400, num_bytes=2000)}
VOCABULARY = EncodeFigures(
    splits={},
    vocabulary=VocabularyFigures(
        byte_share=0.0, bytes_per_token=4.0, tokens_per_word=1.5, unknown_share=0.0, vocabulary_used=0.9
    ),
)


def page(figures: Figures, provenance: Provenance) -> str:
    return html_page.page(compose(figures, provenance))


def summary(figures: Figures) -> str:
    return markdown.summary(compose(figures, Provenance()))


def section_of(figures: Figures, anchor: str) -> Section | None:
    sections = compose(figures, Provenance()).sections
    return next((each for each in sections if each.anchor == anchor), None)


def blocks_of(figures: Figures, anchor: str) -> tuple[Block, ...]:
    section = section_of(figures, anchor)
    assert section is not None
    return section.blocks


def table_of(figures: Figures, anchor: str, *columns: str) -> Table:
    """The table of a section that begins with these columns."""
    tables = [block for block in blocks_of(figures, anchor) if isinstance(block, Table)]
    (found,) = [each for each in tables if each.columns[: len(columns)] == columns]
    return found


TRUST = Trust(
    certainty=0.95, num_documents=50, area_under_risk_coverage=0.03, least_area_possible=0.004,
    selective=[
        Threshold(most_wrong=0.01, least_confidence=None),
        Threshold(most_wrong=0.05, least_confidence=0.7, validation_coverage=0.8, coverage=0.78,
                  error=estimate(0.04, 0.03)),
    ],
    label_sets=[
        LabelSets(wanted=0.9, least_probability=0.3, coverage=Estimate(value=0.91, low=0.8, high=0.97),
                  mean_size=1.2, share_of_one_label=0.82, by_class={EVIL: 0.85, "b": 0.95}),
    ],
)  # fmt: skip
ULMFIT, SCRATCH, PROBE = map(arm, ("ulmfit", "ulmfit/scratch", "ulmfit/probe"))


@pytest.fixture(autouse=True, scope="module")
def javascript_bundled_once() -> Iterator[None]:
    """Bundling takes seconds."""
    import vl_convert

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vl_convert, "javascript_bundle", functools.cache(vl_convert.javascript_bundle))
        yield


@pytest.fixture
def figures() -> Figures:
    curve = [
        CurveStep(step=0, train_loss=None, validation={"bits_per_byte": 5.0}, rates={}),
        CurveStep(step=20, train_loss=5.0, validation={}, rates={0: 0.01}),
        CurveStep(step=40, train_loss=4.0, validation={"bits_per_byte": 2.0}, rates={0: 0.001}),
    ]
    trained = head_start(
        pretrain_lm=language_model(cost=COST.model_copy(update={"seconds": 120.0})),
        read_features=features(cost=Spent(seconds=6.0, core_seconds=5.0, gpu_seconds=0.0)),
    )
    found_leaks = leaks(
        2, num_exact=1, num_near=1,
        sources={"target train": LeakCounts(num_leaked=2, num_exact=1, num_near=1)},
        examples=[LeakExample(source="target train", containment=1.0, test_text=EVIL, training_text=EVIL)],
    )  # fmt: skip
    candidates = {
        "blend": candidate(0.11, {"ulmfit": 0.5, "ulmfit/probe": 0.3, "tfidf": 0.2}),
        "tfidf": candidate(0.2, {"tfidf": 1.0}, cost=COST),
        "ulmfit": candidate(0.1, {"ulmfit": 1.0}, milliseconds=1.234,
                            tfidf_above=Difference(value=0.1, low=0.02, high=0.18)),
        "ulmfit/probe": candidate(0.15, {"ulmfit/probe": 1.0},
                                  cost=Spent(seconds=3.0, core_seconds=3.0, gpu_seconds=0.0)),
    }  # fmt: skip
    evaluation = evaluated(
        candidates, "ulmfit", num_documents=50, num_validation_documents=40, trust=TRUST,
        leakage=Leakage(num_leaked=2, action="label", error_without=0.12, tfidf_error_without=0.23),
    )  # fmt: skip
    label_curve = made_label_curve(
        {
            "ulmfit": {100: point(0.3), 1000: point(0.1)},
            "ulmfit/scratch": {100: point(0.5), 1000: point(0.3)},
            "tfidf": {},
        },
        [100, 1000],
        labels_needed={
            ULMFIT: {SCRATCH: {
                100: needed("at most 100", "at most 100", "at most 100"), 1000: needed(100, 100, 120)}},
            SCRATCH: {ULMFIT: {
                1000: needed("more than 1000", "more than 1000", "more than 1000"),
                100: needed(1000, 800, "more than 1000")}},
        },
        above={ULMFIT: {SCRATCH: {100: above(-0.02), 1000: above(0.2)}}},
        core_seconds={ULMFIT: {100: 6.0, 1000: 20.0}, TFIDF: {}, SCRATCH: {100: 12.0, 1000: 130.0}},
        failed={EVIL: "out of memory"},
    )  # fmt: skip
    return Figures(
        trained={"ulmfit": trained},
        tokenizers={"ulmfit": "pieces"},
        prepared={
            "general": prepared(splits=SIZES, skipped={"duplicate": 3}),
            "target": prepared(splits=SIZES, num_classes=2),
        },
        encoded={"pieces": dict.fromkeys(data.CORPORA, VOCABULARY)},
        leaks=found_leaks,
        labelled=Labelled(evaluation, label_curve),
        curves={(stage, "ulmfit"): curve for stage in data.TRAININGS},
        confusion=[Prediction(actual=EVIL, predicted=EVIL), Prediction(actual=EVIL, predicted="b"),
                   Prediction(actual="b", predicted="b")],
        calibration=[CalibrationBin(confidence=0.8, accuracy=0.7, num_documents=50)],
        errors=[Mistake(actual=EVIL, predicted="b", confidence=0.9, leaked=False,
                        tokens=[(EVIL, 0.5), (" &", -0.2)])],
        risk=[RiskPoint(classifier=ULMFIT, coverage=0.5, error=0.02),
              RiskPoint(classifier=TFIDF, coverage=1.0, error=0.2)],
    )  # fmt: skip


def about(value: float) -> Estimate:
    return Estimate(value=value, low=0.9 * value, high=1.1 * value)


RUN = ScalingRun(
    size="small", parameters=300_000, tokens=100_000, seed=1, flop=1.8e11, fitted=2.1, bits_per_byte=2.11,
    cost=Spent(seconds=60.0, core_seconds=60.0, gpu_seconds=0.0),
)  # fmt: skip
SCALING = ScalingFigures(
    key="law", headstart="gpt", confidence=0.9, seed=1, corpus_tokens=1_000_000, device="core",
    flop_per_second=3e9,
    runs=[
        RUN,
        RUN.model_copy(update={"size": "large", "parameters": 900_000, "bits_per_byte": 2.0,
                               "tokens": 400_000}),
        RUN.model_copy(update={"size": "broken", "bits_per_byte": None, "fitted": None, "cost": None,
                               "failure": EVIL}),
    ],
    law={"E": about(1.2), "A": about(40.0), "B": about(90.0), "alpha": about(0.3), "beta": about(0.4)},
    size_share=about(0.5),
    check=Check(
        run=RUN.model_copy(update={"bits_per_byte": 1.85, "tokens": 6_000_000}),
        expected=estimate(1.8, 0.1),
        times_the_compute=4.2,
    ),
    fitted=[SizeLoss(tokens=tokens, parameters=size, bits_per_byte=2.0)
            for tokens in (100_000, 400_000) for size in (3e5, 9e5)],
    isoflop=[IsoflopPoint(flop=1e11, parameters=size, bits_per_byte=2.0, best=size == 2e5,
                          best_size=Interval(low=1e4, high=3e5))
             for size in (1e5, 2e5, 4e5)],
    budgets=[
        Budget(hours=10, best=BestUse(
            times_the_compute=30.0, parameters=Estimate(value=2e6, low=1.6e6, high=2.4e6),
            tokens=Estimate(value=9e6, low=7.2e6, high=10.8e6),
            bits_per_byte=Estimate(value=1.7, low=1.36, high=2.04),
        ))
    ],
)  # fmt: skip


def with_search(figures: Figures) -> Figures:
    trials = [
        SearchTrial(trial=k, value=0.1 * k, percent=100.0, state="finished", failure="",
                    settings={"finetune_classifier.optimizer.lr": 0.01 * (k + 1), "config.x": "ab"[k % 2]})
        for k in range(4)
    ]  # fmt: skip
    rows = [
        Ablation(trick="one", measure="bits per byte", paper="60 -> 61", source="somewhere", with_it=1.5,
                 without=1.6, difference=0.1),
        Ablation(trick="two", measure="test error", paper="", source="", with_it=0.2, without=0.3,
                 difference=0.1, interval=Interval(low=0.05, high=0.15)),
        Ablation(trick="three", measure="test error", paper="", source="", failure=EVIL),
    ]  # fmt: skip
    search = SearchFigures(
        key="search", num_trials=4, headstart="ulmfit", stage="finetune_classifier", labels=400,
        measure="validation error", best=BestTrial(trial=0, value=0.0, settings=trials[0].settings),
        states={"finished": 4}, importance={"config.x": 1.0},
        logarithmic=["finetune_classifier.optimizer.lr"], trials=trials,
    )  # fmt: skip
    ablations = AblationFigures(key="ledger", headstart="ulmfit", labels=100, num_seeds=1, rows=rows)
    return dataclasses.replace(figures, search=search, ablations=ablations, scaling=SCALING)


def both_with_figures(figures: Figures) -> Figures:
    """`vectors` as a second head start, whose objective has no bits per byte."""
    cost = Spent(seconds=30.0, core_seconds=25.0, gpu_seconds=0.0)
    lm = language_model(
        before={"loss": 4.5}, after={"loss": 3.25}, cost=cost,
        measures=[Measure(name="loss", title="loss of a pair", digits=3)],
    )  # fmt: skip
    vectors = HeadStart(lm, lm, features(cost=cost), classifier(cost=cost))
    words = VOCABULARY.vocabulary.model_copy(update={"bytes_per_token": 5.0})
    encoded = EncodeFigures(splits={}, vocabulary=words)
    curve = [
        CurveStep(step=0, train_loss=None, validation={"loss": 4.5}, rates={}),
        CurveStep(step=20, train_loss=4.0, validation={"loss": 3.25}, rates={0: 0.01}),
    ]
    candidates = figures.evaluate.candidates | {Arm("vectors"): candidate(0.12, {"vectors": 1.0})}
    return dataclasses.replace(
        with_evaluate(figures, candidates=candidates),
        trained={**figures.trained, "vectors": vectors},
        tokenizers={**figures.tokenizers, "vectors": "words"},
        encoded={**figures.encoded, "words": dict.fromkeys(data.CORPORA, encoded)},
        curves={**figures.curves, **{(stage, "vectors"): curve for stage in data.TRAININGS}},
    )


def test_a_head_start_without_bits_per_byte_is_shown_by_its_own_measure(figures):
    both = both_with_figures(figures)
    charts = language_models_section.curves(both)
    assert list(charts) == ["bits per byte", "loss of a pair"]
    values = [(row.stage, row.text, row.value) for row in charts["loss of a pair"]]
    one = [("validation", 4.5), ("training", 4.0), ("validation", 3.25)]
    assert values == [
        (f"vectors, {stage}", *each) for stage in ("pretrain_lm", "finetune_lm") for each in one
    ]
    assert {row.stage.partition(",")[0] for row in charts["bits per byte"]} == {"ulmfit"}
    text = summary(both)
    assert "| vectors: target text, fine-tuned | 3.250 |\n" in text
    assert "| ulmfit: target text, fine-tuned | 2.000 | 4.600 | 100.0 | 900 |\n" in text
    assert not [line for line in text.splitlines() if "bits per byte" in line and "loss of a pair" in line]
    assert "| words: bytes per token | 5.000 | 5.000 |" in text
    section = language_models_section.section(both)
    captions = [block.caption for block in section.blocks if isinstance(block, Chart)]
    assert [caption.startswith("Loss of a pair") for caption in captions] == [False, True]
    html = page(both, Provenance())
    assert captions[1] in html
    assert 'id="chart-rates-finetune_classifier-vectors"' in html


def layers_study(key: str) -> Layers:
    rows = [
        LayerProbe(name=name, layers=layers, combine="concat", error=error, standard_error=0.01, log_loss=1.0,
                   weights=weights)
        for name, layers, error, weights in (("0", [0], 0.5, None), ("1", [1], 0.25, None),
                                             ("a mean", [0, 1], 0.24, [0.2, 0.8]))
    ]  # fmt: skip
    return Layers(
        headstart="ulmfit", stage="finetune_lm", key=key, num_labels=500, num_judged=2000, rows=rows
    )


def test_layers_are_on_the_page_if_they_are_of_its_models(figures):
    figures = with_training(figures, "finetune_lm", "ulmfit", key="abc")
    shown, stale = (
        page(dataclasses.replace(figures, studies=[layers_study(key)]), Provenance({}, {}, []))
        for key in ("abc", "of an earlier training")
    )
    assert 'id="layers"' in shown
    assert "0.20, 0.80" in shown
    assert "25.0%" in shown
    assert 'id="layers"' not in stale


def anatomy_study(key: str) -> AnatomyStudy:
    layers = [
        LayerAnatomy(
            layer=layer,
            self_similarity=0.9 - 0.2 * layer,
            self_similarity_error=0.01,
            sentence_similarity=0.8,
            sentence_similarity_error=0.01,
            cosine_baseline=0.25,
            explained=0.75,
            explained_error=0.02,
            explained_baseline=0.5,
        )
        for layer in range(2)
    ]
    points = [
        Point(x=0.1, y=0.2, group=group, before="at the <b>", word="bank", after=f" of {group}")
        for group in (0, 0, 1)
    ]
    example = Example(word="bank", layer=1, within=0.75, between=0.25, points=points)
    measured = Anatomy(
        layers=layers, examples=[example], num_words=300, num_sentences=1234, num_documents=2000
    )
    return AnatomyStudy(headstart="ulmfit", stage="finetune_lm", key=key, measured=measured)


def test_exported_forms_are_on_the_page_if_they_are_of_its_models(figures):
    form = Form(name="ONNX, int8", error=0.1, documents_per_second=2_000.0, megabytes=9.0,
                largest_change=0.11, labels_that_differ=0.01)  # fmt: skip
    figures = with_training(figures, "finetune_classifier", "ulmfit", key="abc")
    for key, is_shown in (("abc", True), ("of an earlier one", False)):
        study = Int8Forms(
            headstart="ulmfit", stage="finetune_classifier", key=key, num_judged=2_976, rows=[form]
        )
        shown = dataclasses.replace(figures, studies=[study])
        assert ("ONNX, int8" in page(shown, Provenance())) == is_shown


def test_the_anatomy_of_layers_is_on_the_page_with_its_example(figures):
    figures = with_training(figures, "finetune_lm", "ulmfit", key="abc")
    shown, stale = (
        page(dataclasses.replace(figures, studies=[anatomy_study(key)]), Provenance())
        for key in ("abc", "of an earlier training")
    )
    assert 'id="anatomy"' not in stale
    assert "0.650 ± 0.020" in shown  # a word with itself, above random words
    assert "0.450 ± 0.020" in shown
    assert "0.250 ± 0.040" in shown  # explained
    caption = next(
        block.caption
        for block in anatomy.blocks(anatomy_study("abc"))
        if isinstance(block, Chart) and "“bank”" in block.caption
    )
    assert numbers_in(caption) == ["3", "1", "0.75", "0.25"]
    assert caption in shown
    assert "at the &lt;b&gt;" in shown
    assert "at the <b>" not in shown


def test_documents_that_are_read_in_part_are_said(figures):
    def with_share(share: float) -> Figures:
        return with_training(figures, "finetune_classifier", "ulmfit", cut_share=share)

    assert classifier_section.cut_shares(with_share(0.341)) == {"ulmfit": 0.341}
    assert classifier_section.cut_shares(with_share(0.009)) == {}
    (said,) = classifier_section.cuts(with_share(0.341))
    assert "ulmfit 34%" in said
    assert said in page(with_share(0.341), Provenance())
    assert said in summary(with_share(0.341))
    assert classifier_section.cuts(with_share(0.009)) == []


def test_the_mix_of_layers_that_a_classifier_learned_is_said(figures):
    mix = Mix(weights=[0.25, 0.75], factor=1.5)
    mixed = with_training(figures, "finetune_classifier", "ulmfit", mix=mix)
    (said,) = classifier_section.mixes(mixed)
    assert numbers_in(said) == ["0.25", "0.75", "1.50"]
    assert said in page(mixed, Provenance())
    assert said in summary(mixed)
    assert classifier_section.mixes(figures) == []


def test_the_price_of_a_probe_includes_reading_the_document(figures):
    figures = with_training(figures, "read_features", "ulmfit", milliseconds_per_document=2.0)
    for name, taken in {"ulmfit/probe": 0.25, "blend": 1.5, "tfidf": 0.125}.items():
        figures = with_candidate(figures, name, milliseconds_per_document=taken)
    rows = classifier_section.classifiers(figures)
    said = {row[""]: row["ms a document"] for row in rows}
    assert said["ulmfit (frozen features)"] == "2.25"
    assert said["blend of them"] == "3.50"  # the probe is one of its parts
    assert said["ulmfit (ships)"] == "1.23"
    assert said["TF-IDF + logistic regression"] == "0.12"


def test_a_classifier_that_reads_other_features_costs_what_both_head_starts_do(figures):
    before = classifier_section.classifiers(figures)
    found = with_training(both_with_figures(figures), "finetune_classifier", "ulmfit", beside="vectors")
    minute = Spent(seconds=60.0, core_seconds=60.0, gpu_seconds=0.0)
    for stage in data.FROZEN:
        found = with_training(found, stage, "vectors", cost=minute)
    found = with_training(found, "read_features", "vectors", milliseconds_per_document=2.0)
    found = with_curve(found, beside={ULMFIT: ["vectors"]})
    (was,), (now,) = (
        [row for row in rows if row[""] == "ulmfit (ships)"]
        for rows in (before, classifier_section.classifiers(found))
    )
    assert float(now["ms a document"]) == float(was["ms a document"]) + 2
    assert float(now["core minutes"]) == pytest.approx(float(was["core minutes"]) + 3, abs=0.11)
    prices = [
        {row.labels: row.core_minutes for row in prices_section.prices(each) if row.arm == ULMFIT}
        for each in (figures, found)
    ]
    assert prices[0]
    assert prices[1] == pytest.approx({labels: minutes + 3 for labels, minutes in prices[0].items()})
    (said,) = classifier_section.features_beside(found, ["ulmfit"])
    assert "vectors" in said
    assert said in page(found, Provenance())
    assert said in summary(found)
    card = Card(**dict.fromkeys(Card.model_fields))
    assert said in model_card(found, card, Provenance())
    assert classifier_section.features_beside(figures, ["ulmfit"]) == []


def test_the_model_card_names_the_setting_that_named_what_ships(figures):
    card = Card(**dict.fromkeys(Card.model_fields))
    assert "evaluate.ship" not in model_card(figures, card, Provenance())
    assert "evaluate.ship" in model_card(with_evaluate(figures, forced=True), card, Provenance())


def test_the_coverage_of_imported_vectors_is_said(figures):
    assert opening.coverages(figures) == {}
    coverage = Coverage(share_of_words=0.985, share_of_running_words=0.952, num_words=14_857)
    imported = with_training(figures, "finetune_lm", "ulmfit", coverage=coverage)
    assert opening.coverages(imported) == {"ulmfit": coverage}
    (said,) = set(opening.key_figures(imported)) - set(opening.key_figures(figures))
    assert "ulmfit" in said
    assert numbers_in(said) == ["98.5%", "95.2%"]
    assert said in summary(imported)


def test_the_verdict_opens_the_summary_and_the_page_before_any_figure(figures):
    first, *following = verdict(figures)
    assert not re.search(r"\d", first)
    assert following
    table = opening.opening(figures).at_a_glance
    said = f"# Summary\n\n**{first}**\n\n{' '.join(following)}\n\n{markdown.table(table)}"
    assert table.rows
    assert summary(figures).startswith(said)
    text = re.sub(r"<[^>]*>", "", page(figures, Provenance()).partition("<body>")[2])
    before, found, after = text.partition(first)
    assert found
    assert not re.search(r"\d", before)
    said = f" {following[0]}{' '.join(following[1:])}"
    assert after.startswith(said)
    assert after.removeprefix(said).split()[0].startswith(table.columns[0])


def test_the_key_figures_say_how_good_against_what_and_at_what_cost(figures):
    first, chosen, leaks, last = opening.key_figures(figures)
    assert numbers_in(first) == ["10.0%", "50", "8.0%", "12.0%", "10.0", "2.0", "18.0", "20.0%"]
    points = Estimate(value=10.0, low=2.0, high=18.0)
    assert opening.beside_tfidf(figures) == opening.BesideTfidf(0.2, opening.Lead.OURS, points, is_clear=True)
    assert numbers_in(chosen) == ["11.0%", "40", "3"]
    assert numbers_in(leaks) == ["2", "12.0%", "23.0%"]
    for part in ("ulmfit 4.0", "pretrain_lm 2.0"):
        assert part in last
    assert numbers_in(last) == ["4.0", "4.0", "2.0", "1.0", "1.0", "1.0", "2.5"]


def test_why_it_ships_and_how_sure_that_is(figures):
    assert opening.choice(figures) == opening.Choice(ULMFIT, False, 0.11, True, {})
    close = with_candidate(figures, "ulmfit/probe", validation=validation(0.16, difference(0.05, 0.05)))
    assert opening.choice(close).close == {PROBE: 0.16}
    close = with_candidate(close, "tfidf", validation=validation(0.21, difference(0.04, 0.05)))
    assert opening.choice(close).close == {TFIDF: 0.21, PROBE: 0.16}
    lower = with_candidate(close, "tfidf", validation=validation(0.105, difference(0.04, 0.05)))
    assert not opening.choice(lower).is_lowest
    assert opening.choice(with_evaluate(lower, forced=True)).forced
    said = opening.key_figures(lower)[1]
    for part in ("11.0%", f"{name_of(TFIDF)} (10.5%)", f"{name_of(PROBE)} (16.0%)"):
        assert part in said
    assert without_numbers(said) != without_numbers(opening.key_figures(close)[1])
    assert "evaluate.ship" in opening.key_figures(with_evaluate(lower, forced=True))[1]


def test_a_probe_of_an_ensemble_costs_what_all_its_members_do(figures):
    both = both_with_figures(figures)
    for name, taken in (("ulmfit", 2.0), ("vectors", 0.25)):
        both = with_training(both, "read_features", name, milliseconds_per_document=taken)
    cost = Spent(seconds=60.0, core_seconds=60.0, gpu_seconds=0.0)
    probe = candidate(
        0.1, {"both/probe": 1.0}, milliseconds=0.5, cost=cost, head_starts=["ulmfit", "vectors"]
    )
    both = with_evaluate(both, candidates=both.evaluate.candidates | {arm("both/probe"): probe})
    row = next(row for row in classifier_section.classifiers(both) if row[""] == "both (frozen features)")
    assert row["ms a document"] == "2.75"
    spent = 60 + sum(
        both.trained[name].costs[stage].core_seconds for stage in data.FROZEN for name in both.trained
    )
    assert row["core minutes"] == f"{spent / 60:.1f}"


def test_what_attention_looked_at_is_on_the_page(figures):
    found = Attention(
        num_documents=500,
        words=[WordWeight(word=EVIL, times_even=12.34, count=1_234)],
        texts=[ExplainedText(actual=EVIL, predicted="b", tokens=[("the", 0.1), (EVIL, 0.9)])],
    )
    shown = dataclasses.replace(figures, attention={"ulmfit": found})
    (note,) = [block.text for block in blocks_of(shown, "attention") if isinstance(block, Note)]
    assert numbers_in(str(note)) == ["500"]
    html = page(shown, Provenance())
    assert str(note) in html
    assert "12.3" in html
    assert "1,234" in html
    assert 'title="+0.900"' in html
    assert EVIL not in html
    assert section_of(figures, "attention") is None


def test_translations_and_their_alignment_are_on_the_page(figures):
    pair = Translation(
        source=["", "a ", EVIL, ""], translation=["b ", ""], reference=EVIL,
        weights=[[0.1, 0.2, 0.7, 0.0], [0.0, 0.0, 0.0, 1.0]],
    )  # fmt: skip
    study = Alignment(headstart="ulmfit", stage="pretrain_lm", key="", pairs=[pair])
    html = page(dataclasses.replace(figures, studies=[study]), Provenance())
    assert 'id="alignments"' in html
    assert "“b”" in html
    assert EVIL not in html
    rows = alignments.rows(pair)
    assert len(rows) == 8
    assert rows[2] == {"source": f"2 {EVIL}", "translation": "0 b", "weight": 0.7}


def test_what_a_blend_would_be_without_a_head_start_is_said(figures):
    without = {
        "vectors": Rival(error=0.13, above=difference(0.03, 0.02)),
        "ulmfit": Rival(error=0.099, above=Difference(value=-0.001, low=-0.01, high=0.01)),
    }
    more, fewer = opening.key_figures(with_evaluate(figures, blend_without=without))[2:4]
    assert ("vectors" in more, numbers_in(more)) == (True, ["13.0%", "3.0", "1.0", "5.0"])
    assert ("ulmfit" in fewer, numbers_in(fewer)) == (True, ["9.9%", "0.1", "-1.0", "1.0"])


def test_a_blend_without_a_head_start_is_said_otherwise_if_worse_or_better_clearly_or_not(figures):
    differences = [(0.03, 0.02), (-0.03, 0.02), (0.03, 0.05), (-0.03, 0.05)]
    said = {
        without_numbers(opening.key_figures(with_evaluate(figures, blend_without={"ulmfit": rival}))[2])
        for rival in (Rival(error=0.13, above=difference(*each)) for each in differences)
    }
    assert len(said) == len(differences)


def test_without_labels_the_report_shows_the_language_models(figures):
    trained = {"ulmfit": head_start(read_features=None, finetune_classifier=None)}
    curves = {**figures.curves, ("finetune_classifier", "ulmfit"): []}
    figures = dataclasses.replace(
        figures, labelled=None, trained=trained, curves=curves, confusion=[], errors=[]
    )
    unknown, price = verdict(figures)
    assert not numbers_in(unknown)
    assert ("ulmfit" in price, numbers_in(price)) == (True, ["1.7"])
    assert headline_figures(figures) == {"ulmfit_bits_per_byte": 2.0}
    opened = opening.opening(figures)
    assert (opened.answer, opened.following, opened.at_a_glance.rows) == (unknown, (price,), ())
    html, text = page(figures, Provenance()), summary(figures)
    for said in (html, text):
        assert unknown in said
        assert "bits per byte" in said
    of_labels = {"labels", "price", "result", "trust", "distilled", "errors", "attention"}
    assert not of_labels & {each.anchor for each in compose(figures, Provenance()).sections}
    assert 'id="labels"' not in html


def test_the_model_card_says_what_ships_how_good_it_is_and_what_nobody_stated(figures):
    stated = dict.fromkeys(Card.model_fields) | {"purpose": "sorting *mail*", "licence": "Apache-2.0"}
    card = model_card(figures, Card(**stated), Provenance(facts={"torch": "2.13.0"}))
    assert card.startswith("# Model card: Classifier of texts into 2 classes\n")
    assert "- Meant for: sorting \\*mail\\*\n" in card
    assert "- Licence: Apache-2.0\n" in card
    for unstated in ("- Owner: ", "Licence of the text: "):
        (line,) = [line for line in card.splitlines() if line.startswith(unstated)]
        assert "`card`" in line
    assert f"| {figures.evaluate.scores.error:.1%} |" in card
    assert "| torch | 2.13.0 |" in card
    assert "| b | 1 | 50% |" in card  # the one mistake: half of the documents of its class
    assert not re.search(r"(?<!\\)<script>", card)
    assert "(-0.2)" not in card  # no text of a document, whose words have weights on the page


def test_the_headline_is_a_dozen_figures(figures):
    found = headline_figures(figures)
    assert found == {
        "ships": "ulmfit", "test_error": 0.1, "test_error_low": 0.08, "test_error_high": 0.12,
        "tfidf_error": 0.2, "better_than_tfidf": 0.1,
        "few_labels": 100, "best_with_few_labels": "ulmfit", "error_with_few_labels": 0.3,
        "ulmfit_bits_per_byte": pytest.approx(2.0), "ulmfit_minutes": 4.0,
    }  # fmt: skip


def test_each_class_is_counted_and_one_that_is_never_predicted_is_named(figures):
    """EVIL is answered once of its two, b once of its one; c never."""
    confusion = [*figures.confusion, Prediction(actual="c", predicted="b")]
    figures = dataclasses.replace(figures, confusion=confusion)
    rows = {row["class"]: row for row in classifier_section.classes(figures)}
    assert rows["b"] == {
        "class": "b", "documents": "1", "predicted": "3", "precision": "33.3%", "recall": "100.0%",
        "F1": "0.500",
    }  # fmt: skip
    assert rows["c"]["precision"] == ""
    assert rows["c"]["F1"] == "0.000"
    assert classifier_section.never_predicted(figures) == ["c"]
    (said,) = classifier_section.never_predicted_said(figures)
    assert said.partition(": ")[2] == "c."
    assert said in summary(figures)


def test_points_that_went_wrong_and_numbers_left_out_are_said(figures):
    figures = with_curve(
        figures,
        worse_than_fewer={SCRATCH: {1000: 100}},
        left_out={2: "there are 3 classes", 400: "there are 161", 1600: "there are 161"},
    )
    assert label_curve_section.left_out_by_reason(figures) == {
        "there are 3 classes": [2], "there are 161": [400, 1600],
    }  # fmt: skip
    classes, labels, wrong = label_curve_section.remarks(figures)
    assert ("there are 3 classes" in classes, numbers_in(classes)) == (True, ["2", "3"])
    assert ("there are 161" in labels, numbers_in(labels)) == (True, ["400", "1,600", "161"])
    assert (name_of(SCRATCH) in wrong, numbers_in(wrong)) == (True, ["1,000", "100"])
    said = summary(figures)
    for sentence in (classes, labels, wrong):
        assert sentence in said
    assert "| ulmfit (from scratch) | 50.0% (49.0% to 51.0%) | 30.0% (29.0% to 31.0%), went wrong |" in said
    # It was ahead with 1,000 labels by that point alone.
    assert label_curve_section.standings(figures) == [
        label_curve_section.Standing(ULMFIT, SCRATCH, (), (100,), ())
    ]
    drawn = page(figures, Provenance())
    assert drawn.count('"shape": "cross"') == 1


def test_arms_at_one_number_of_labels_are_drawn_below_one_another(figures):
    curve = {arm: {100: each[100]} for arm, each in figures.curve.curve.items()}
    figures = with_curve(figures, labels=[100], curve=curve)
    chart = label_curve_section.drawn(label_curve_section.point_rows(figures), 0.95).to_dict()
    assert {layer["encoding"]["y"]["field"] for layer in chart["layer"]} == {"arm"}


def test_arms_that_train_nothing_stand_beside_those_that_do(figures):
    asked, name = arm("gpt/in_context"), "gpt (asked, not trained)"
    at_most = needed("at most 100", "at most 100", "at most 100")
    found = InContext(
        curve={asked: {16: point(0.45), 0: point(0.495)}},
        labels_needed={ULMFIT: {asked: {0: at_most}}},
        left_out={asked: {64: "it reads 128 tokens at once"}},
        majority_error=0.5,
    )
    without, figures = figures, with_curve(
        figures, cost=figures.curve.cost | {asked: COST}, in_context=found
    )  # fmt: skip
    rows = [*label_curve_section.point_rows(figures), *label_curve_section.asked_rows(figures)]
    chart = label_curve_section.drawn(rows, 0.95).to_dict()
    scales = {layer["encoding"]["x"]["scale"]["type"] for layer in chart["layer"]}
    assert scales == {"symlog"}  # as a logarithm has no place for 0
    first, left_out = label_curve_section.asked(figures)
    assert numbers_in(first) == ["50.0%"]
    assert name in left_out
    assert left_out.endswith(": it reads 128 tokens at once.")
    assert numbers_in(left_out) == ["64", "128"]
    error, labels = label_curve_section.asked_beside_trained(figures)
    assert error[""] == "error (interval)"
    assert [*error] == [*labels] == ["", f"{name}, 0 examples", f"{name}, 16 examples"]
    assert "ulmfit" in labels[""]
    assert [*labels.values()][1:] == ["at most 100", ""]
    for said in (summary(figures), page(figures, Provenance())):
        assert f"{name}, 16 examples" in said
        assert "45.0% (44.0%" in said
    curve = {asked: {0: point(0.495), 16: point(0.495)}}
    useless = with_curve(figures, in_context=found.model_copy(update={"curve": curve}))
    assert [row.labels for row in label_curve_section.asked_with_success(figures)] == [16]
    assert label_curve_section.asked_with_success(useless) == []
    assert len(label_curve_section.asked(useless)) == len(label_curve_section.asked(figures)) + 1
    assert label_curve_section.asked(without) == label_curve_section.asked_beside_trained(without) == []
    chart = label_curve_section.drawn(label_curve_section.point_rows(without), 0.95).to_dict()
    assert {layer["encoding"]["x"]["scale"]["type"] for layer in chart["layer"]} == {"log"}


def test_what_to_know_of_the_data_stands_below_the_verdict(figures):
    remarks, skipped = ["classes with fewer than 10 documents: 'b' (3)"], {"null_text": 2, "duplicate": 0}
    target = prepared(splits=SIZES, num_classes=2, remarks=remarks, skipped=skipped)
    figures = dataclasses.replace(figures, prepared={**figures.prepared, "target": target})
    (said,) = opening.remarks(figures)
    assert remarks[0] in said
    assert said.endswith("2 (null text).")
    assert numbers_in(said) == ["10", "3", "2"]  # no duplicates
    assert summary(figures).index(said) < summary(figures).index("## How many labels")
    html = page(figures, Provenance())
    assert html.index(said.replace("'", "&#39;")) < html.index("<main>")


def test_the_price_of_an_error_holds_what_an_arm_starts_from_and_marks_the_cheapest(figures):
    """The core minutes: 50 + 50 seconds of two language models, and a training."""
    rows = {
        (row.name, row.labels): (row.core_minutes, row.is_cheapest) for row in prices_section.prices(figures)
    }
    assert rows == {
        ("ulmfit", 100): (pytest.approx(106 / 60), True),
        ("ulmfit", 1000): (pytest.approx(120 / 60), True),
        ("ulmfit (from scratch)", 100): (pytest.approx(12 / 60), True),
        ("ulmfit (from scratch)", 1000): (pytest.approx(130 / 60), False),
    }
    text = summary(figures).partition("## The cheapest ways to lower errors")[2]
    ways = ["| 50.0% | ulmfit (from scratch) | 100 | 0.20 |", "| 30.0% | ulmfit | 100 | 1.77 |",
            "| 10.0% | ulmfit | 1,000 | 2.00 |"]  # fmt: skip
    assert [text.index(way) for way in ways] == sorted(text.index(way) for way in ways)


def test_tf_idf_that_ships_is_compared_with_no_other(figures):
    shipped = with_evaluate(figures, shipped=TFIDF)
    assert opening.beside_tfidf(shipped) is None
    first = opening.key_figures(shipped)[0]
    assert name_of(TFIDF) in first
    assert numbers_in(first) == ["10.0%", "50", "8.0%", "12.0%"]


def with_tfidf(figures: Figures, above: Difference) -> Figures:
    """`above`: the error of TF-IDF minus that of what ships."""
    majority = figures.evaluate.baselines.majority_class
    return with_evaluate(
        figures, baselines=Baselines(majority_class=majority, tfidf=Rival(error=0.2, above=above))
    )


@pytest.mark.parametrize(
    ("above", "lead", "points", "is_clear"),
    [
        (Difference(value=0.1, low=0.02, high=0.18), opening.Lead.OURS, (10.0, 2.0, 18.0), True),
        (Difference(value=0.1, low=-0.02, high=0.18), opening.Lead.OURS, (10.0, -2.0, 18.0), False),
        (Difference(value=-0.01, low=-0.04, high=0.02), opening.Lead.TFIDF, (1.0, -2.0, 4.0), False),
        (Difference(value=-0.03, low=-0.04, high=-0.02), opening.Lead.TFIDF, (3.0, 2.0, 4.0), True),
        (Difference(value=0.0, low=-0.02, high=0.03), opening.Lead.NONE, (0.0, -2.0, 3.0), False),
    ],
)
def test_the_lead_over_tf_idf_is_unclear_if_its_interval_holds_zero(figures, above, lead, points, is_clear):
    beside = opening.beside_tfidf(with_tfidf(figures, above))
    assert beside is not None
    assert (beside.error, beside.lead, beside.is_clear) == (0.2, lead, is_clear)
    assert (beside.points.value, beside.points.low, beside.points.high) == pytest.approx(points)
    said = opening.key_figures(with_tfidf(figures, above))[0]
    shown = [f"{value:.1f}" for value in points[lead is opening.Lead.NONE :]]
    error = [] if lead is opening.Lead.NONE else ["20.0%"]
    assert numbers_in(said)[4:] == [*shown, *error]


def test_each_lead_over_tf_idf_is_said_otherwise(figures):
    differences = [(0.03, 0.02), (-0.03, 0.02), (0.03, 0.05), (-0.03, 0.05), (0.0, 0.05)]
    said = {
        without_numbers(opening.key_figures(with_tfidf(figures, difference(*each)))[0])
        for each in differences
    }
    assert len(said) == len(differences)


def test_arms_that_are_behind_everywhere_share_a_sentence(figures):
    ahead = {100: above(0.1), 1000: above(0.2)}
    figures = with_curve(figures, above={ULMFIT: {SCRATCH: ahead, TFIDF: ahead}})
    first, second = label_curve_section.standings(figures)
    assert first == label_curve_section.Standing(ULMFIT, SCRATCH, (100, 1000), (), ())
    assert second == label_curve_section.Standing(ULMFIT, TFIDF, (100, 1000), (), ())
    assert first.is_behind_everywhere
    assert first.crossing is None
    (said,) = label_curve_section.comparisons(figures)
    assert all(name_of(each) in said for each in (ULMFIT, SCRATCH, TFIDF))
    assert numbers_in(said) == ["100", "1,000"]


def test_the_arms_are_compared_in_pairs_and_their_crossing_is_found(figures):
    (found,) = label_curve_section.standings(figures)
    assert found == label_curve_section.Standing(ULMFIT, SCRATCH, behind=(1000,), ahead=(100,), unclear=())
    assert found.crossing == (100, 1000)
    (said,) = label_curve_section.comparisons(figures)
    assert numbers_in(said) == ["1,000", "100", "100", "1,000"]  # behind, ahead, where they cross
    both = {100: above(-0.02), 300: above(0.005), 1000: above(0.2)}
    crossing = with_curve(figures, above={ULMFIT: {SCRATCH: both}})
    (between,) = label_curve_section.standings(crossing)
    assert between.unclear == (300,)
    assert between.crossing == (100, 1000)
    (said,) = label_curve_section.comparisons(crossing)
    assert numbers_in(said) == ["1,000", "100", "300", "100", "1,000"]
    text = summary(figures)
    assert "| ulmfit (from scratch) | -2.0% (-3.0% to -1.0%) | +20.0% (+19.0% to +21.0%) |" in text


@pytest.mark.parametrize(
    ("num_seeds", "bands"),
    [(1, Bands.NO_SEEDS), (2, Bands.FEW_SEEDS), (4, Bands.FEW_SEEDS), (5, Bands.SEEDS)],
)
def test_the_bands_of_the_label_curve_say_how_many_seeds_they_cover(figures, num_seeds, bands):
    figures = with_curve(figures, num_seeds=num_seeds)
    assert label_curve_section.bands(figures) is bands
    chart = label_curve_section.section(figures).blocks[0]
    assert isinstance(chart, Chart)
    (note,) = [block.text for block in chart.instead if isinstance(block, Paragraph)]
    covered = ["95%"] + [str(num_seeds)] * (num_seeds > 1)
    assert numbers_in(str(note)) == covered
    assert numbers_in(chart.caption) == ["50", *covered]
    assert str(note) in summary(figures)


def test_bands_that_cover_seeds_otherwise_are_said_otherwise(figures):
    captions = (
        label_curve_section.section(with_curve(figures, num_seeds=num_seeds)).blocks[0]
        for num_seeds in (1, 2, 5)
    )
    said = {without_numbers(chart.caption) for chart in captions if isinstance(chart, Chart)}
    assert len(said) == len(Bands)


def test_a_law_is_told_with_what_it_predicted_and_where_it_ends(figures):
    told = with_search(figures)
    text = " ".join(summary(told).split())
    law, failed, check = scaling_sentences(told)
    for part in ("gpt", "300 thousand to 900 thousand", "C^0.50 (0.45 to 0.55)"):
        assert part in law
    assert failed.endswith(EVIL)
    assert numbers_in(check)[-5:] == ["1.800", "1.700", "1.900", "1.850", "90%"]
    for sentence in (law, failed, check):
        assert markdown.plain(sentence) in text
    assert "| 10 | 2 million | 1.6 million to 2.4 million | 9 million |" in text
    assert scaling_section.limits(SCALING) == Limits(Floor.KNOWN, passes=0.4, at_limit=())
    assert not scaling_section.limits(SCALING).is_text_repeated  # no run read it four times
    assert SCALING.check is not None
    assert SCALING.check.holds
    wrong = SCALING.check.model_copy(
        update={"run": SCALING.check.run.model_copy(update={"bits_per_byte": 1.95})}
    )
    assert not wrong.holds
    runs = [RUN.model_copy(update={"tokens": 5_000_000}), *SCALING.runs[1:]]
    other = SCALING.model_copy(update={"check": wrong, "runs": runs})
    assert scaling_section.limits(other) == Limits(Floor.KNOWN, passes=5.0, at_limit=())
    assert scaling_section.limits(other).is_text_repeated
    _, repeated, _, missed = scaling_sentences(dataclasses.replace(told, scaling=other))
    assert numbers_in(repeated)[:2] == ["5.0", "4"]
    assert numbers_in(missed)[-2:] == ["1.950", "90%"]
    assert without_numbers(missed) != without_numbers(check)
    drawn = page(told, Provenance())
    assert 'id="chart-scaling-runs"' in drawn
    assert 'id="chart-scaling-isoflop"' in drawn


def scaling_sentences(figures: Figures) -> list[str]:
    return [str(block.text) for block in blocks_of(figures, "scaling") if isinstance(block, Paragraph)]


def with_law(figures: Figures, **constants: Estimate) -> Figures:
    law = SCALING.law | constants
    return dataclasses.replace(figures, scaling=SCALING.model_copy(update={"law": law}))


@pytest.mark.parametrize(
    ("constants", "limits"),
    [
        ({"E": Estimate(value=1.2, low=1.0, high=1.5)}, Limits(Floor.KNOWN, 0.4, ())),
        ({"E": Estimate(value=1.2, low=0.8, high=1.5)}, Limits(Floor.VAGUE, 0.4, ())),
        ({"E": Estimate(value=1e-6, low=0.0, high=1.3)}, Limits(Floor.NONE, 0.4, ())),
        ({"beta": estimate(EXPONENTS[1])}, Limits(Floor.KNOWN, 0.4, ("beta",))),
        ({"alpha": estimate(EXPONENTS[0]), "beta": estimate(EXPONENTS[1])},
         Limits(Floor.KNOWN, 0.4, ("alpha", "beta"))),
    ],
)  # fmt: skip
def test_where_a_law_ends_is_said_in_a_sentence_of_its_own(figures, constants, limits):
    found = with_law(figures, **constants)
    assert found.scaling is not None
    assert scaling_section.limits(found.scaling) == limits
    said = scaling_sentences(found)[1:-2]
    assert len(said) == (limits.floor is not Floor.KNOWN) + bool(limits.at_limit)
    if limits.at_limit:
        assert said[-1].startswith(" and ".join(limits.at_limit))
    law = {row[0]: row[1:] for row in table_of(found, "scaling", "constant").rows}
    value, interval = map(numbers_in, map(str, law["E"]))
    assert (len(value), len(interval)) == ((0, 1) if limits.floor is Floor.NONE else (1, 2))


def test_a_law_without_a_floor_is_said_otherwise_than_one_whose_floor_is_vague(figures):
    floors = Estimate(value=1e-6, low=0.0, high=1.3), Estimate(value=1.2, low=0.8, high=1.5)
    none, vague = (scaling_sentences(with_law(figures, E=floor))[1] for floor in floors)
    assert none != vague


def written(figures: Figures, folder: Path) -> tuple[Path, Path, Path]:
    """Write figures as the stages do; return the folders of metrics, curves and tables."""
    metrics, curves, evaluation = (folder / name for name in ("metrics", "curves", "evaluation"))
    for each in (metrics, curves, evaluation):
        each.mkdir()
    stages: dict[str, Figure] = {
        **{name: NoTrials(key="") for name in ("tune", "ablate", "scaling", "distil_classifier")},
        "evaluate": figures.evaluate, "sample_efficiency": figures.curve, "find_leaks": figures.leaks,
        **{f"prepare-{corpus}": each for corpus, each in figures.prepared.items()},
        **{f"encode-{corpus}-pieces": each for corpus, each in figures.encoded["pieces"].items()},
        **{f"{stage}-ulmfit": getattr(figures.trained["ulmfit"], stage)
           for stage in (*data.TRAININGS, "read_features")},
    }  # fmt: skip
    for name, found in stages.items():
        write_figures(metrics / f"{name}.json", found)
    for stage, name in figures.curves:
        (curves / f"{stage}-{name}.csv").write_text("step\n1\n", encoding="utf-8")
    for name, text in (
        ("confusion.csv", "actual,predicted\n"), ("calibration.csv", "confidence\n"),
        ("risk_coverage.csv", "coverage\n"), ("errors.json", "[]"), ("attention.json", "{}"),
    ):  # fmt: skip
        (evaluation / name).write_text(text, encoding="utf-8")
    return metrics, curves, evaluation


def test_figures_are_read_as_they_were_written(figures, tmp_path):
    folders = written(figures, tmp_path)
    found = figure_files.read_all(*folders, {"ulmfit": "pieces"})
    for name in ("labelled", "trained", "prepared", "encoded", "leaks"):
        assert getattr(found, name) == getattr(figures, name)


def test_a_search_or_an_ablation_without_trials_counts_as_absent(figures, tmp_path):
    folders = written(figures, tmp_path)
    found = figure_files.read_all(*folders, {"ulmfit": "pieces"})
    assert found.search is found.ablations is found.distilled is found.scaling is None
    searched = with_search(figures).search
    assert searched is not None
    write_figures(folders[0] / "tune.json", searched)
    assert figure_files.read_all(*folders, {"ulmfit": "pieces"}).search == searched


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda found: found.pop("version"), "evaluate.json has no version, and this headstart reads"),
        (lambda found: found.update(version=99), "evaluate.json has version 99, and this headstart reads"),
        (lambda found: found.pop("shipped"), "evaluate.json is damaged: shipped: Field required"),
        (lambda found: found.update(shipped="vectors"), "vectors ships and is not among the candidates"),
        (lambda found: found["scores"]["error"].update(low="x"), r"damaged: scores\.error\.low: "),
        (lambda found: found.update(more=1), "damaged: more: Extra inputs"),
    ],
)
def test_figures_of_another_format_are_refused_with_what_to_do(figures, tmp_path, change, said):
    folders = written(figures, tmp_path)
    file = folders[0] / "evaluate.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    change(content)
    file.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(ValueError, match=rf"{said}.*run `dvc repro`"):
        figure_files.read_all(*folders, {"ulmfit": "pieces"})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((412.3, 412.3, 412.3), "412"),
        ((412.3, 300.0, 500.0), "412 (300 to 500)"),
        ((412.3, 300.0, "more than 1000"), "412 (300 to more than 1,000)"),
        (("more than 1000", 900.0, "more than 1000"), "more than 1,000 (900 to more than 1,000)"),
        (("more than 1000", "more than 1000", "more than 1000"), "more than 1,000"),
        (("more than 120", "at most 20", "more than 120"), "more than 120"),
        ((412.3, "at most 100", 500.0), "412 (up to 500)"),
        (("at most 100", "at most 100", "at most 100"), "at most 100"),
        (("at most 100", "at most 100", 140.0), "at most 100 (up to 140)"),
    ],
)
def test_a_number_of_labels_is_said_with_its_interval_or_bound(given, said):
    assert str(needed(*given)) == said


def test_the_labels_of_every_arm_for_the_error_of_every_other_one_are_one_table(figures):
    needed = table_of(figures, "labels", "", "ulmfit: 10.0%")
    table = markdown.table(needed)
    assert table in summary(figures)
    assert table.splitlines() == [
        "|  | ulmfit: 10.0% | ulmfit (from scratch): 30.0% |",  # tfidf has failed
        "| --- | ---: | ---: |",
        "| ulmfit | - | 100 (100 to 120) |",
        "| ulmfit (from scratch) | more than 1,000 | - |",
    ]
    html = page(figures, Provenance())
    section = label_curve_section.section(figures)
    (extra,) = [block for block in section.blocks if isinstance(block, Extra) and block.folded]
    assert numbers_in(extra.title) == ["100"]
    most, _, fewer = html.partition("<h3>Labels saved</h3>")[2].partition(extra.title)
    assert re.search(r"data-column=\"ulmfit \(from scratch\): 30.0%\"><span>100 \(100.to.120\)</span>", most)
    assert re.search(r"data-column=\"ulmfit: 30.0%\"><span>1,000 \(800.to.more than 1,000\)</span>", fewer)
    assert "<span>at most 100</span>" in fewer


def test_without_labels_needed_there_is_no_such_table(figures):
    """One number of labels makes no curve."""
    figures = with_curve(figures, labels_needed={})
    headings = [block.text for block in blocks_of(figures, "labels") if isinstance(block, Heading)]
    assert headings == ["Error compared with ulmfit", "Points that failed"]
    assert "Labels saved" not in page(figures, Provenance())


def test_trainings_that_began_anew_or_never_took_off_are_counted_below_the_label_curve(figures):
    assert label_curve_section.restarts(figures) == []
    curve = figures.curve.curve
    three = curve[ULMFIT] | {100: point(0.3, num_seeds=3)}
    figures = with_curve(
        figures,
        curve=curve | {ULMFIT: three},
        began_anew={ULMFIT: {100: 2, 1000: 1}, SCRATCH: {1000: 1}},
        never_took_off={SCRATCH: {1000: 1}},
    )
    began, never = label_curve_section.restarts(figures)
    ours, _, scratch = began.partition("; ")
    assert "ulmfit" in ours
    assert numbers_in(ours) == ["100", "2", "3", "1,000", "1", "1"]
    assert name_of(SCRATCH) in scratch
    assert numbers_in(scratch) == ["1,000", "1", "1"]
    assert name_of(SCRATCH) in never
    assert numbers_in(never) == ["1,000", "1", "1"]
    for text in (summary(figures), page(figures, Provenance())):
        assert began in text
        assert never in text
    two = with_curve(figures, head_starts=figures.curve.head_starts | {ULMFIT: ["one", "two"]})
    assert label_curve_section.num_trainings(two, ULMFIT, 100) == 6  # an ensemble trains each of its members
    assert numbers_in(label_curve_section.restarts(two)[0])[:3] == ["100", "2", "6"]


def test_classifiers_that_began_anew_or_never_took_off_are_named_below_their_table(figures):
    both = both_with_figures(figures)
    assert classifier_section.classifier_restarts(both) == []
    both = with_training(both, "finetune_classifier", "ulmfit", restarts=2, took_off=False)
    both = with_training(both, "finetune_classifier", "vectors", restarts=1)
    assert classifier_section.began_anew(both) == {"ulmfit": 2, "vectors": 1}
    assert classifier_section.never_took_off(both) == ["ulmfit"]
    said = began, never = classifier_section.classifier_restarts(both)
    assert ("ulmfit (2 " in began, "vectors (" in began, numbers_in(began)) == (True, True, ["2"])
    assert never.endswith(": ulmfit.")
    for text in (summary(both), page(both, Provenance())):
        assert all(sentence in text for sentence in said)


def test_training_loss_is_drawn_in_the_unit_of_the_evaluations(figures):
    (charts,) = language_models_section.curves(figures).items()
    assert charts[0] == "bits per byte"
    rows = [row for row in charts[1] if row.text == "training"]
    assert rows[0].value == pytest.approx(5 / 0.693147 / 4, rel=1e-5)


def test_markdown_holds_the_figures_and_the_holes(figures):
    text = summary(figures)
    assert "| ulmfit | 30.0% (29.0% to 31.0%) | 10.0% (9.0% to 11.0%) |" in text
    assert "12.0%" in leakage_section.said(figures)
    assert leakage_section.said(figures) in text
    assert "out of memory" in text
    assert "| TF-IDF + logistic regression | failed | failed |" in text
    assert "general: 3 (duplicate)" in text


def test_markdown_holds_the_search_the_ledger_and_what_each_classifier_took(figures):
    assert "## Search" not in summary(figures)
    searched = with_search(figures)
    text = summary(searched)
    told = next(str(block.text) for block in blocks_of(searched, "search") if isinstance(block, Paragraph))
    assert ("finetune_classifier" in told, "4 finished" in told) == (True, True)
    assert numbers_in(told) == ["4", "400", "4", "0", "0.0000"]
    assert told in text
    assert text.index("| config.x | a | 100% |") < text.index(
        "| finetune_classifier.optimizer.lr | 0.01 |  |"
    )
    assert "| one | bits per byte | 1.500 | 1.600 | +0.100 |  | 60 -> 61 |" in text
    assert "| two | test error | 20.0% | 30.0% | +10.0% | +5.0% to +15.0% |  |" in text
    assert re.search(r"(?m)^- three, .*test error: \\<script>", text)
    took = {  # the whole of what each needed: a probe no classifier, a blend each of its parts' once
        r"ulmfit \(ships\)": "| 1.23 | 4.0 | 2.5 | 0.0 |",
        r"ulmfit \(frozen features\)": "| 1.00 | 3.1 | 1.8 | 0.0 |",
        r"TF-IDF \+ logistic regression": "| 1.00 | 1.0 | 0.8 | 0.0 |",
        "blend of them": "| 1.00 | 5.2 | 3.5 | 0.0 |",
    }
    table = text.partition("## The classifier")[2].partition("### By class")[0]
    for name, cost in took.items():
        (row,) = re.findall(rf"(?m)^\| {name} \| \d+\.\d% \(.*\|$", table)
        assert row.endswith(cost), name


def planted(value: Any, text: str) -> Any:
    """A copy with `text` in the place of EVIL."""
    if isinstance(value, BaseModel):
        return value.model_copy(update={name: planted(each, text) for name, each in value})
    if isinstance(value, Figures | Labelled):
        fields = {each.name: planted(getattr(value, each.name), text) for each in dataclasses.fields(value)}
        return type(value)(**fields)
    if isinstance(value, dict):
        return {planted(key, text): planted(each, text) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(planted(each, text) for each in value)
    return text if value == EVIL else value


def hostile(figures: Figures) -> Figures:
    """Figures with EVIL wherever text of a person may be."""
    search, ablations = figures.search, figures.ablations
    assert search is not None
    assert ablations is not None
    trials = [
        each.model_copy(update={"failure": EVIL, "settings": each.settings | {"config.x": EVIL}})
        if each.trial == 1
        else each
        for each in search.trials
    ]
    best = search.best.model_copy(update={"settings": search.best.settings | {"config.x": EVIL}})
    first, *others = ablations.rows
    first = first.model_copy(update={"trick": EVIL, "paper": EVIL, "source": EVIL})
    assert figures.scaling is not None
    smallest, *larger = figures.scaling.runs
    runs = [smallest.model_copy(update={"size": EVIL}), *larger]
    return dataclasses.replace(
        with_curve(figures, failed=figures.curve.failed | {EVIL: EVIL}),
        scaling=figures.scaling.model_copy(update={"runs": runs}),
        search=search.model_copy(update={"trials": trials, "best": best}),
        ablations=ablations.model_copy(update={"rows": [first, *others]}),
    )


def hostile_page(figures: Figures, text: str) -> str:
    run = {"stage": text, "run_id": text, "url": text, "cached": text}
    return page(planted(hostile(figures), text), Provenance({text: text}, {text: text}, [run]))


class Elements(HTMLParser):
    """A page as a browser reads it: elements with their attributes, script blocks, and the other text."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, list[tuple[str, str | None]]]] = []
        self.blocks: list[str] = []
        self.text = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, attributes))
        if tag == "script":
            self.blocks.append("")

    def handle_data(self, text: str) -> None:
        if self.elements and self.elements[-1][0] == "script" and self.cdata_elem == "script":
            self.blocks[-1] += text
        else:
            self.text += text

    def handle_comment(self, text: str) -> None:
        raise AssertionError(f"a comment: {text[:80]}")


@pytest.mark.parametrize("name", PAYLOADS)
def test_no_text_of_a_document_becomes_markup(figures, name):
    """The elements and attributes are those of a page with a plain word; the payload is text, or data."""
    text, word = PAYLOADS[name], "unmistakable"
    plain = Elements(hostile_page(with_search(figures), word))
    hostile = Elements(hostile_page(with_search(figures), text))
    assert hostile.elements == plain.elements
    assert hostile.text.count(text) == plain.text.count(word) > 10
    *plain_data, plain_script = plain.blocks
    *data, script = hostile.blocks
    assert script == plain_script
    charts = json.dumps([json.loads(block) for block in data])
    assert charts.count(json.dumps(text)) == "".join(plain_data).count(f'"{word}"') > 3


@pytest.mark.parametrize(
    ("url", "is_link"),
    [("javascript:alert(1)", False), ("data:text/html,x", False), ("", False), ("http://h/#/x", True)],
)
def test_the_address_of_a_run_is_a_link_only_if_it_is_http(url, is_link):
    cell = runs.run_cell({"run_id": "1", "url": url})
    assert cell == (Link("1", url) if is_link else "1")


@pytest.mark.parametrize("name", PAYLOADS)
def test_no_text_becomes_markup_of_markdown_or_moves_a_cursor(figures, name):
    from markdown_it import MarkdownIt

    text = PAYLOADS[name]
    everywhere = hostile(with_search(figures))

    def kinds(text: str) -> list[str]:
        tokens = MarkdownIt("commonmark").enable("table").parse(summary(planted(everywhere, text)))
        return [each.type for token in tokens for each in (token, *(token.children or []))
                if each.type not in ("text", "text_special")]  # fmt: skip

    assert kinds(text) == kinds("word")
    assert not {"html_inline", "html_block", "link_open", "image"} & set(kinds(text))
    assert all(letter.isprintable() or letter == "\n" for letter in summary(planted(everywhere, text)))


def test_the_page_fetches_nothing(figures):
    html = page(with_search(figures), Provenance())
    outside = re.sub(r"<script type=\"module\">.*?</script>", "", html, flags=re.S)
    assert not re.search(r"""(?:src|href)=["'](?!#)""", outside)
    assert "default-src 'none'" in outside


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs Chromium")
@pytest.mark.parametrize("width", [380, 1200])
def test_a_browser_draws_every_chart_without_a_complaint(figures, tmp_path, width):
    file = tmp_path / "index.html"
    file.write_text(page(with_search(figures), Provenance({"commit": "abc"})), encoding="utf-8")
    done = in_chromium(file, width, tmp_path)
    charts = file.read_text(encoding="utf-8").count("data-chart=")
    assert charts == 9 + 3 + 2 + 2
    assert len(re.findall(r"""<div class="chart[^>]*>(?:<[^>]*>)*?<svg""", done.stdout)) == charts
    assert "not drawn" not in re.sub(r"<script.*?</script>", "", done.stdout, flags=re.S)
    assert "<title>headstart: report</title>" in done.stdout
    assert "CONSOLE" not in done.stderr


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs Chromium")
def test_in_a_browser_no_planted_script_runs_nor_would_one_that_got_through(figures, tmp_path):
    file = tmp_path / "index.html"
    html = hostile_page(with_search(figures), " ".join(PAYLOADS.values()))
    file.write_text(html, encoding="utf-8")
    done = in_chromium(file, 1200, tmp_path)
    assert "<title>headstart: report</title>" in done.stdout
    assert "CONSOLE" not in done.stderr  # the policy had nothing to stop

    file.write_text(html.replace("<main>", f"<main>{''.join(PAYLOADS.values())}"), encoding="utf-8")
    done = in_chromium(file, 1200, tmp_path)
    assert "<title>headstart: report</title>" in done.stdout
    assert "violates the following Content Security Policy directive" in done.stderr


def in_chromium(file: Path, width: int, scratch: Path) -> subprocess.CompletedProcess[str]:
    """stdout holds the page's elements after its scripts ran, stderr the console, among other things."""
    command = [
        "chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={scratch}/profile",
        "--host-resolver-rules=MAP * ~NOTFOUND", f"--window-size={width},900",
        "--virtual-time-budget=10000", "--enable-logging=stderr", "--dump-dom", file.as_uri(),
    ]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)


def test_the_page_says_when_to_trust_what_ships(figures):
    html = page(figures, Provenance())
    (wanted, unknown, *rest), _ = table_of(figures, "trust", "wrong, at most").rows
    assert (wanted, numbers_in(str(unknown)), rest) == ("1.0%", [], ["", ""])
    assert f"<td>1.0%</td><td>{unknown}</td><td></td><td></td>" in html
    assert "<td>5.0%</td><td>0.700</td><td>78%</td><td>4.0% (1.0% to 7.0%)</td>" in html
    assert "<td>91.0% (80.0% to 97.0%)</td><td>1.20</td><td>82%</td>" in html
    thresholds, temperature = trust_section.said(figures)
    assert numbers_in(thresholds) == ["40", "95%", "50"]
    assert numbers_in(temperature) == ["0.80", "0.400", "0.450"]
    assert thresholds in html
    assert temperature in html


def test_a_threshold_that_does_not_hold_on_test_documents_is_told(figures):
    assert trust_section.failed_thresholds(figures) == []
    unknown, threshold = TRUST.selective
    failing = threshold.model_copy(update={"error": estimate(0.09, 0.03)})
    changed = TRUST.model_copy(update={"selective": [unknown, failing]})
    found = with_evaluate(figures, temperature=1.0, trust=changed)
    assert trust_section.failed_thresholds(found) == [0.05]
    _, temperature, failed = trust_section.said(found)
    assert numbers_in(temperature) == []  # there is none
    assert numbers_in(failed) == ["5.0%", "9.0%"]
    assert failed in page(found, Provenance())


def with_chosen_labels(figures: Figures, saved: float) -> Figures:
    """An arm that chooses its labels beside one that draws them, which has so much more error at 1,000."""
    curve, drawn, chosen = figures.curve, PROBE, arm("ulmfit/probe_chosen")
    points = {
        drawn: {100: point(0.5), 1000: point(0.4 + saved)},
        chosen: {100: point(0.5), 1000: point(0.4)},
    }
    worth = needed("more than 1000", 900, "more than 1000")
    return with_curve(
        figures,
        arms=[*curve.arms, drawn, chosen],
        head_starts=curve.head_starts | {drawn: ["ulmfit"], chosen: ["ulmfit"]},
        curve=curve.curve | points,
        cost=curve.cost | {drawn: COST, chosen: COST},
        core_seconds=curve.core_seconds | {each: {100: 1.0, 1000: 2.0} for each in points},
        above=curve.above | {chosen: {drawn: {100: above(0.0), 1000: above(saved)}}},
        labels_needed=curve.labels_needed | {drawn: {chosen: {1000: worth}}},
    )


def test_what_choosing_labels_saves_is_told_and_so_if_it_saves_nothing(figures):
    assert label_curve_section.chosen_labels(figures) == []
    saving, nothing = with_chosen_labels(figures, 0.05), with_chosen_labels(figures, 0.005)
    worth = {1000: needed("more than 1000", 900, "more than 1000")}
    assert label_curve_section.chosen_labels(saving) == [
        label_curve_section.ChosenLabels(PROBE, (1000,), worth)
    ]
    (said,) = label_curve_section.chosen(saving)
    assert str(worth[1000]) in said
    assert numbers_in(said) == ["1,000", "1,000", "1,000", "900", "1,000"]
    assert label_curve_section.chosen_labels(nothing) == [label_curve_section.ChosenLabels(PROBE, (), {})]
    (said,) = label_curve_section.chosen(nothing)
    assert numbers_in(said) == []
    html = page(nothing, Provenance())
    assert "ulmfit (frozen features, labels chosen)" in html
    assert said in html


def test_an_arm_that_chooses_its_labels_is_no_use_of_a_head_start(figures):
    best = with_chosen_labels(figures, 0.05)
    chosen = {arm("ulmfit/probe_chosen"): {100: point(0.001), 1000: point(0.001)}}
    found = decide(with_curve(best, curve=best.curve.curve | chosen)).fewest
    assert found is not None
    assert found.ours.arm == ULMFIT


def test_labels_that_look_wrong_are_listed_with_their_texts(figures):
    label = DoubtfulLabel(given=EVIL, likely="b", margin=-0.9, text=EVIL)
    study = Doubtful(headstart="ulmfit", stage="finetune_lm", key="", num_judged=1000, num_doubted=30,
                     labels=[label])  # fmt: skip
    trial = DoubtfulTrial(headstart="ulmfit", stage="finetune_lm", key="", num_judged=1000, num_doubted=60,
                          flipped=0.05, precision=0.6, recall=0.7)  # fmt: skip
    html = page(dataclasses.replace(figures, studies=[study, trial]), Provenance())
    alone, tried = (str(doubtful.in_short(study, trials).text) for trials in ([], [trial]))
    assert numbers_in(alone) == ["30", "1,000"]
    assert numbers_in(tried) == ["30", "1,000", "5%", "60", "60%", "70%"]
    assert tried in html
    assert EVIL not in html
