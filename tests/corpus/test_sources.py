from __future__ import annotations

import functools
import gzip
import http.server
import json
import random
import threading
from collections import Counter
from pathlib import Path

import polars as pl
import pytest

from pipeline.corpus import sources

TEXTS = ["one, with a comma", 'a "quoted" text', "naïve 日本 😀", "the last"]
LABELS = ["b", "a", "b", "a"]


def _write(folder, form, texts=TEXTS, labels=LABELS, name="train"):
    file = folder / f"{name}.{form}"
    frame = pl.DataFrame({"text": texts, "label": labels})
    match form:
        case "parquet":
            frame.write_parquet(file)
        case "csv":
            frame.write_csv(file)
        case "ndjson":
            frame.write_ndjson(file)
        case "text":
            file.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    return file


def _read(settings, split="train"):
    source = sources.open_source(settings, "corpus.target.source")
    rows = list(source.rows(split))
    texts, labels = ([value for batch in rows for value in batch[name]] for name in ("text", "label"))
    return texts, labels, source


@pytest.mark.parametrize("form", ["parquet", "csv", "ndjson"])
def test_formats_give_the_same_rows(tmp_path, make_source, form):
    texts, labels, source = _read(make_source(format=form, train=[str(_write(tmp_path, form))]))
    assert texts == TEXTS
    assert labels == [1, 0, 1, 0]
    assert source.label_names == ("a", "b")
    assert source.label_counts("train") == Counter({0: 2, 1: 2})


def test_each_line_of_plain_text_is_a_document(tmp_path, make_source):
    file = _write(tmp_path, "text")
    texts, labels, source = _read(make_source(format="text", train=[str(file)], label_column=None))
    assert texts == TEXTS
    assert labels == [None] * 4
    assert source.label_names is None


def test_batches_are_bounded_and_in_order(tmp_path, make_source, monkeypatch):
    monkeypatch.setattr("pipeline.corpus.source.BATCH_ROWS", 7)
    expected = [f"text {number}" for number in range(100)]
    file = _write(tmp_path, "parquet", expected, ["a", "b"] * 50)
    source = sources.open_source(make_source(format="parquet", train=[str(file)]), "corpus.target.source")
    batches = [batch["text"].to_list() for batch in source.rows("train")]
    assert max(map(len, batches)) <= 7
    assert sum(batches, []) == expected  # noqa: RUF017


def test_a_glob_reads_its_files_in_order_of_name(tmp_path, make_source):
    for number in (2, 0, 1):
        _write(tmp_path, "csv", [f"text {number}"], ["a"], name=f"part-{number}")
    texts, _, _ = _read(make_source(train=[str(tmp_path / "part-*.csv")]))
    assert texts == ["text 0", "text 1", "text 2"]


