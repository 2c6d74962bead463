"""Files labelled in bulk: each row has its answer, in order, and no part is made twice."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import polars.selectors as cs
import pytest

from pipeline.__main__ import main
from pipeline.inference import bulk_input, bulk_output
from pipeline.inference.bulk import label_files, label_to_lines
from pipeline.inference.bulk_input import Request
from pipeline.inference.predict import Predictor
from pipeline.inference.thresholds import Guarantees, Thresholds
from pipeline.inference.word_effects import MAX_PIECES, words_that_moved
from tests.test_predict import export

TEXTS = ["a b c", "b", None, "d e f g", " ", "a a a", "h", "j k", "l m n o p", "q r", "s", "t a"]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return export(tmp_path_factory.mktemp("model") / "ulmfit")


@pytest.fixture(scope="module")
def predictor(model) -> Predictor:
    return Predictor.load(model, precision="fp32")


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr(bulk_input, "PART_ROWS", 5)


@pytest.fixture
def request_of(tmp_path, model):
    """A request for a parquet and a CSV file of the same rows."""
    frame = pl.DataFrame({"id": range(len(TEXTS)), "body": TEXTS})
    frame.write_parquet(tmp_path / "one.parquet")
    frame.write_csv(tmp_path / "two.csv")
    files = [str(tmp_path / name) for name in ("one.parquet", "two.csv")]
    return Request(files, ("body",), (model,), keep=("id",), precision="fp32")


class Counting:
    """A predictor that notes what it reads, and may be stopped before a call."""

    def __init__(self, predictor: Predictor, stop_at: int | None = None) -> None:
        self.label_names, self.num_texts = predictor.label_names, predictor.num_texts
        self._predictor, self._stop_at = predictor, stop_at
        self.read: list[list[Sequence[str]]] = []

    def probabilities(self, documents: Sequence[Sequence[str]]) -> np.ndarray:
        if len(self.read) == self._stop_at:
            raise KeyboardInterrupt
        self.read.append([*documents])
        return self._predictor.probabilities(documents)

    def thresholds(self, guarantees: Guarantees) -> Thresholds:
        return self._predictor.thresholds(guarantees)


def expected(predictor: Predictor) -> list[str | None]:
    found = predictor.predict([text or "" for text in TEXTS])
    return [each.label if (text or "").strip() else None for each, text in zip(found, TEXTS, strict=True)]


@pytest.mark.parametrize("ending", ["parquet", "csv", "ndjson"])
def test_each_row_of_each_file_has_the_answer_of_predict(tmp_path, request_of, predictor, ending):
    output = tmp_path / f"out.{ending}"
    tally = label_files(replace(request_of, with_text=True), output, predictor)
    readers: dict[str, Any] = {"parquet": pl.read_parquet, "csv": pl.read_csv, "ndjson": pl.read_ndjson}
    frame: pl.DataFrame = readers[ending](output)
    assert frame["label"].to_list() == 2 * expected(predictor)
    assert frame["row"].to_list() == 2 * [*range(1, len(TEXTS) + 1)]
    assert frame["file"].unique(maintain_order=True).to_list() == [*request_of.inputs]
    assert frame["id"].cast(pl.Int64).to_list() == 2 * [*range(len(TEXTS))]
    assert [text or "" for text in frame["text"]] == 2 * [text or "" for text in TEXTS]
    if ending == "ndjson":
        frame = frame.unnest("probabilities").rename({name: f"probability:{name}" for name in ("no", "yes")})
    for name in predictor.label_names:
        probabilities = [each.probabilities[name] for each in predictor.predict([t or "" for t in TEXTS])]
        for found, wanted, label in zip(
            frame[f"probability:{name}"], 2 * probabilities, 2 * expected(predictor), strict=True
        ):
            assert found == (None if label is None else pytest.approx(wanted, abs=1e-5))
    assert tally.num_documents == 2 * len(TEXTS)
    assert tally.labels[None] == 4
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["one.parquet", output.name, "two.csv"])


def test_a_kept_column_keeps_its_type_where_all_files_have_that_type(tmp_path, request_of, predictor):
    label_files(replace(request_of, inputs=request_of.inputs[:1]), tmp_path / "one-out.parquet", predictor)
    assert pl.read_parquet(tmp_path / "one-out.parquet")["id"].dtype == pl.Int64


@pytest.mark.parametrize("stop_at", range(6))
def test_a_run_that_was_stopped_makes_no_whole_part_again(tmp_path, request_of, predictor, stop_at):
    label_files(request_of, tmp_path / "whole.parquet", predictor)
    stopped, resumed = Counting(predictor, stop_at), Counting(predictor)
    with pytest.raises(KeyboardInterrupt):
        label_files(request_of, tmp_path / "out.parquet", stopped)  # type: ignore[arg-type]
    assert not (tmp_path / "out.parquet").exists()
    tally = label_files(request_of, tmp_path / "out.parquet", resumed)  # type: ignore[arg-type]
    assert len(stopped.read) == stop_at
    assert len(resumed.read) == 6 - stop_at  # parts of 5, 5 and 2 rows of each file
    assert tally.num_made_before == sum(map(len, stopped.read))
    assert pl.read_parquet(tmp_path / "out.parquet").equals(pl.read_parquet(tmp_path / "whole.parquet"))


@pytest.mark.parametrize("batch_rows", [1, 2, 3, 5, 100])
@pytest.mark.parametrize("num_bytes", [1, 8, 10**6])
def test_memory_holds_a_part_or_less_where_texts_are_long(
    tmp_path, request_of, predictor, monkeypatch, batch_rows, num_bytes
):
    label_files(request_of, tmp_path / "whole.parquet", predictor)
    monkeypatch.setattr(bulk_input, "PIECE_BYTES", num_bytes)
    monkeypatch.setattr("pipeline.corpus.source.BATCH_ROWS", batch_rows)
    counting = Counting(predictor)
    label_files(request_of, tmp_path / "out.parquet", counting)  # type: ignore[arg-type]
    sizes = [len(documents) for documents in counting.read]
    assert sum(sizes) == 2 * len(TEXTS)
    if num_bytes == 10**6:
        assert sizes == 2 * [5, 5, 2]
    if num_bytes == 1 and batch_rows == 1:
        assert max(sizes) <= 3  # rows without text, and one with
    assert max(sizes) <= 5
    drawn = [pl.read_parquet(tmp_path / f"{name}.parquet").drop(cs.float()) for name in ("out", "whole")]
    assert drawn[0].equals(drawn[1])


def test_a_run_that_was_stopped_while_it_joined_the_parts_only_joins_them(
    tmp_path, request_of, predictor, monkeypatch
):
    def dies(folder: Path, output: Path) -> None:
        (folder / "all.parquet").write_bytes(b"torn")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(bulk_output, "join_parts", dies)
        with pytest.raises(KeyboardInterrupt):
            label_files(request_of, tmp_path / "out.parquet", predictor)
    resumed = Counting(predictor)
    label_files(request_of, tmp_path / "out.parquet", resumed)  # type: ignore[arg-type]
    assert not resumed.read
    assert len(pl.read_parquet(tmp_path / "out.parquet")) == 2 * len(TEXTS)


def test_parts_of_another_request_are_not_taken(tmp_path, request_of, predictor):
    with pytest.raises(KeyboardInterrupt):
        label_files(request_of, tmp_path / "out.csv", Counting(predictor, 2))  # type: ignore[arg-type]
    (tmp_path / "other").mkdir()
    other = export(tmp_path / "other" / "ulmfit", seed=1)
    with pytest.raises(ValueError, match=r"out\.csv\.parts holds parts .* other classifier; remove it"):
        label_files(replace(request_of, models=(other,)), tmp_path / "out.csv", predictor)
    pl.DataFrame({"id": [1], "body": ["a"]}).write_csv(tmp_path / "two.csv")
    with pytest.raises(ValueError, match="with other input files and --with-text; remove it"):
        label_files(replace(request_of, with_text=True), tmp_path / "out.csv", predictor)


@pytest.mark.parametrize(
    ("changes", "output", "message"),
    [
        ({}, "one.parquet", r"one\.parquet exists; name another --output"),
        ({}, "out.xlsx", r"its ending is none of \.parquet, \.csv"),
        ({"inputs": ["none/*.csv"]}, "out.csv", r"--input: no file matches none/\*\.csv"),
        ({"text_columns": ("text",)}, "out.csv", r"no column 'text' \(--text-column\); it has 'id', 'body'"),
        ({"text_columns": ("body", "id")}, "out.csv",
         "--text-column is given 2 times, but the classifier reads 1"),
        ({"keep": ("row",)}, "out.csv", "--keep row: the output has a column of that name"),
        ({"keep": ("key",)}, "out.csv", r"no column 'key' \(--keep\)"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_refused_and_nothing_written(
    tmp_path, request_of, predictor, changes, output, message
):
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ValueError, match=message):
        label_files(replace(request_of, **changes), tmp_path / output, predictor)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_bytes_that_are_no_text_cost_no_row(tmp_path, model, predictor):
    (tmp_path / "in.txt").write_bytes(b"a b\n\xff\xfe c\nd\n")
    request = Request([str(tmp_path / "in.txt")], ("text",), (model,), with_text=True)
    label_files(request, tmp_path / "out.ndjson", predictor)
    texts = pl.read_ndjson(tmp_path / "out.ndjson")["text"].to_list()
    assert [texts[0], texts[2]] == ["a b", "d"]
    assert "c" in texts[1]


def test_an_input_without_documents_is_refused(tmp_path, model, predictor):
    (tmp_path / "in.csv").write_text("text\n")
    request = Request([str(tmp_path / "in.csv")], ("text",), (model,))
    with pytest.raises(ValueError, match="the input has no document"):
        label_files(request, tmp_path / "out.csv", predictor)
    assert [path.name for path in tmp_path.iterdir()] == ["in.csv"]


def test_the_command_reads_standard_input_and_prints_lines(model, monkeypatch, capfdbinary):
    arguments = ["predict", "--model", str(model), "--input", "-", "--words", "1"]
    monkeypatch.setattr("sys.argv", ["headstart", *arguments])
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(b"a b c\n\nd e\n")))
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    lines = [json.loads(line) for line in capfdbinary.readouterr().out.splitlines()]
    assert [line["file"] for line in lines] == ["-"] * 3
    assert [line["row"] for line in lines] == [1, 2, 3]
    assert [line["label"] is None for line in lines] == [False, True, False]
    assert [len(line["words"] or []) for line in lines] == [1, 0, 1]
    assert sum(lines[0]["probabilities"].values()) == pytest.approx(1)


def test_a_line_of_the_output_is_one_object_whatever_a_text_holds(tmp_path, model, predictor):
    texts = ["a\u2028b", "c\x85d", "e\x9bf", 'g"\nh']
    pl.DataFrame({"text": texts}).write_parquet(tmp_path / "in.parquet")
    request = Request([str(tmp_path / "in.parquet")], ("text",), (model,), with_text=True)
    lines = [*label_to_lines(request, predictor)]
    assert [json.loads(line)["text"] for line in lines] == texts
    assert all(letter.isprintable() for line in lines for letter in line)


def test_the_command_refuses_texts_beside_an_input(model, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["headstart", "predict", "--input", "x.csv", "some text"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "with --input, give neither texts nor --file" in capsys.readouterr().err


# ------------------------------------------------------------------------- the words that moved an answer


class Worth:
    """A classifier whose probability of "yes" is a half and what the words add to it."""

    label_names = ("no", "yes")
    worth = {"good": 0.2, "fine": 0.1, "bad": -0.3}  # noqa: RUF012

    def probabilities(self, documents: Sequence[Sequence[str]]) -> np.ndarray:
        yes = [
            0.5 + sum(self.worth.get(word, 0) for text in each for word in text.split()) for each in documents
        ]
        return np.array([[1 - each, each] for each in yes])


def test_a_word_moves_an_answer_by_what_it_is_worth():
    moved = words_that_moved(Worth(), ("a good thing", "bad  fine"), "yes")  # type: ignore[arg-type]
    assert [(each.words, each.text, each.start) for each in moved[:3]] == [
        ("bad", 1, 0),
        ("good", 0, 2),
        ("fine", 1, 5),
    ]
    assert [each.by for each in moved] == pytest.approx([-0.3, 0.2, 0.1, 0, 0])
    against = words_that_moved(Worth(), ("a good thing",), "no")  # type: ignore[arg-type]
    assert (against[0].words, against[0].by) == ("good", pytest.approx(-0.2))


@pytest.mark.parametrize("num_words", [0, 1, MAX_PIECES, MAX_PIECES + 1, 1000])
def test_a_long_text_is_cut_into_pieces_that_hold_each_word_once(num_words):
    document = (" ".join(f"w{number}" for number in range(num_words)), "and more")
    moved = words_that_moved(Worth(), document, "yes")  # type: ignore[arg-type]
    assert len(moved) <= MAX_PIECES + 1
    found = sorted(word for each in moved for word in each.words.split())
    assert found == sorted(" ".join(document).split())
