from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from pipeline.artifacts.model_folder import export_model
from pipeline.corpus.settings import Normalise, SentencepieceTokenizer
from pipeline.corpus.tokenizer import train
from pipeline.inference import predict
from pipeline.training import precision
from pipeline.training.cards import HeadCard, ModelCard, build_classifier, build_encoder

CONFIG = {
    "embedding_dim": 6, "hidden_dim": 8, "num_layers": 2, "tie_weights": True, "embedding_dropout": 0.0,
    "input_dropout": 0.0, "hidden_dropout": 0.0, "output_dropout": 0.0, "weight_dropout": 0.0,
}  # fmt: skip
NORMALISE = Normalise(
    unicode="NFC", html_breaks=True, control_characters=True, collapse_whitespace=True, lowercase=False
)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The folder of an untrained classifier."""
    folder = tmp_path_factory.mktemp("model")
    settings = SentencepieceTokenizer(
        kind="char", vocab_size=280, character_coverage=1.0, byte_fallback=True, sample_mb=1.0, threads=1
    )
    alphabet = "abcdefghijklmnopqrst"
    pieces = train([f"{alphabet} {alphabet[::-1]}"] * 20, settings)
    (folder / "tokenizer.model").write_bytes(pieces.content)
    head = HeadCard(("no", "yes"), "concat", 5, (0.0, 0.0), 7, 40, NORMALISE.model_dump())
    card = ModelCard(
        "classifier", "awd_lstm", CONFIG, pieces.vocab_size, pieces.pad_id, "forward", pieces.sha256,
        "finetune_classifier", "key", head,
    )  # fmt: skip
    torch.manual_seed(0)
    classifier = build_classifier(build_encoder(card)[0], head)
    tensors = {name: torch.randn_like(tensor) for name, tensor in classifier.state_dict().items()}
    tensors = {name: tensor.abs() if "var" in name else tensor for name, tensor in tensors.items()}
    export_model(folder / "forward", tensors, card, extra_files=[folder / "tokenizer.model"])
    return folder / "forward"


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


def test_input_is_read_ahead_within_bounds_and_each_line_answered_once(model, monkeypatch, tmp_path):
    monkeypatch.setattr(predict, "_BATCH_TEXTS", 4)
    monkeypatch.setattr(predict, "_BATCH_CHARACTERS", 30)
    sizes = []
    genuine = predict.Predictor.predict

    def watched(self, texts):
        sizes.append((len(texts), sum(map(len, texts))))
        return genuine(self, texts)

    monkeypatch.setattr(predict.Predictor, "predict", watched)
    lines = ["ab"] * 9 + ["c" * 100] + ["d" * 20] * 3
    file = tmp_path / "texts.txt"
    file.write_text("".join(f"{line}\n" for line in lines))
    answers = [json.loads(line) for line in predict.predict_lines([], file, [model], "fp32")]
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
    return [json.loads(answer)["text"] for answer in predict.predict_lines([], file, [model], "fp32")]


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
            list(predict.predict_lines([], file, [model], "fp32"))


def test_an_argument_that_is_no_utf8_is_answered_in_utf8(model):
    (answer,) = predict.predict_lines(["a\udcffb"], None, [model], "fp32")
    assert json.loads(answer.encode())["text"] == "a?b"


@pytest.mark.parametrize(
    ("content", "texts"), [(b"a\n\xe6\x97\xa5\n", ["a", "日"]), (b"", []), (b"a\nb\xff\n", None)]
)
def test_any_bytes_on_standard_input_are_answered_or_refused(model, content, texts):
    command = [sys.executable, "-m", "pipeline", "predict", "--model", str(model), "--precision", "fp32"]
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
    lines = list(predict.predict_lines(texts, None, [model], "fp32"))
    assert [json.loads(line)["text"] for line in lines] == texts
    assert all(line.isprintable() and len(line.splitlines()) == 1 for line in lines)