class _RangeHandler(http.server.SimpleHTTPRequestHandler):
    """Serves byte ranges, as polars requests them and object stores do."""

    def do_GET(self):
        file = Path(self.translate_path(self.path))
        if not file.is_file():
            self.send_error(404)
            return
        content = file.read_bytes()
        first, last = self.headers.get("Range", "bytes=0-").removeprefix("bytes=").split("-")
        start = int(first) if first else max(0, len(content) - int(last))
        part = content[start : int(last) + 1 if first and last else None]
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {start}-{start + len(part) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        self.wfile.write(part)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def web_address(tmp_path):
    handler = functools.partial(_RangeHandler, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize("form", ["parquet", "csv", "ndjson", "text"])
def test_addresses_are_read_like_local_files(tmp_path, make_source, web_address, form):
    _write(tmp_path, form)
    label = None if form == "text" else "label"
    texts, _, _ = _read(make_source(format=form, train=[f"{web_address}/train.{form}"], label_column=label))
    assert texts == TEXTS


def test_an_address_without_a_file_is_named(tmp_path, make_source, web_address):
    with pytest.raises(ValueError, match=r"/nothing\.csv: cannot be read: .*check the address"):
        _read(make_source(train=[f"{web_address}/nothing.csv"]))


def test_too_many_fields_in_a_row_are_refused_at_an_address_too(tmp_path, make_source, web_address):
    (tmp_path / "train.csv").write_text("text,label\none,x\na text, with a comma,y\n")
    with pytest.raises(ValueError, match=r"/train\.csv: cannot be read: found more fields"):
        _read(make_source(train=[f"{web_address}/train.csv"], label_column=None))


# Labels


@pytest.mark.parametrize(
    ("labels", "names", "expected", "expected_names"),
    [
        ([0, 1, -1, None], ["no", "yes"], [0, 1, None, None], ("no", "yes")),
        ([10, 9, 10, None], None, [1, 0, 1, None], ("9", "10")),
        ([-1, 1, 1, -1], ["-1", "1"], [0, 1, 1, 0], ("-1", "1")),  # named: a class
        (["-1", "1", "1", None], ["1", "-1"], [1, 0, 0, None], ("1", "-1")),
        (["yes", "no", None, "yes"], ["no", "yes"], [1, 0, None, 1], ("no", "yes")),
        (["1", "2", "1", "2"], ["1", "2"], [0, 1, 0, 1], ("1", "2")),  # text: names
        ([1, 0, 1, 0], ["1", "2"], [1, 0, 1, 0], ("1", "2")),  # integers: positions
        ([1.0, 0.0, None, 1.0], ["no", "yes"], [1, 0, None, 1], ("no", "yes")),
        ([True, False, True, None], None, [1, 0, 1, None], ("false", "true")),
    ],
)
def test_labels_are_names_or_positions(tmp_path, make_source, labels, names, expected, expected_names):
    file = _write(tmp_path, "parquet", labels=labels)
    _, found, source = _read(make_source(format="parquet", train=[str(file)], label_names=names))
    assert found == expected
    assert source.label_names == expected_names


@pytest.mark.parametrize("labels", [[-1, 0, 1, 0], [-1, 1, -1, 1], ["-1", "x", "y", "x"]])
def test_minus_one_without_label_names_is_refused(tmp_path, make_source, labels):
    file = _write(tmp_path, "parquet", labels=labels)
    with pytest.raises(ValueError, match=r"train\.parquet: .*holds -1, which is a class .*label_names`"):
        _read(make_source(format="parquet", train=[str(file)]))


def test_auto_uses_each_files_extension(tmp_path, make_source):
    settings = make_source(
        format="auto",
        train=[str(_write(tmp_path, "csv"))],
        test=[str(_write(tmp_path, "ndjson"))],
        unlabelled=[str(_write(tmp_path, "text").rename(tmp_path / "more.txt"))],
    )
    assert _read(settings)[:2] == (TEXTS, [1, 0, 1, 0])
    assert _read(settings, "test")[:2] == (TEXTS, [1, 0, 1, 0])
    assert _read(settings, "unlabelled")[:2] == (TEXTS, [None] * 4)
    packed = _write(tmp_path, "csv").rename(tmp_path / "train.csv.gz")
    with pytest.raises(ValueError, match=r"train\.csv\.gz: the extension '\.gz' is none of \.parquet"):
        _read(make_source(format="auto", train=[str(packed)]))


@pytest.mark.parametrize(
    ("delimiter", "suffix"), [(";", "csv"), ("\t", "csv"), ("|", "csv"), ("\t", "tsv"), (",", "tsv")]
)
def test_the_delimiter_is_found_in_the_header(tmp_path, make_source, delimiter, suffix):
    file = tmp_path / f"train.{suffix}"
    texts = ["one, two; three", f"with {delimiter} in quotes", 'and ""quotes""']
    rows = [f'"{text}"{delimiter}{"ab"[k % 2]}' for k, text in enumerate(texts)]
    file.write_text("\n".join([f"text{delimiter}label", *rows]) + "\n", encoding="utf-8")
    found, labels, _ = _read(make_source(format="auto", train=[str(file)]))
    assert found == [text.replace('""', '"') for text in texts]
    assert labels == [0, 1, 0]
    file.write_text(f"text{delimiter}label\na{delimiter}b{delimiter}c\n", encoding="utf-8")
    with pytest.raises(ValueError, match=rf"train\.{suffix}: .*line 2: 3 fields, the header has 2"):
        _read(make_source(format="auto", train=[str(file)]))


def test_a_file_in_both_train_and_test_is_refused(tmp_path, make_source):
    file = _write(tmp_path, "csv")
    with pytest.raises(ValueError, match=r"train\.csv is in both `.*source\.train` and `.*source\.test`"):
        _read(make_source(train=[str(file)], test=[str(tmp_path / "*.csv")]))


@pytest.mark.parametrize("label", ["2", "maybe"])
def test_a_label_out_of_range_names_file_column_and_key(tmp_path, make_source, label):
    file = _write(tmp_path, "csv", labels=["0", "1", "0", label])
    with pytest.raises(
        ValueError, match=rf"train\.csv: label '{label}' .*'label'.*source\.label_names` nor .* 0 to 1"
    ):
        _read(make_source(train=[str(file)], label_names=["no", "yes"]))


def test_a_long_label_is_cut_in_the_message(tmp_path, make_source):
    file = _write(tmp_path, "csv", labels=["no", "yes", "no", "x" * 5_000])
    with pytest.raises(ValueError, match=r"label 'x+…' in column 'label'") as told:
        _read(make_source(train=[str(file)], label_names=["no", "yes"]))
    assert len(str(told.value)) < 500


def test_a_label_name_given_twice_is_refused(tmp_path, make_source):
    file = _write(tmp_path, "csv")
    with pytest.raises(ValueError, match="label_names` has a duplicate: a, b, a"):
        _read(make_source(train=[str(file)], label_names=["a", "b", "a"]))


# Bad input


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("missing.csv", r"`corpus\.target\.source\.train`: no such file: .*missing\.csv"),
        ("*.json", r"`corpus\.target\.source\.train`: no file matches .*\*\.json"),
        (".", r"`corpus\.target\.source\.train`: .* is a folder; name its files"),
    ],
)
def test_missing_files_are_named(tmp_path, make_source, entry, message):
    with pytest.raises(ValueError, match=message):
        _read(make_source(train=[str(tmp_path / entry)]))


