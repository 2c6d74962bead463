from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pipeline.artifacts.model_folder import export_model, load_classifier
from pipeline.artifacts.shipped import (
    FrozenEncoder,
    Labelling,
    ShippedProbe,
    ship,
    write_encoder,
    write_probe,
    write_tfidf,
)
from pipeline.corpus import sentencepiece_tokenizer, word_tokenizer
from pipeline.corpus.settings import Normalise, SentencepieceTokenizer, WordTokenizer
from pipeline.corpus.settings import TrainedTokenizer as TokenizerSettings
from pipeline.corpus.tokenizer_kinds import load_tokenizer, train
from pipeline.evaluation.blend import Share
from pipeline.evaluation.probe import Reading, fit_probe, num_features, pooled_features
from pipeline.evaluation.settings import Probe
from pipeline.evaluation.tfidf import fit_tfidf
from pipeline.evaluation.with_tfidf import fit_joint
from pipeline.inference import predict
from pipeline.inference.predicted_lines import predict_lines
from pipeline.training import precision
from pipeline.training.cards import HeadCard, ModelCard, build_classifier, build_encoder, form_of
from pipeline.training.classifier import predict_logits
from pipeline.training.frozen_features import flat

CONFIG = {
    "embedding_dim": 6, "hidden_dim": 8, "num_layers": 2, "tie_weights": True, "embedding_dropout": 0.0,
    "input_dropout": 0.0, "hidden_dropout": 0.0, "output_dropout": 0.0, "weight_dropout": 0.0,
}  # fmt: skip
NORMALISE = Normalise(
    unicode="NFC", html_breaks=True, control_characters=True, collapse_whitespace=True, lowercase=False
)


ALPHABET = "abcdefghijklmnopqrst"
PIECES = SentencepieceTokenizer(
    kind="char", vocab_size=280, character_coverage=1.0, byte_fallback=True, sample_mb=1.0, threads=1
)
WORDS = WordTokenizer(
    kind="words", corpora=["target"], vocab_size=40, lowercase=True, min_count=1, sample_mb=1.0, threads=1
)


