"""What `predict` says beside a label: whether it is sure, and which labels it may be."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from pipeline.__main__ import main
from pipeline.artifacts.shipped import read_judged, ship
from pipeline.evaluation.blend import Share
from pipeline.evaluation.trust import Judged, label_sets, least_confidence, least_probability
from pipeline.inference.bulk import label_files, label_to_lines
from pipeline.inference.bulk_input import Request
from pipeline.inference.predict import Predictor
from pipeline.inference.predicted_lines import predict_lines
from pipeline.inference.thresholds import CERTAINTY, Guarantees
from pipeline.training.temperature import tempered
from tests.test_predict import copied, export

# Of labels whose confidence is at least 0.655 one in 200 is wrong, of the others each second one.
_CONFIDENCE = np.linspace(0.5, 1, 1000)
_EVERY = np.where(_CONFIDENCE >= 0.655, 200, 2)
JUDGED = Judged(_CONFIDENCE, np.arange(1000) % _EVERY != 0, np.linspace(0.3, 1, 1000))
TEXTS = ["a b c", "", "  ", "abc " * 60, "t a", "e f g h", "j", "k l m n", "o p q", "r s"]
TEMPERATURE = 40.0  # of a network with random weights, which is far too sure
GUARANTEES = Guarantees(most_wrong=0.05, coverage=0.9)


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    source = export(tmp_path_factory.mktemp("model") / "ulmfit")
    folder = source.parent / "shipped"
    ship(folder, "ulmfit", {"ulmfit": Share(1.0)}, {"ulmfit": copied(source)}, TEMPERATURE, JUDGED)
    return folder


@pytest.fixture(scope="module")
def predictor(model) -> Predictor:
    return Predictor.load(model, precision="fp32")


def wanted(predictor: Predictor) -> list[tuple[bool | None, list[str] | None]]:
    """`sure` and `labels` of the texts, from the thresholds themselves."""
    probs = predictor.probabilities([text or " " for text in TEXTS])
    least = least_confidence(JUDGED, 0.05, CERTAINTY)
    assert least is not None
    assert 0.6 < least < 0.65
    sets = label_sets(probs, least_probability(JUDGED.at_label_N, 0.9))
    names = np.array(predictor.label_names)
    return [
        (bool(row.max() >= least), [*names[np.argsort(-row)][inside[np.argsort(-row)]]])
        if text.strip() else (None, None)
        for text, row, inside in zip(TEXTS, probs, sets, strict=True)
    ]  # fmt: skip


def test_the_temperature_is_that_of_the_mean_of_the_parts(model, predictor):
    plain = Predictor.load(model / "ulmfit", precision="fp32").probabilities(TEXTS)
    assert predictor.probabilities(TEXTS) == pytest.approx(tempered(plain, TEMPERATURE))
    assert predictor.probabilities(TEXTS).max() < plain.max(1).min()


def test_how_validation_documents_were_judged_is_read_as_it_was_written(model):
    found = read_judged(model)
    assert found is not None
    for name in ("confidence_N", "right_N", "at_label_N"):
        np.testing.assert_array_equal(getattr(found, name), getattr(JUDGED, name))


def test_lines_say_what_is_sure_and_what_it_may_be(model, predictor):
    lines = [json.loads(line) for line in predict_lines(TEXTS, None, [model], "fp32", guarantees=GUARANTEES)]
    assert [(line["sure"], line["labels"]) for line in lines] == wanted(predictor)
    assert {line["sure"] for line in lines} == {True, False, None}
    alone = [*predict_lines(TEXTS, None, [model], "fp32", "labels", GUARANTEES)]
    assert [bool(label) for label in alone] == [bool(line["sure"]) for line in lines]
    plain = json.loads(next(predict_lines(TEXTS, None, [model], "fp32")))
    assert plain.keys() == {"label", "probabilities"}


@pytest.mark.parametrize("ending", ["parquet", "csv", "ndjson"])
def test_files_have_a_column_for_each(tmp_path, model, predictor, ending):
    pl.DataFrame({"text": TEXTS}).write_parquet(tmp_path / "in.parquet")
    request = Request(
        [str(tmp_path / "in.parquet")], ("text",), (model,), precision="fp32", guarantees=GUARANTEES
    )
    output = tmp_path / f"out.{ending}"
    tally = label_files(request, output, predictor)
    readers: dict[str, Any] = {"parquet": pl.read_parquet, "csv": pl.read_csv, "ndjson": pl.read_ndjson}
    found = readers[ending](output)
    sure, sets = zip(*wanted(predictor), strict=True)
    assert found["sure"].to_list() == [*sure]
    assert tally.num_sure == sum(map(bool, sure))
    flat = [None if each is None else "; ".join(each) for each in sets]
    assert found["labels"].to_list() == (flat if ending == "csv" else [*sets])
    lines = [json.loads(line) for line in label_to_lines(replace(request), predictor)]
    assert [line["labels"] for line in lines] == [*sets]


def test_what_cannot_be_promised_is_refused(model, capsys, monkeypatch, tmp_path):
    def refusal(*words: str) -> str:
        monkeypatch.setattr("sys.argv", ["headstart", "predict", *words])
        with pytest.raises(SystemExit, match="2"):
            main()
        return " ".join(capsys.readouterr().err.split())

    asked = ("some text", "--model", str(model))
    assert "a confidence above which at most 0.001 of" in refusal(*asked, "--most-wrong", "0.001")
    assert "most wrong: 1.5 is no share" in refusal(*asked, "--most-wrong", "1.5")
    assert "label sets: 0 is no share" in refusal(*asked, "--label-sets", "0")
    assert "each would have all labels" in refusal(*asked, "--label-sets", "0.9999")
    assert "prints no sets" in refusal(*asked, "--label-sets", "0.9", "--label-only")
    plain = ("some text", "--model", str(model / "ulmfit"), "--most-wrong", "0.1")
    assert "one classifier that knows its" in refusal(*plain)
    several = (*asked, "--model", str(model / "ulmfit"), "--label-sets", "0.9")
    assert "one classifier that knows its" in refusal(*several)
    (tmp_path / "in.txt").write_text("a b\n", encoding="utf-8")
    into = ("--input", str(tmp_path / "in.txt"), "--output", str(tmp_path / "out.csv"), "--model", str(model))
    assert "do not show" in refusal(*into, "--most-wrong", "0.001")
    assert not [*tmp_path.glob("out.csv*")]
