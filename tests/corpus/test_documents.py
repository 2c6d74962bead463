from __future__ import annotations

import json
import shutil
from collections import Counter

import pytest

from pipeline.corpus import documents, sources, split_files
from pipeline.corpus.document_files import read_documents, read_documents_info
from pipeline.corpus.documents import write_documents


@pytest.fixture
def prepare(tmp_path, make_corpus):
    """Return a function that writes documents and returns {split: [(text, label)]} and their info."""

    def run(seed=0, **settings):
        folder = tmp_path / f"documents-{len(list(tmp_path.glob('documents-*')))}"
        folder.mkdir()
        corpus = make_corpus(**settings)
        source = sources.open_source(corpus.source, "corpus.target.source")
        info = write_documents(source, corpus, seed=seed, key="corpus.target", folder=folder)
        assert read_documents_info(folder) == info
        assert {file.name for file in folder.iterdir()} == {
            "documents.json", "manifest.json", *(f"{split}.parquet" for split in info.splits)
        }  # fmt: skip
        return {split: _rows(folder, split) for split in info.splits}, info

    return run


def _rows(folder, split):
    return [
        pair for rows in read_documents(folder, split) for pair in zip(rows.texts, rows.labels, strict=True)
    ]


def _csv(file, rows):
    file.write_text("text,label\n" + "".join(f"{text},{label}\n" for text, label in rows))
    return [str(file)]


def _copy(files):
    (name,) = files
    return [shutil.copyfile(name, f"{name}.copy.csv")]


def test_splits_are_stratified_disjoint_and_complete(prepare, labelled_csv, sentences):
    splits, info = prepare(train=[str(labelled_csv)], fractions=(0.1, 0.2))
    assert {split: Counter(label for _, label in rows) for split, rows in splits.items()} == {
        "train": {0: 140, 1: 70},
        "validation": {0: 20, 1: 10},
        "test": {0: 40, 1: 20},
    }
    assert sorted(text for rows in splits.values() for text, _ in rows) == sorted(sentences)
    assert info.label_names == ("no", "yes")
    for split, rows in splits.items():
        size = info.splits[split]
        assert size.num_documents == len(rows)
        assert size.num_words == sum(len(text.split()) for text, _ in rows)
        assert size.num_bytes == sum(len(text.encode()) for text, _ in rows)


def test_splits_depend_on_the_seed_and_not_on_order_or_batches(
    prepare, labelled_csv, tmp_path, sentences, monkeypatch
):
    settings = {"train": [str(labelled_csv)], "fractions": (0.1, 0.1)}
    splits, _ = prepare(**settings)
    assert prepare(**settings)[0] == splits
    assert prepare(seed=1, **settings)[0]["test"] != splits["test"]
    monkeypatch.setattr("pipeline.corpus.source.BATCH_ROWS", 7)
    monkeypatch.setattr(split_files, "ROW_GROUP_BYTES", 500)
    assert prepare(**settings)[0] == splits
    lines = labelled_csv.read_text().splitlines()
    labelled_csv.write_text("\n".join([lines[0], *reversed(lines[1:])]) + "\n")
    assert {split: sorted(rows) for split, rows in prepare(**settings)[0].items()} == {
        split: sorted(rows) for split, rows in splits.items()
    }


def test_given_splits_are_used_as_given(prepare, labelled_csv, tmp_path):
    test_rows = [("a test text", "no"), ("another", "yes"), ("not labelled", "")]
    test = _csv(tmp_path / "test.csv", test_rows)
    splits, info = prepare(train=[str(labelled_csv)], test=test, fractions=(0.1, 0.2))
    assert splits["test"] == [("a test text", 0), ("another", 1)]
    assert {split: len(rows) for split, rows in splits.items()} == {"train": 270, "validation": 30, "test": 2}
    assert info.skipped == {"no_label": 1}


def test_a_label_in_test_that_train_lacks_is_refused(prepare, labelled_csv, tmp_path):
    test = _csv(tmp_path / "test.csv", [("a", "no"), ("b", "perhaps"), ("c", "perhaps")])
    message = r"`corpus\.target\.source\.test`: 2 rows have labels that no training row has: 'perhaps' \(2\)"
    with pytest.raises(ValueError, match=message):
        prepare(train=[str(labelled_csv)], test=test)