@pytest.mark.parametrize("form", ["parquet", "csv", "ndjson"])
@pytest.mark.parametrize("setting", ["text_column", "label_column"])
def test_a_missing_column_names_file_columns_and_key(tmp_path, make_source, form, setting):
    file = _write(tmp_path, form)
    message = (
        rf"train\.{form}: no column 'review' \(`corpus\.target\.source\.{setting}`\); it has 'text', 'label'"
    )
    with pytest.raises(ValueError, match=message):
        _read(make_source(format=form, train=[str(file)], **{setting: "review"}))


def test_a_text_column_of_another_type_is_refused(tmp_path, make_source):
    file = _write(tmp_path, "parquet", texts=[1, 2, 3, 4])
    with pytest.raises(ValueError, match=r"train\.parquet: column 'text' holds Int64, not text"):
        _read(make_source(format="parquet", train=[str(file)]))


@pytest.mark.parametrize(
    ("form", "content"), [("parquet", "junk"), ("csv", ""), ("ndjson", '{"text": "a"}\n{"te')]
)
def test_a_file_of_another_format_is_named(tmp_path, make_source, form, content):
    file = tmp_path / f"train.{form}"
    file.write_text(content)
    with pytest.raises(
        ValueError, match=rf"train\.{form}: cannot be read: .*`corpus\.target\.source\.format`"
    ):
        _read(make_source(format=form, train=[str(file)], label_column=None))


def test_plain_text_has_no_label_column(tmp_path, make_source):
    with pytest.raises(
        ValueError, match=r"`corpus\.target\.source\.label_column` is 'label', but a plain text"
    ):
        _read(make_source(format="text", train=[str(_write(tmp_path, "text"))]))


def test_nulls_are_counted(tmp_path, make_source):
    file = _write(tmp_path, "parquet", texts=["a", None, "b", None])
    texts, labels, source = _read(make_source(format="parquet", train=[str(file)]))
    assert texts == ["a", "b"]
    assert labels == [1, 1]
    assert source.skipped == {"null_text": 2}


