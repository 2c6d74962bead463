"""Drift: false alarms are as rare as promised, what moved is found, and samples are uniform."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

from pipeline.__main__ import main
from pipeline.artifacts.reference import read_reference, write_reference
from pipeline.artifacts.shipped import ship
from pipeline.corpus.tokens import UNLABELLED
from pipeline.evaluation.blend import Share
from pipeline.evaluation.drift import LABELS, WITHOUT_WORDS, _counts_differ, compare, holm
from pipeline.evaluation.feature_space import fit_space
from pipeline.evaluation.reference import MEASURES, Reference, Sample
from pipeline.evaluation.words import lengths_and_unknown, vocabulary
from pipeline.inference import bulk_input, bulk_output, reference_sample
from pipeline.inference import summary as summaries
from pipeline.inference.answer import Answer
from pipeline.inference.bulk import label_files
from pipeline.inference.bulk_input import Request
from pipeline.inference.predict import Prediction, Predictor
from pipeline.inference.service import LabelRequest, answers
from pipeline.inference.service_summary import ServiceSummary
from pipeline.inference.summary import Summary, may_be_sampled, read_summary, write_summary
from tests.test_predict import copied, export

TEXTS = ["a b c", "b", None, "d e f g", " ", "a a a", "h j", "j k", "l m n o p", "q r", "s", "t a zebra"]


def sample(seed: int, shift: float = 0.0, size: int = 400) -> Sample:
    rng = np.random.default_rng(seed)
    measures = {name: rng.normal(size=size) for name in MEASURES}
    measures["length"] += shift
    return Sample(measures, Counter(rng.choice(["a", "b", "c"], size=size).tolist()))


# ---------------------------------------------------------------------------------------- the tests


def test_false_alarms_are_as_rare_as_promised():
    """300 pairs of samples of one kind, each compared five ways: at 5 % some 15 of the pairs raise one."""
    pairs = (compare(sample(2 * seed), [sample(2 * seed + 1)], 0.05)[0] for seed in range(300))
    alarms = sum(any(each.moved for each in found) for found in pairs)
    assert alarms <= 27  # 15 and three standard deviations


def test_what_moved_is_found_and_nothing_else():
    still, moved = compare(sample(0), [sample(1), sample(2, shift=0.5)], 0.01)
    assert not any(each.moved for each in still)
    assert [each.measure for each in moved if each.moved] == ["length"]
    (length,) = [each for each in moved if each.moved]
    assert length.now is not None
    assert length.before is not None
    assert length.now - length.before == pytest.approx(0.5, abs=0.15)
    assert 0.15 < length.difference < 0.3


def test_labels_are_compared_by_their_shares():
    measures = {"length": np.arange(50.0)}
    before = Sample(measures, {"a": 500, "b": 500, "never": 0})
    same, other = Sample(measures, {"a": 50_000, "b": 50_000}), Sample(measures, {"a": 80, "b": 20})
    (_, still, _), (_, moved, _) = compare(before, [same, other], 0.01)
    assert (still.difference, still.moved) == (0, False)
    assert moved.difference == pytest.approx(0.3)
    assert moved.moved
    (_, only, _) = compare(Sample(measures, {"a": 5}), [Sample(measures, {"a": 9})], 0.01)[0]
    assert not only.moved


@pytest.mark.parametrize("size", [3, 5, 10, 50])
def test_few_documents_raise_no_more_false_alarms_by_their_labels(size):
    shares = np.array([0.3, 0.25, 0.2, 0.1, 0.08, 0.04, 0.02, 0.01])
    names, rng = "abcdefgh", np.random.default_rng(size)

    def counts(total: int) -> dict[str, int]:
        return dict(zip(names, map(int, rng.multinomial(total, shares)), strict=True))

    before = counts(1500)
    p_values = [_counts_differ(before, counts(size))[1] for _ in range(300)]
    assert np.mean(np.array(p_values) < 0.05) < 0.05 + 3 * (0.05 * 0.95 / 300) ** 0.5
    assert _counts_differ(before, {"h": size})[1] < 1e-4


def test_documents_without_words_are_compared_too():
    before, rng = sample(0), np.random.default_rng(1)
    broken = Sample({name: rng.normal(size=40) for name in MEASURES}, {"a": 13, "b": 14, "c": 13}, 360)
    nothing = Sample({name: np.array([]) for name in MEASURES}, {}, 50)
    found = compare(before, [broken, nothing], 0.01)
    (without,) = [each for each in found[0] if each.moved]
    assert (without.measure, without.before, without.now) == (WITHOUT_WORDS, 0.0, 0.9)
    assert [each.measure for each in found[1] if each.moved] == [WITHOUT_WORDS]


def test_values_that_are_not_known_are_passed_over():
    nothing = Sample({"length": np.full(9, np.nan)}, {"a": 1})
    assert [each.measure for each in compare(nothing, [nothing], 0.01)[0]] == [LABELS, WITHOUT_WORDS]


def test_holm_by_hand():
    assert holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    assert holm([0.6, 0.9]) == [1, 1]


# ------------------------------------------------------------------------------------ the measures


def test_distances_are_those_of_mahalanobis():
    rng = np.random.default_rng(0)
    labels, spread = rng.integers(3, size=3000), np.array([1.0, 5.0, 0.2])
    means = np.array([[0, 0, 0], [30, 0, 0], [0, 0, 9.0]])
    features = means[labels] + spread * rng.normal(size=(3000, 3))
    points = means[rng.integers(3, size=50)] + 4 * spread * rng.normal(size=(50, 3))
    inside = features - np.stack([features[labels == k].mean(0) for k in range(3)])[labels]
    inverse = np.linalg.inv(inside.T @ inside / len(inside))
    differences = points[:, None] - np.stack([features[labels == k].mean(0) for k in range(3)])
    by_hand = np.sqrt(np.einsum("ncf,fg,ncg->nc", differences, inverse, differences).min(1))
    np.testing.assert_allclose(fit_space(features, labels).distances(points), by_hand, rtol=1e-6)


def test_features_without_variance_and_few_documents_have_finite_distances():
    features = np.hstack([np.random.default_rng(0).normal(size=(5, 40)), np.ones((5, 3))])
    space = fit_space(features, np.array([0, 0, 4, 4, 4]), most_directions=64)
    assert len(space.directions_KF) <= 3
    assert np.isfinite(space.distances(features + 1)).all()
    assert fit_space(np.ones((1, 3)), np.array([2])).distances(np.ones((2, 3))).tolist() == [0, 0]


def test_words_are_known_whatever_their_case():
    known = vocabulary(["The river, the bank.", "Zürich"])
    lengths, unknown = lengths_and_unknown(["the BANK", "zürich money", "", "..."], known)
    assert lengths.tolist() == [2, 2, 0, 0]
    np.testing.assert_array_equal(unknown, [0, 0.5, np.nan, np.nan])


# -------------------------------------------------------------------------------------- the summary


def test_the_sample_is_uniform_however_the_documents_are_put_together(monkeypatch):
    monkeypatch.setattr(summaries, "SAMPLE_SIZE", 50)
    draws = np.random.default_rng(0).random(5000)
    wanted = {float(k) for k in np.argsort(draws)[:50]}
    chosen = np.flatnonzero(may_be_sampled(draws, np.arange(1, 5001)))
    assert {*map(float, chosen)} >= wanted
    assert len(chosen) < 700
    summary = Summary("x")
    for part in np.array_split(np.random.default_rng(1).permutation(chosen), 7):
        summary.add_rows((draws[k], float(k), 0, 0, 0) for k in part)
    assert {*summary.sample.measures["length"]} == wanted


def test_a_summary_is_read_as_it_was_written_and_goes_on(tmp_path):
    summary = Summary("x")
    summary.add_labels(["a", None, "b", "a"])
    summary.add_rows([(0.5, 3.0, 0.1, 0.9, np.nan), (0.25, 1.0, 0.0, 0.8, 2.0)])
    write_summary(summary, tmp_path / "new" / "one.json")
    found = read_summary(tmp_path / "new" / "one.json")
    assert (found.num_documents, found.num_without_words, found.labels) == (4, 1, {"a": 2, "b": 1})
    assert sorted(found.rows)[1] == (-0.25, 1.0, 0.0, 0.8, 2.0)
    assert np.isnan(sorted(found.rows)[0][-1])


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format": 2}', '{"format": 1, "classifier": "x"}'])
def test_what_is_no_summary_is_named(tmp_path, content):
    (tmp_path / "x.json").write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=r"x\.json is no summary"):
        read_summary(tmp_path / "x.json")
    with pytest.raises(ValueError, match=r"none\.json cannot be read"):
        read_summary(tmp_path / "none.json")


# ----------------------------------------------------------------------- what predict and serve see
NO = Answer(Prediction("no", {}))


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """A classifier that knows its training text."""
    return shipped_with_reference(tmp_path_factory.mktemp("model"))


def shipped_with_reference(folder: Path) -> Path:
    source, shipped = export(folder / "ulmfit"), folder / "shipped"
    ship(shipped, "ulmfit", {"ulmfit": Share(1.0)}, {"ulmfit": copied(source)}, 40.0, further=with_reference)
    return shipped


def with_reference(folder: Path) -> None:
    texts = [" ".join(words) for words in zip("abcdefgh" * 8, "ijklmnop" * 8, "qrstabcd" * 8, strict=True)]
    predictor = Predictor.load(folder, precision="fp32")
    features = predictor.features(texts)
    assert features is not None
    space = fit_space(features, np.arange(len(texts)) % 2)
    known = Reference(vocabulary(texts), space, Sample({}, {}))
    probs = predictor.probabilities(texts)
    measures = dict(zip(MEASURES, predictor.measures(texts, probs, known).T, strict=True))
    labels = Counter(predictor.label_names[k] for k in probs.argmax(1))
    write_reference(folder, replace(known, sample=Sample(measures, labels)))


@pytest.fixture(scope="module")
def predictor(model) -> Predictor:
    return Predictor.load(model, precision="fp32")


def rows_of(predictor: Predictor, texts: Iterable[str | None]) -> list[tuple[float, ...]]:
    with_words = [text for text in texts if text and text.strip()]
    probs = predictor.probabilities(with_words)
    return sorted(tuple(row) for row in predictor.measures(with_words, probs, predictor.reference).tolist())


def test_the_reference_is_read_as_it_was_written(model):
    found = read_reference(model, MEASURES)
    assert found is not None
    assert found.space is not None
    assert np.isfinite(np.stack([*found.sample.measures.values()])).all()
    assert found.words == vocabulary(["abcdefghijklmnopqrst".replace("", " ")])


def test_measures_of_a_document(predictor):
    probs = predictor.probabilities(["t a zebra"])
    (row,) = predictor.measures(["t a zebra"], probs, predictor.reference)
    assert row[:3].tolist() == [3, pytest.approx(1 / 3), probs.max()]
    assert row[3] > 0


@pytest.mark.parametrize("stopped_at", [None, 1])
def test_files_are_summarised_and_a_run_that_was_stopped_sees_them_all(
    tmp_path, model, predictor, monkeypatch, stopped_at
):
    monkeypatch.setattr(bulk_input, "PART_ROWS", 5)
    pl.DataFrame({"text": TEXTS}).write_parquet(tmp_path / "in.parquet")
    request = Request(
        [str(tmp_path / "in.parquet")], ("text",), (model,), precision="fp32", summary=tmp_path / "seen.json"
    )
    if stopped_at is not None:
        with monkeypatch.context() as patch:
            patch.setattr(bulk_output, "join_parts", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                label_files(request, tmp_path / "out.csv", predictor)
    tally = label_files(request, tmp_path / "out.csv", predictor)
    assert tally.summary is not None
    assert (tally.summary.num_documents, tally.summary.num_without_words) == (12, 2)
    found = sorted(row[1:] for row in tally.summary.rows)
    np.testing.assert_allclose(found, rows_of(predictor, TEXTS), rtol=1e-4)
    assert len({row[0] for row in tally.summary.rows}) == 10
    assert not [name for name in pl.read_csv(tmp_path / "out.csv").columns if name.startswith("seen:")]
    written = read_summary(tmp_path / "seen.json")
    assert sorted(written.rows) == sorted(tally.summary.rows)
    with pytest.raises(ValueError, match=r"seen\.json exists; name another --summary"):
        label_files(request, tmp_path / "out2.csv", predictor)


def test_a_part_is_measured_by_its_place_in_the_whole_input(tmp_path, model, predictor, monkeypatch):
    """Else of many small files all documents would be measured."""
    monkeypatch.setattr(summaries, "SAMPLE_SIZE", 2)
    for number in range(8):
        pl.DataFrame({"text": ["a b", "c d", "e f", "g h"] * 5}).write_parquet(tmp_path / f"{number}.parquet")
    measured: list[str] = []
    genuine = Predictor.measures

    def noted(self, texts, *more):
        measured.extend(texts)
        return genuine(self, texts, *more)

    monkeypatch.setattr(Predictor, "measures", noted)
    files = [str(tmp_path / f"{number}.parquet") for number in range(8)]
    request = Request(files, ("text",), (model,), precision="fp32", summary=tmp_path / "seen.json")
    tally = label_files(request, tmp_path / "out.csv", predictor)
    assert tally.summary is not None
    assert len(tally.summary.rows) == 2
    assert 4 <= len(measured) < 50  # of 160: the first four, and 4 of n of those behind


@pytest.mark.parametrize("name", ["file/seen.json", "out.csv", "folder"])
def test_a_summary_that_cannot_be_written_is_refused_before_anything_is_labelled(
    tmp_path, model, monkeypatch, capsys, name
):
    (tmp_path / "file").write_text("", encoding="utf-8")
    (tmp_path / "folder").mkdir()
    (tmp_path / "in.txt").write_text("a\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    words = ("predict", "--input", "in.txt", "--output", "out.csv", "--model", str(model))
    code, said = run(monkeypatch, capsys, *words, "--summary", name)
    assert code == 2
    assert "--summary" in said
    assert not [*tmp_path.glob("out.csv*")]


def test_a_service_counts_its_documents_and_writes_by_date(tmp_path, predictor, monkeypatch):
    now = [time.struct_time((2026, 11, day, 12, 0, 0, 0, 300, 0)) for day in (26, 27)]
    genuine = time.strftime
    monkeypatch.setattr(time, "strftime", lambda form, *at: genuine(form, now[0]))
    summary = ServiceSummary(str(tmp_path / "seen-%m-%d.json"), "x")
    documents = [[text or ""] for text in TEXTS]
    (found,) = answers(predictor, [LabelRequest(documents, draws=summary.draws(len(documents)))])
    summary.add(found)
    assert {name for answer in found for name in answer.to_json()} == {"label", "probabilities"}
    now.pop(0)
    assert summary.draws(1)[0] is not None
    summary.add([NO])
    summary.write()
    first, second = (read_summary(tmp_path / f"seen-11-{day}.json") for day in (26, 27))
    np.testing.assert_allclose(sorted(row[1:] for row in first.rows), rows_of(predictor, TEXTS), rtol=1e-4)
    assert (first.num_documents, first.num_without_words, second.num_documents) == (12, 2, 1)
    again = ServiceSummary(str(tmp_path / "seen-%m-%d.json"), "x")
    again.add([NO])
    again.write()
    assert read_summary(tmp_path / "seen-11-27.json").labels == {"no": 2}
    with pytest.raises(ValueError, match=r"seen-11-27\.json is the summary of another classifier"):
        ServiceSummary(str(tmp_path / "seen-%m-%d.json"), "y")


def test_what_the_file_of_the_next_day_is_hinders_no_request(tmp_path, monkeypatch, caplog):
    now = ["26", "27"]
    monkeypatch.setattr(time, "strftime", lambda form, *at: form.replace("%d", now[0]))
    summary = ServiceSummary(str(tmp_path / ".." / tmp_path.name / "seen-%d.json"), "x")
    (tmp_path / "seen-27.json").write_text("{}", encoding="utf-8")
    now.pop(0)
    summary.draws(1)
    summary.add([NO])
    summary.draws(1)  # it turns over once
    summary.write()
    assert "is no summary" in caplog.text
    assert (tmp_path / "seen-27.json").read_text() == "{}"
    (other,) = tmp_path.glob("seen-27-*.json")
    assert read_summary(other).labels == {"no": 1}


def test_documents_of_a_refused_request_take_no_place(tmp_path):
    summary = ServiceSummary(str(tmp_path / "seen.json"), "x")
    for _ in range(50):
        summary.withdraw(len(summary.draws(1000)))
    assert all(draw is not None for draw in summary.draws(1000))


def test_a_summary_that_cannot_be_written_fails_no_request(tmp_path, monkeypatch, caplog):
    summary = ServiceSummary(str(tmp_path / "seen.json"), "x")
    monkeypatch.setattr("pipeline.inference.service_summary._WRITTEN_EVERY", 0.0)
    monkeypatch.setattr("pipeline.inference.service_summary.write_summary", full)
    summary.add([NO])
    assert "No space left" in caplog.text


def full(*_: object) -> None:
    raise OSError(28, "No space left on device")


# -------------------------------------------------------------------------------------- the command


def run(monkeypatch, capsys, *words: str) -> tuple[int, str]:
    monkeypatch.setattr("sys.argv", ["headstart", *words])
    code: object = 0
    try:
        main()
    except SystemExit as ended:
        code = ended.code
    said = capsys.readouterr()
    return int(str(code or 0)), " ".join((said.out + said.err).split())


def test_drift_is_told_drawn_and_given_as_a_code(tmp_path, model, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    same = [f"{a} {b} {c}" for a in "abcdefgh" for b in "ijkl" for c in "qrst"]
    for name, texts in {"same": same, "other": [f"zebra {text} zebra zebra" for text in same]}.items():
        pl.DataFrame({"text": texts}).write_parquet(tmp_path / f"{name}.parquet")
        words = ["predict", "--input", f"{name}.parquet", "--output", f"{name}.csv", "--model", str(model)]
        assert run(monkeypatch, capsys, *words, "--summary", f"{name}.json")[0] == 0
    both = ("drift", "same.json", "other.json", "--model", str(model))
    code, said = run(monkeypatch, capsys, *both, "--out", "all.svg", "--check")
    assert code == 3
    other = said[said.index("other: 128 documents") :]
    assert "│ unknown │ 0.0% │ 50.0% │ 1.00 │" in other
    assert "share of words that the training text lacks" in (tmp_path / "all.svg").read_text()
    assert run(monkeypatch, capsys, *both, "--out", "all.png")[0] == 0
    assert (tmp_path / "all.png").read_bytes().startswith(b"\x89PNG")


def test_what_cannot_be_compared_is_refused(tmp_path, model, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_summary(Summary("x"), Path("x.json"))
    assert (
        "x.json is of another classifier"
        in run(monkeypatch, capsys, "drift", "x.json", "--model", str(model))[1]
    )
    write_summary(Summary(summaries.classifier_of([model])), Path("x.json"))
    assert (
        "no document was seen yet: x" in run(monkeypatch, capsys, "drift", "x.json", "--model", str(model))[1]
    )
    asked = ("drift", "x.json", "--model", str(model))
    assert "its ending is none of .svg" in run(monkeypatch, capsys, *asked, "--out", "x.pdf")[1]
    summary = Summary(summaries.classifier_of([model]))
    summary.add_labels([None])
    write_summary(summary, Path("y.json"))
    Path("file").write_text("", encoding="utf-8")
    refused = run(monkeypatch, capsys, "drift", "y.json", "--model", str(model), "--out", "file/x.svg")
    assert "file/x.svg cannot be written" in refused[1]
    code, said = run(
        monkeypatch, capsys, "drift", "x.json", "y.json", "--model", str(model), "--out", "a/b.svg"
    )
    assert code == 0
    assert "x: no document was seen yet" in said
    assert "no classifier is there" in run(monkeypatch, capsys, "drift", "x.json", "--model", "nowhere")[1]
    plain = str(model / "ulmfit")
    assert "does not know which documents" in run(monkeypatch, capsys, "drift", "x.json", "--model", plain)[1]
    Path("in.txt").write_text("a\n", encoding="utf-8")
    words = ("predict", "--input", "in.txt", "--summary", "s.json")
    assert "needs an --output" in run(monkeypatch, capsys, *words, "--model", str(model))[1]
    unknown = run(monkeypatch, capsys, *words, "--output", "o.csv", "--model", plain)[1]
    assert "one classifier that knows its" in unknown
    assert "--summary goes with --input" in run(monkeypatch, capsys, "predict", "a", "--summary", "s.json")[1]
    assert json.loads(Path("x.json").read_text())["num_documents"] == 0


def test_a_classifier_that_does_not_ship_is_told_of_its_documents(tmp_path, monkeypatch):
    """As an ONNX export and a distilled classifier are."""
    model = export(tmp_path / "ulmfit")
    texts = {
        "train": ["a b", "c d", "e f", "zebra"],
        "unlabelled": ["owl"],
        "validation": ["g h", "j", "k l m"],
    }
    labels = {"train": [0, 1, 0, UNLABELLED], "validation": [1, UNLABELLED, 0]}
    monkeypatch.setattr(
        reference_sample, "open_shard", lambda folder, split: SimpleNamespace(labels=np.array(labels[split]))
    )
    splits = [*texts, "test"]
    monkeypatch.setattr(reference_sample, "read_info", lambda folder: SimpleNamespace(splits=splits))
    monkeypatch.setattr(reference_sample, "read_texts", lambda folder, split: texts[split])
    reference_sample.write_judged_and_reference(
        model, Path("tokens"), Path("documents"), np.array([0, 1, 2]), seed=1
    )
    predictor = Predictor.load(model)
    assert predictor.judged is not None
    probs = predictor.probabilities(["g h", "k l m"])
    np.testing.assert_allclose(predictor.judged.at_label_N, probs[[0, 1], [1, 0]], rtol=1e-5)
    assert predictor.reference.words == vocabulary(["a b c d e f zebra owl"])
    assert predictor.reference.space is not None
    assert sorted(predictor.reference.sample.measures["length"]) == [2, 3]
    assert sum(predictor.reference.sample.labels.values()) == 2