def test_max_documents_takes_a_seeded_subset_that_grows(prepare, labelled_csv):
    def train(count, **settings):
        splits, _ = prepare(train=[str(labelled_csv)], max_documents=count, fractions=(0.1, 0.1), **settings)
        return {pair for rows in splits.values() for pair in rows}

    assert len(train(50)) == 50
    assert train(50) < train(100)
    assert train(50) == train(50)
    assert train(50) != train(50, seed=1)
    assert len(train(1_000)) == 300


def test_skipped_rows_are_counted_exactly_and_unlabelled_rows_kept_apart(prepare, tmp_path):
    file = tmp_path / "train.csv"
    file.write_text(
        'text,label\na text,x\n,x\n"",y\n"  <br />\x01",y\nb text,y\nc text,\nd text,-1\ne text,x\n'
    )
    judged = _csv(tmp_path / "judged.csv", [("another text", "x")])
    splits, info = prepare(train=[str(file)], validation=judged, test=_copy(judged), label_names=["x", "y"])
    assert splits["train"] == [("a text", 0), ("b text", 1), ("e text", 0)]
    assert splits["unlabelled"] == [("c text", None), ("d text", None)]
    assert info.skipped == {"null_text": 1, "empty_text": 2}


def test_text_is_normalised(prepare, tmp_path):
    train = _csv(tmp_path / "train.csv", [("cafe\u0301<br />  bar", "x"), ("b", "y")])
    judged = _csv(tmp_path / "judged.csv", [("another text", "x")])
    splits, _ = prepare(train=train, validation=judged, test=_copy(judged))
    assert splits["train"][0] == ("caf\u00e9 bar", 0)


def test_a_corpus_without_labels_is_split_too(prepare, labelled_csv):
    splits, info = prepare(train=[str(labelled_csv)], label_column=None, fractions=(0.1, 0.0))
    assert {split: len(rows) for split, rows in splits.items()} == {"train": 270, "validation": 30}
    assert info.label_names is None


def test_unlabelled_text_needs_no_labels_and_any_it_has_are_ignored(prepare, labelled_csv, tmp_path):
    plain = tmp_path / "plain.csv"
    plain.write_text("text,id\nno label here,1\n")
    other = _csv(tmp_path / "other.csv", [("labelled otherwise", "perhaps"), ("and so", "-1")])
    splits, info = prepare(train=[str(labelled_csv)], unlabelled=[str(plain), *other], fractions=(0.1, 0.1))
    assert [text for text, _ in splits["unlabelled"]] == ["no label here", "labelled otherwise", "and so"]
    assert info.label_names == ("no", "yes")


# Bad input


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"fractions": (0.1, 0.0)}, r"no test split.* `corpus\.target\.split\.test` is 0"),
        ({"fractions": (0.0, 0.1)}, r"no validation split.* `corpus\.target\.split\.validation` is 0"),
        ({"fractions": (0.0, 0.0), "label_column": None}, r"no validation split"),
    ],
)
def test_a_corpus_without_a_validation_or_test_split_is_refused(prepare, labelled_csv, settings, message):
    with pytest.raises(ValueError, match=message):
        prepare(train=[str(labelled_csv)], **settings)


def test_a_test_file_without_a_label_is_refused(prepare, labelled_csv, tmp_path):
    test = _csv(tmp_path / "test.csv", [("a text", ""), ("another", "")])
    with pytest.raises(ValueError, match=r"no row of `corpus\.target\.source\.test` has a text and a label"):
        prepare(train=[str(labelled_csv)], test=test, fractions=(0.1, 0.0))


def test_a_column_of_texts_as_labels_is_refused_with_a_short_message(prepare, labelled_csv):
    with pytest.raises(
        ValueError, match=r"and 295 more.*`corpus\.target\.source\.label_column` the right"
    ) as told:
        prepare(train=[str(labelled_csv)], text_column="label", label_column="text", fractions=(0.1, 0.1))
    assert len(str(told.value)) < 700