def test_an_ndjson_column_that_is_null_in_the_first_rows_is_read(tmp_path, make_source):
    file = tmp_path / "train.ndjson"
    rows = [{"text": "a text", "label": None}] * 150 + [{"text": "a text", "label": "late"}]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    _, labels, source = _read(make_source(format="ndjson", train=[str(file)]))
    assert source.label_names == ("late",)
    assert labels == [None] * 150 + [0]


# Invalid UTF-8

BAD = {
    "csv": b'text,label\ngood \xef\xbf\xbd,a\nw\xffrong,b\n"two\nlines \xfe",a\nfine,b\n',
    "ndjson": b'{"text":"good \xef\xbf\xbd","label":"a"}\n{"text":"w\xffrong","label":"b"}\n'
    b'{"text":"two\\nlines \xfe","label":"a"}\n{"text":"fine","label":"b"}\n',
}


@pytest.fixture(params=["csv", "ndjson", "parquet"])
def badly_encoded(request, tmp_path):
    file = tmp_path / f"train.{request.param}"
    if request.param == "parquet":
        texts = [b"good \xef\xbf\xbd", b"w\xffrong", b"two\nlines \xfe", b"fine"]
        pl.DataFrame({"text": texts, "label": ["a", "b", "a", "b"]}).write_parquet(file)
    else:
        file.write_bytes(BAD[request.param])
    return {"format": request.param, "train": [str(file)]}


def test_invalid_utf8_is_refused_with_file_and_key(badly_encoded, make_source):
    with pytest.raises(
        ValueError, match=r"train\.\w+: .* not valid UTF-8.*`corpus\.target\.source\.encoding_errors`"
    ):
        _read(make_source(**badly_encoded))


def test_invalid_utf8_is_skipped_by_row_and_counted(badly_encoded, make_source):
    texts, labels, source = _read(make_source(**badly_encoded, encoding_errors="skip"))
    assert texts == ["good \ufffd", "fine"]
    assert labels == [0, 1]
    assert source.skipped == {"invalid_utf8": 2}


def test_invalid_utf8_is_replaced_and_counted(badly_encoded, make_source):
    texts, _, source = _read(make_source(**badly_encoded, encoding_errors="replace"))
    assert texts == ["good \ufffd", "w\ufffdrong", "two\nlines \ufffd", "fine"]
    assert source.skipped == {}
    assert source.repaired == {"invalid_utf8": 2}


@pytest.mark.parametrize("form", ["csv", "ndjson"])
def test_encoding_errors_also_applies_to_labels(tmp_path, make_source, form):
    file = tmp_path / f"train.{form}"
    row = '"a text","y{}s"\n' if form == "csv" else '{{"text":"a text","label":"y{}s"}}\n'
    header = "text,label\n" if form == "csv" else ""
    file.write_bytes((header + row.format("e") + row.format("\udcff")).encode(errors="surrogateescape"))
    settings = {"format": form, "train": [str(file)]}
    _, labels, source = _read(make_source(**settings, encoding_errors="skip"))
    assert (labels, source.label_names, source.skipped) == ([0], ("yes",), {"invalid_utf8": 1})
    _, labels, source = _read(make_source(**settings, encoding_errors="replace"))
    assert (labels, source.label_names) == ([0, 1], ("yes", "y\ufffds"))
    assert source.repaired == {"invalid_utf8": 1}


def test_the_mark_of_invalid_utf8_is_kept_as_text_in_a_valid_file(tmp_path, make_source):
    for form in ("csv", "ndjson", "text"):
        file = _write(tmp_path, form, ["a \ufdd0 b"], ["x"])
        assert _read(make_source(format=form, train=[str(file)], label_column=None))[0] == ["a \ufdd0 b"]