def export(
    folder: Path,
    tokenizer: TokenizerSettings = PIECES,
    *,
    seed: int = 0,
    labels: tuple[str, ...] = ("no", "yes"),
    normalise: Normalise = NORMALISE,
    **head_of_texts: Any,
) -> Path:
    """Write an untrained classifier into the folder."""
    pieces = train([f"{ALPHABET} {ALPHABET[::-1]} {' '.join(ALPHABET)}"] * 20, tokenizer)
    file = folder.parent / pieces.FILE
    file.write_bytes(pieces.content)
    if "pair_order" in head_of_texts or "num_choices" in head_of_texts:
        head_of_texts["delimiter_id"] = pieces.eos_id
    head = HeadCard(labels, "concat", 5, (0.0, 0.0), 7, 40, normalise.model_dump(), **head_of_texts)
    card = ModelCard(
        "classifier", "awd_lstm", CONFIG, pieces.vocab_size, pieces.pad_id, "forward", pieces.sha256,
        "finetune_classifier", "key", head,
    )  # fmt: skip
    torch.manual_seed(seed)
    classifier = build_classifier(build_encoder(card)[0], head)
    tensors = {name: torch.randn_like(tensor) for name, tensor in classifier.state_dict().items()}
    tensors = {name: tensor.abs() if "var" in name else tensor for name, tensor in tensors.items()}
    export_model(folder, tensors, card, extra_files=[file])
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The folder of an untrained classifier."""
    return export(tmp_path_factory.mktemp("model") / "ulmfit")


@pytest.fixture(scope="module")
def of_words(tmp_path_factory):
    """Another, with other weights and a tokenizer of another kind."""
    return export(tmp_path_factory.mktemp("model") / "vectors", WORDS, seed=1)


def copied(source: Path) -> Callable[[Path], None]:
    def copy(aside: Path) -> None:
        shutil.copytree(source, aside)

    return copy


def shipped(folder: Path, parts: dict[Path, float], temperature: float = 1.0) -> Path:
    ship(
        folder,
        "blend",
        {source.name: Share(weight, temperature) for source, weight in parts.items()},
        {source.name: copied(source) for source in parts},
    )
    return folder


@pytest.fixture
def predictor(model):
    return predict.Predictor.load(model, precision="fp32")


TEXTS = ["a b c", "", "  ", "abc " * 60, "日本 😀", "a\ud800b", "x\x00y", "<br />"]


def test_any_text_is_labelled_and_alone_as_in_company(predictor):
    together = predictor.predict(TEXTS)
    for text, prediction in zip(TEXTS, together, strict=True):
        assert sum(prediction.probabilities.values()) == pytest.approx(1)
        assert prediction.label == max(prediction.probabilities, key=prediction.probabilities.__getitem__)
        (alone,) = predictor.predict([text])
        assert alone.probabilities == pytest.approx(prediction.probabilities, abs=1e-5)
    assert predictor.predict([]) == []


def probabilities(*folders: Path) -> np.ndarray:
    found = predict.Predictor.load(*folders, precision="fp32").predict(TEXTS)
    return np.array([list(each.probabilities.values()) for each in found])


def test_a_shipped_classifier_gives_the_weighted_mean_of_its_parts_each_with_its_tokenizer(
    model, of_words, tmp_path
):
    ones, others = probabilities(model), probabilities(of_words)
    assert np.abs(ones - others).max() > 0.1
    whole = shipped(tmp_path / "classifier", {model: 0.75, of_words: 0.25})
    assert probabilities(whole) == pytest.approx(0.75 * ones + 0.25 * others)
    assert {path.name for path in whole.iterdir()} == {"classifier.json", "ulmfit", "vectors"}
    # It needs nothing but its folder.
    moved = shutil.move(whole, tmp_path / "moved")
    assert probabilities(Path(moved)) == pytest.approx(0.75 * ones + 0.25 * others)
    alone = shipped(tmp_path / "alone", {of_words: 1.0})
    assert probabilities(alone) == pytest.approx(others)
    flatter = shipped(tmp_path / "flatter", {of_words: 1.0}, temperature=2.0)
    roots = np.sqrt(others)
    assert probabilities(flatter) == pytest.approx(roots / roots.sum(1, keepdims=True))


PAIRS = ["aa bb cc", "aa bb", "dd ee ff", "dd ee", "aa cc", "ff dd"]
LABELS = np.array([0, 0, 1, 1, 0, 1])
LABELLING = Labelling(("no", "yes"), NORMALISE.model_dump())


@pytest.mark.parametrize("with_tfidf", [False, True])
@pytest.mark.parametrize("names", [["ulmfit"], ["ulmfit", "other"]])
def test_a_shipped_probe_gives_the_probabilities_of_the_fitted_one(tmp_path, with_tfidf, names):
    """Of two encoders, each has a tokenizer of its own."""
    device, asked = torch.device("cpu"), ["aa bb cc", "ff", "cc dd"]
    encoders, tokenizers, pooled = {}, {}, {}
    for number, name in enumerate(names):
        tokenizer = train(PAIRS[number:], WORDS)
        tokenizers[name] = tmp_path / name / tokenizer.FILE
        tokenizers[name].parent.mkdir()
        tokenizers[name].write_bytes(tokenizer.content)
        card = ModelCard(
            "language_model", "awd_lstm", CONFIG, tokenizer.vocab_size, tokenizer.pad_id, "forward",
            tokenizer.sha256, "finetune_lm", "key", None,
        )  # fmt: skip
        torch.manual_seed(number)
        encoder = build_encoder(card)[0]
        with torch.no_grad():
            encoder.embedding.weight.mul_(20)
        settings = Probe(
            layers=[-1], combine="concat", pooling=["mean", "idf_mean"] if number == 0 else ["max"]
        )
        reading = Reading("forward", 40, 7, tokenizer.pad_id, frozenset({tokenizer.pad_id}))
        idf_V = np.linspace(1, 3, tokenizer.vocab_size).astype(np.float32)
        encoders[name] = FrozenEncoder(card, encoder.state_dict(), torch.from_numpy(idf_V), settings, reading)
        pooled[name] = [
            pooled_features(encoder, tokenizer.encode_batch(texts), settings, reading, idf_V, device)
            for texts in (PAIRS, asked)
        ]
    known, new = ([each[place] for each in pooled.values()] for place in (0, 1))
    if with_tfidf:
        joint = fit_joint(PAIRS, known, LABELS, 2, seed=0)
        wanted, probe = joint.probabilities(asked, new), ShippedProbe(encoders, joint)
    else:
        fitted = fit_probe(known, LABELS, 2, seed=0)
        wanted, probe = fitted.probabilities(new), ShippedProbe(encoders, fitted)
    write_probe(tmp_path / "probe", probe, LABELLING, tokenizers)
    predictor = predict.Predictor.load(tmp_path / "probe", precision="fp32")
    found = [list(each.probabilities.values()) for each in predictor.predict(asked)]
    assert np.array(found) == pytest.approx(wanted, abs=1e-6)
    assert np.ptp(wanted[:, 0]) > 0.1
    shutil.rmtree(tmp_path / "probe" / names[-1])
    with pytest.raises(ValueError, match=f"{names[-1]}.*missing"):
        predict.Predictor.load(tmp_path / "probe")


def test_a_classifier_with_features_of_another_head_start_reads_both_texts_by_their_own_tokenizer(tmp_path):
    device, tokenizer = torch.device("cpu"), train(PAIRS, WORDS)
    file = tmp_path / "words" / tokenizer.FILE
    file.parent.mkdir()
    file.write_bytes(tokenizer.content)
    card = ModelCard(
        "language_model", "awd_lstm", CONFIG, tokenizer.vocab_size, tokenizer.pad_id, "forward",
        tokenizer.sha256, "finetune_lm", "key", None,
    )  # fmt: skip
    encoder = build_encoder(card)[0].eval()
    with torch.no_grad():
        encoder.embedding.weight.mul_(20)
    settings = Probe(layers=[-1], combine="concat", pooling=["mean", "idf_mean"])
    reading = Reading("forward", 40, 7, tokenizer.pad_id, frozenset({tokenizer.pad_id}))
    idf_V = np.linspace(1, 3, tokenizer.vocab_size).astype(np.float32)
    pooled = pooled_features(encoder, tokenizer.encode_batch(PAIRS), settings, reading, idf_V, device)
    assert num_features(encoder, settings, reading) == pooled[0].size
    folder = export(tmp_path / "model", beside="vectors", beside_width=pooled[0].size)
    with pytest.raises(ValueError, match=r"beside.*missing"):
        predict.Predictor.load(folder)
    frozen = FrozenEncoder(card, encoder.state_dict(), torch.from_numpy(idf_V), settings, reading)
    write_encoder(folder / "beside", frozen, file)
    found = predict.Predictor.load(folder, precision="fp32").probabilities(PAIRS)
    model, its_card, _ = load_classifier(folder)
    ids = load_tokenizer(folder).encode_batch(PAIRS)
    wanted = predict_logits(model, ids, form_of(its_card), device, beside_NG=flat(pooled)).double().softmax(1)
    assert found == pytest.approx(wanted.numpy(), abs=1e-6)
    seen = predict.Predictor.load(folder, precision="fp32").features(PAIRS)
    assert seen is not None
    assert seen[:, model.pooled_width :] == pytest.approx(flat(pooled).numpy(), abs=1e-6)  # for drift, both
    without = predict_logits(model, ids, form_of(its_card), device, beside_NG=flat(pooled * 0)).softmax(1)
    assert np.abs(np.log(without.numpy() / found)).max() > 0.1
    wider = export(tmp_path / "wider", beside="vectors", beside_width=7)
    write_encoder(wider / "beside", frozen, file)
    with pytest.raises(ValueError, match=f"gives {pooled[0].size} features, but the classifier reads 7"):
        predict.Predictor.load(wider)


def test_shipped_tf_idf_gives_the_probabilities_of_the_fitted_one_and_is_refused_if_torn(tmp_path):
    texts = ["salt dough", "flour dough", "wave tide", "wave reef"]
    fitted = fit_tfidf(texts, np.array([0, 0, 1, 1]), 2, seed=0)
    write_tfidf(tmp_path / "tfidf", fitted, LABELLING)
    predictor = predict.Predictor.load(tmp_path / "tfidf", precision="fp32")
    found = [list(each.probabilities.values()) for each in predictor.predict(["dough", "a tide"])]
    assert np.array(found) == pytest.approx(fitted.probabilities(["dough", "a tide"]))
    (tmp_path / "tfidf/terms.txt").write_text("dough\n", encoding="utf-8")
    with pytest.raises(ValueError, match="tfidf"):
        predict.Predictor.load(tmp_path / "tfidf", precision="fp32")


def test_classifiers_that_are_given_together_count_alike_however_many_parts_they_have(
    model, of_words, tmp_path
):
    ones, others = probabilities(model), probabilities(of_words)
    assert probabilities(model, of_words) == pytest.approx((ones + others) / 2)
    blend = shipped(tmp_path / "blend", {model: 0.75, of_words: 0.25})
    wanted = (0.75 * ones + 0.25 * others + others) / 2
    assert probabilities(blend, of_words) == pytest.approx(wanted)


def test_a_tokenizer_that_parts_share_encodes_once(model, of_words, tmp_path, monkeypatch):
    again = export(tmp_path / "again", seed=2)
    encoded = []

    def counted(kind, genuine):
        def encode_batch(self, *arguments):
            encoded.append(kind)
            return genuine(self, *arguments)

        return encode_batch

    kinds = (sentencepiece_tokenizer.SentencepieceTokenizer, word_tokenizer.WordTokenizer)
    for kind in kinds:
        monkeypatch.setattr(kind, "encode_batch", counted(kind, kind.encode_batch))
    predict.Predictor.load(model, of_words, again, precision="fp32").predict(TEXTS)
    assert encoded == list(kinds)


def test_parts_that_do_not_match_are_refused(model, tmp_path):
    labels = export(tmp_path / "labels", labels=("no", "maybe"))
    with pytest.raises(ValueError, match=r"the classifiers in .*labels and .*ulmfit have different labels"):
        predict.Predictor.load(model, labels)
    lower = export(tmp_path / "lower", normalise=NORMALISE.model_copy(update={"lowercase": True}))
    with pytest.raises(ValueError, match=r"lower and .*ulmfit read differently normalised text"):
        predict.Predictor.load(model, lower)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"parts": {}}', '{"parts": {"ulmfit": "much"}}'])
def test_a_list_of_parts_that_is_damaged_is_named(model, tmp_path, content):
    folder = shipped(tmp_path / "classifier", {model: 1.0})
    (folder / "classifier.json").write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=r"classifier\.json is damaged .*; run the stage `evaluate` again"):
        predict.Predictor.load(folder)


def test_input_is_read_ahead_within_bounds_and_each_line_answered_once(model, monkeypatch, tmp_path):
    monkeypatch.setattr(predict, "_BATCH_TEXTS", 4)
    monkeypatch.setattr(predict, "_BATCH_CHARACTERS", 30)
    sizes = []
    genuine = predict.Predictor.probabilities

    def watched(self, texts):
        sizes.append((len(texts), sum(map(len, texts))))
        return genuine(self, texts)

    monkeypatch.setattr(predict.Predictor, "probabilities", watched)
    lines = ["ab"] * 9 + ["c" * 100] + ["d" * 20] * 3
    file = tmp_path / "texts.txt"
    file.write_text("".join(f"{line}\n" for line in lines))
    answers = [json.loads(line) for line in predict_lines([], file, [model], "fp32", "json_with_text")]
    assert [answer["text"] for answer in answers] == lines
    assert sizes == [(4, 8), (4, 8), (2, 102), (2, 40), (1, 20)]


def test_both_precisions_say_nearly_the_same(model, monkeypatch):
    def never(device):
        raise AssertionError("nothing is to be measured where the precision is given")

    monkeypatch.setattr(precision, "fast_dtype", never)
    exact, rounded = (
        predict.Predictor.load(model, precision=name).predict(TEXTS) for name in ("fp32", "bf16")
    )
    for one, other in zip(exact, rounded, strict=True):
        assert one.probabilities == pytest.approx(other.probabilities, abs=0.1)


def _answers(model, file, content):
    file.write_bytes(content)
    lines = predict_lines([], file, [model], "fp32", "json_with_text")
    return [json.loads(line)["text"] for line in lines]


@pytest.mark.parametrize(
    ("content", "texts"),
    [
        (b"", []),
        (b"\n", [""]),
        (b"a\n\n  \nb", ["a", "", "  ", "b"]),
        (b"a\r\nb\r\n", ["a", "b"]),
        (b"a\rb\x0b\x0cc\n", ["a\rb\x0b\x0cc"]),  # line ends for Python, not for wc
        ("a\u2028b\x85c\n".encode(), ["a\u2028b\x85c"]),
        (b"a\x00b\n", ["a\x00b"]),
        (b"\xef\xbb\xbfa\n\xef\xbb\xbfb\n", ["a", "\ufeffb"]),
        (b"a " * 100_000 + b"\nb\n", ["a " * 100_000, "b"]),
    ],
)
def test_a_line_is_what_a_line_feed_ends(model, tmp_path, content, texts):
    assert _answers(model, tmp_path / "texts.txt", content) == texts


def test_a_line_that_is_no_utf8_is_named_by_its_number(model, tmp_path):
    with pytest.raises(ValueError, match=r"texts\.txt: line 3 is not UTF-8"):
        _answers(model, tmp_path / "texts.txt", b"a\nb\nc\xff\n")


def test_a_folder_or_nothing_as_a_file_is_refused(model, tmp_path):
    for file in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(ValueError, match=f"{file.name}: cannot be read: (Is a directory|No such file)"):
            list(predict_lines([], file, [model], "fp32"))


def test_an_argument_that_is_no_utf8_is_answered_in_utf8(model):
    (answer,) = predict_lines(["a\udcffb"], None, [model], "fp32", "json_with_text")
    assert json.loads(answer.encode())["text"] == "a?b"


@pytest.mark.parametrize(
    ("content", "texts"), [(b"a\n\xe6\x97\xa5\n", ["a", "日"]), (b"", []), (b"a\nb\xff\n", None)]
)
def test_any_bytes_on_standard_input_are_answered_or_refused(model, content, texts):
    command = [
        sys.executable,
        "-m",
        "pipeline",
        "predict",
        "--model",
        str(model),
        "--precision",
        "fp32",
        "--with-text",
    ]
    # An output encoding that cannot represent the answers.
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, input=content, capture_output=True, env=environment)
    assert done.returncode == (2 if texts is None else 0), done.stderr.decode()
    if texts is None:
        assert done.stderr.decode().startswith("headstart: standard input: line 2 is not UTF-8")
    else:
        assert [json.loads(line)["text"] for line in done.stdout.splitlines()] == texts


def test_loading_a_classifier_does_not_load_the_compiler_of_torch(model):
    """Loading it takes two of the seven seconds until the first answer."""
    code = f"""