def test_one_class_only_is_refused(prepare, tmp_path):
    train = _csv(tmp_path / "train.csv", [("a", "x"), ("b", "x"), ("c", "")])
    message = r"`corpus\.target\.source\.label_column`: 2 labelled training rows hold only the class 'x'"
    with pytest.raises(ValueError, match=message):
        prepare(train=train)


def test_a_class_with_only_empty_texts_does_not_count(prepare, tmp_path):
    train = _csv(tmp_path / "train.csv", [("a", "x"), ("b", "x"), (" ", "y"), ("", "y")])
    with pytest.raises(ValueError, match="2 labelled training rows hold only the class 'x'"):
        prepare(train=train)


def test_a_class_with_fewer_rows_than_splits_is_refused(prepare, tmp_path):
    train = _csv(tmp_path / "train.csv", [("a", "x"), ("b", "x"), ("c", "x"), ("d", "y"), ("e", "y")])
    message = (
        r"`corpus\.target\.split`: each of train, validation, test needs .* 3 in all; too few have 'y' \(2\)"
    )
    with pytest.raises(ValueError, match=message):
        prepare(train=train, fractions=(0.1, 0.1))


def test_a_class_that_is_small_for_another_spelling_is_said_to_be_so(prepare, tmp_path):
    rows = [
        (word, label)
        for word, label in zip("abcdef", ["bad", "bad", "bad", " BAD", "good", "good"], strict=True)
    ]
    train = _csv(tmp_path / "train.csv", [*rows, ("g", "good")])
    with pytest.raises(ValueError, match=r"differ only in case or blanks: 'bad' and ' BAD'|' BAD' and 'bad'"):
        prepare(train=train, fractions=(0.1, 0.1))


def test_a_label_name_without_rows_is_refused(prepare, tmp_path):
    train = _csv(tmp_path / "train.csv", [("a", 0), ("b", 1)])
    with pytest.raises(ValueError, match=r"no training row has the label 'z'; .*source\.label_names"):
        prepare(train=train, label_names=["x", "y", "z"])


def test_a_corpus_without_usable_documents_is_refused_with_the_reasons(prepare, tmp_path):
    file = tmp_path / "train.csv"
    file.write_text('text,label\n"",\n,\n')
    with pytest.raises(ValueError, match=r"no documents to train on; left out: 1 empty_text, 1 null_text"):
        prepare(train=[str(file)], label_column=None)


def test_too_few_documents_for_the_splits_are_refused(prepare, tmp_path):
    train = _csv(tmp_path / "train.csv", [("a", "x")])
    with pytest.raises(ValueError, match="1 documents for the splits train, validation"):
        prepare(train=train, label_column=None, fractions=(0.1, 0.0))


def test_missing_or_damaged_documents_are_named(prepare, labelled_csv, tmp_path):
    with pytest.raises(ValueError, match=r"documents\.json: no such file; run the stage `prepare`"):
        read_documents_info(tmp_path)
    prepare(train=[str(labelled_csv)], fractions=(0.1, 0.1))
    folder = tmp_path / "documents-0"
    (folder / "documents.json").write_text(json.dumps({"label_names": None}))
    with pytest.raises(ValueError, match=r"documents\.json is .*run the stage `prepare` again"):
        read_documents_info(folder)
    (folder / "train.parquet").write_bytes(b"torn")
    with pytest.raises(ValueError, match=r"train\.parquet is .*run the stage `prepare` again"):
        next(read_documents(folder, "train"))


@pytest.mark.parametrize(
    ("entry", "recorded"),
    [
        ("https://me:word@host:8/a.csv?token=x&b=1", "https://host:8/a.csv"),
        ("s3://KEY:SECRET@bucket/a/*.parquet", "s3://bucket/a/*.parquet"),
        ("https://blob/a.csv?sig=x%3D", "https://blob/a.csv"),
        ("hf://datasets/me/x@main/a.parquet", "hf://datasets/me/x@main/a.parquet"),
        ("sources/target/review-?.csv", "sources/target/review-?.csv"),
    ],
)
def test_recorded_addresses_hold_no_credentials(entry, recorded):
    assert documents._plain_address(entry) == recorded