# Files that polars alone would misread silently


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("a text, with a comma,x\nother,y\n", r"line 2: 3 fields, the header has 2"),
        ("one,x\ntorn", r"line 3: 1 fields, the header has 2"),
        ('one,x\n"torn,y\nmore,x\n', r"line 4: unexpected end of data"),
        ('one,x\n"torn and ""quoted""', r"line 3: unexpected end of data"),
        ('"say "hi" to me",x\n', r"line 2: ',' expected after '\"'"),
    ],
)
@pytest.mark.parametrize("label_column", ["label", None])
def test_a_broken_csv_row_is_named_by_its_line(tmp_path, make_source, rows, message, label_column):
    file = tmp_path / "train.csv"
    file.write_text("text,label\n" + rows)
    with pytest.raises(ValueError, match=rf"train\.csv: .*{message}"):
        _read(make_source(train=[str(file)], label_column=label_column))


def test_a_broken_row_deep_in_a_file_is_found(tmp_path, make_source):
    file = tmp_path / "train.csv"
    file.write_text("text,label\n" + '"a, text",x\n' * 200_000 + "one, two,y\n" + '"a, text",x\n')
    with pytest.raises(ValueError, match="line 200,002: 3 fields"):
        _read(make_source(train=[str(file)], label_column=None))


def test_quotes_within_an_unquoted_text_are_kept(tmp_path, make_source):
    file = tmp_path / "train.csv"
    file.write_text('text,label\n5" and 6" wide,x\nsay "hi" to me,y\n')
    assert _read(make_source(train=[str(file)]))[:2] == (['5" and 6" wide', 'say "hi" to me'], [0, 1])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("text,text,label\na,b,x\n", r"train\.csv: has several columns 'text' \(`.*text_column`\)"),
        ("text,label\ra,x\rb,y\r", r"train\.csv: its lines end with a carriage return alone"),
    ],
)
def test_an_ambiguous_header_is_refused(tmp_path, make_source, content, message):
    file = tmp_path / "train.csv"
    file.write_bytes(content.encode())
    with pytest.raises(ValueError, match=message):
        _read(make_source(train=[str(file)], label_column=None))


@pytest.mark.parametrize("form", ["parquet", "csv", "ndjson", "text"])
def test_a_file_name_is_not_a_pattern(tmp_path, make_source, form):
    for name in ("part[1]", "part1"):
        _write(tmp_path, form, [f"the text of {name}"], ["a"], name=name)
    settings = make_source(format=form, train=[str(tmp_path / f"part[[]1].{form}")], label_column=None)
    assert _read(settings)[0] == ["the text of part[1]"]


@pytest.mark.parametrize("name", ["*", "^te.*$"])
def test_a_column_name_is_not_a_pattern(tmp_path, make_source, name):
    file = tmp_path / "train.csv"
    file.write_text(f"text,{name},label\nnot this,this,x\n")
    assert _read(make_source(train=[str(file)], text_column=name))[0] == ["this"]


@pytest.mark.parametrize("form", ["csv", "ndjson", "text"])
@pytest.mark.parametrize(
    ("pack", "kind"),
    [
        (gzip.compress, "is gzip, not text"),
        (lambda content: content.decode().encode("utf-16"), "looks like UTF-16"),
        (lambda content: content.decode().encode("utf-16-be"), "looks like UTF-16"),
    ],
)
def test_compressed_and_utf16_files_are_always_refused(tmp_path, make_source, form, pack, kind):
    file = _write(tmp_path, form)
    file.write_bytes(pack(file.read_bytes()))
    for errors in ("refuse", "skip", "replace"):
        with pytest.raises(ValueError, match=rf"train\.{form}: {kind}"):
            _read(make_source(format=form, train=[str(file)], label_column=None, encoding_errors=errors))


@pytest.mark.parametrize("form", ["csv", "ndjson", "text"])
def test_a_byte_order_mark_is_stripped(tmp_path, make_source, form):
    file = _write(tmp_path, form)
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    assert _read(make_source(format=form, train=[str(file)], label_column=None))[0] == TEXTS


def test_half_a_character_in_json_is_invalid_utf8(tmp_path, make_source):
    file = tmp_path / "train.ndjson"
    file.write_text('{"text": "a \\ud83d b"}\n{"text": "\\\\ud83d \\ud83d\\ude00"}\n{"text": "\\udc00"}\n')
    settings = {"format": "ndjson", "train": [str(file)], "label_column": None}
    with pytest.raises(ValueError, match=r"train\.ndjson: line 1 is not valid UTF-8.*lone surrogate.*skip"):
        _read(make_source(**settings))
    texts, _, source = _read(make_source(**settings, encoding_errors="skip"))
    assert (texts, source.skipped) == (["\\ud83d 😀"], {"invalid_utf8": 2})
    texts, _, source = _read(make_source(**settings, encoding_errors="replace"))
    assert (texts, source.repaired) == (["a \ufffd b", "\\ud83d 😀", "\ufffd"], {"invalid_utf8": 2})