import sys
from pathlib import Path
from pipeline.inference.predict import Predictor
Predictor.load(Path({str(model)!r}), precision="fp32").predict(["a b"])
print("torch._dynamo" in sys.modules)
"""
    root = Path(__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, text=True, capture_output=True, check=True)
    assert done.stdout.split() == ["False"]


def test_a_line_is_one_line_and_moves_no_cursor_whatever_the_text(model):
    texts = ["a\x1b[2J", "b\x9b31mred\x7f", "c\u2028d\u2029e\x85f"]
    lines = list(predict_lines(texts, None, [model], "fp32", "json_with_text"))
    assert [json.loads(line)["text"] for line in lines] == texts
    assert all(line.isprintable() and len(line.splitlines()) == 1 for line in lines)


def test_a_text_without_words_gets_no_label_and_no_text_is_repeated_unless_asked(model):
    known, empty = map(json.loads, predict_lines(["a b", " \t"], None, [model], "fp32"))
    assert known.keys() == {"label", "probabilities"}
    assert known["label"] in known["probabilities"]
    assert empty == {"label": None, "probabilities": None}
    only = list(predict_lines(["a b", ""], None, [model], "fp32", "labels"))
    assert only == [known["label"], ""]


def test_without_a_classifier_the_message_says_what_to_do(tmp_path):
    with pytest.raises(ValueError, match="no classifier is there; run `dvc repro` in a headstart project"):
        list(predict_lines(["a"], None, [tmp_path / "classifier"], "fp32"))


# ----------------------------------------------------------------------------------- several texts


@pytest.mark.parametrize("order", ["given", "both"])
def test_a_pair_is_labelled_by_both_texts_and_by_their_order(tmp_path, order):
    pairs = predict.Predictor.load(export(tmp_path / "pairs", pair_order=order), precision="fp32")
    one, other, exchanged = pairs.predict([("a b c", "x y"), ("a b c", "z z"), ("x y", "a b c")])
    assert one.probabilities != other.probabilities
    same = one.probabilities == pytest.approx(exchanged.probabilities, rel=1e-5)
    assert same == (order == "both")
    padded = pairs.predict([(" a  b c", "x\x1ey")])[0]  # normalised as in training
    assert padded.probabilities == pytest.approx(one.probabilities, rel=1e-5)


def test_the_best_of_several_answers_is_the_label(tmp_path):
    folder = export(tmp_path / "choices", labels=("first", "second", "third"), num_choices=3)
    asked = predict.Predictor.load(folder, precision="fp32")
    one, turned = asked.predict([("a b", "c", "x y z", "b"), ("a b", "x y z", "b", "c")])
    assert one.probabilities["first"] == pytest.approx(turned.probabilities["third"], rel=1e-5)
    assert one.probabilities["second"] == pytest.approx(turned.probabilities["first"], rel=1e-5)
    assert sum(one.probabilities.values()) == pytest.approx(1)


def test_pairs_are_given_with_a_tab_between_them(tmp_path):
    folder = export(tmp_path / "pairs", pair_order="given")
    said = list(predict_lines(["a b\tc", "a\t ", "b\ta"], None, [folder], "fp32"))
    labels = [json.loads(line)["label"] for line in said]
    assert labels[1] is None
    assert None not in (labels[0], labels[2])
    for texts in (["a b"], ["a\tb\tc"]):
        with pytest.raises(
            ValueError, match=r"document 1 has . texts?, but the classifier reads 2 of each, with a tab"
        ):
            list(predict_lines(texts, None, [folder], "fp32"))


def test_classifiers_of_pairs_and_of_single_texts_are_not_averaged(tmp_path, model):
    pairs = export(tmp_path / "pairs", pair_order="given")
    with pytest.raises(ValueError, match="read other numbers of texts"):
        predict.Predictor.load(model, pairs)