def test_a_key_given_twice_is_refused(tmp_path, make_source):
    file = tmp_path / "train.ndjson"
    file.write_text('{"text": "a", "label": "text"}\n{"text": "b", "text": "c", "label": "x"}\n')
    with pytest.raises(ValueError, match=r"train\.ndjson: line 2 gives 'text' twice"):
        _read(make_source(format="ndjson", train=[str(file)]))


def test_mixed_types_in_ndjson_lose_no_row(tmp_path, make_source):
    file = tmp_path / "train.ndjson"
    rows = [{"text": "a", "label": 1, "other": [1]}] * 150 + [{"text": "b", "label": "x", "other": {"a": 1}}]
    file.write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"other": "y"}, *rows]))
    texts, labels, source = _read(make_source(format="ndjson", train=[str(file)]))
    assert len(texts) == 302
    assert labels == ([0] * 150 + [1]) * 2
    assert source.skipped == {"null_text": 1}


def test_a_broken_ndjson_line_is_named(tmp_path, make_source):
    file = tmp_path / "train.ndjson"
    file.write_text('{"text": "a"}\n' * 300 + '["b"]\n')
    with pytest.raises(ValueError, match=r"train\.ndjson: .*line 301: a JSON list, not an object"):
        _read(make_source(format="ndjson", train=[str(file)], label_column=None))


@pytest.mark.parametrize(
    ("labels", "expected", "names"),
    [
        ([0.0, float("nan"), 1.0], [0, None, 1], ("0", "1")),  # NaN stands for a missing number
        ([2**60, 2**60 + 1, 2**60], [0, 1, 0], (str(2**60), str(2**60 + 1))),
        (["9" * 400, "1", "1"], [1, 0, 0], ("1", "9" * 400)),  # beyond any float
    ],
)
def test_extreme_numbers_as_labels(tmp_path, make_source, labels, expected, names):
    file = _write(tmp_path, "parquet", TEXTS[:3], labels)
    _, found, source = _read(make_source(format="parquet", train=[str(file)]))
    assert found == expected
    assert source.label_names == names


def test_a_list_as_label_is_refused(tmp_path, make_source):
    file = _write(tmp_path, "parquet", labels=[["a"], ["b"], ["a"], ["b"]])
    with pytest.raises(ValueError, match=r"train\.parquet: column 'label' holds List.*not one label a row"):
        _read(make_source(format="parquet", train=[str(file)]))


def test_an_unusable_path_is_named(make_source):
    with pytest.raises(ValueError, match=r"`corpus\.target\.source\.train`: .* is no usable path"):
        _read(make_source(train=["x" * 5_000]))


def test_a_damaged_parquet_file_is_refused_or_read_to_its_last_row(tmp_path, make_source):
    """polars panics at some of these, with a BaseException."""
    frame = pl.DataFrame(
        {"text": [f"a text {number}" * 9 for number in range(300)], "label": ["a", "b"] * 150}
    )
    frame.write_parquet(tmp_path / "whole.parquet", compression="uncompressed")
    whole, draw = (tmp_path / "whole.parquet").read_bytes(), random.Random(0)
    file, messages = tmp_path / "train.parquet", []
    for _ in range(300):
        damaged = bytearray(whole)
        damaged[-draw.randrange(9, 1_200)] ^= 1 << draw.randrange(8)
        file.write_bytes(damaged)
        try:
            texts, _, source = _read(make_source(format="parquet", train=[str(file)]))
        except ValueError as error:
            messages.append(str(error))
        else:
            assert len(texts) + sum(source.skipped.values()) == 300
    assert len(messages) > 50
    assert all("train.parquet: " in message for message in messages)
