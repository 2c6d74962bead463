"""Importing fastai's language models: equal logits and gradients, words matched to pieces, bad files."""

from __future__ import annotations

import functools
import json
import os
import pickle
import random
import resource
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from models.awd_lstm import AWDLSTM, Config
from models.heads import LanguageModel
from pipeline.artifacts.model_folder import load_model
from pipeline.corpus.settings import SentencepieceTokenizer
from pipeline.corpus.tokenizer import Tokenizer, train
from pipeline.corpus.word_tokenizer import WordTokenizer
from pipeline.project.project import Project
from pipeline.settings.loader import overlay, read_yaml
from pipeline.training.cards import build_encoder, build_language_model
from pipeline.weights.fastai import (
    import_language_model,
    language_model_tensors,
    move_rows,
    read_vocabulary,
    read_weights,
    rows_of_pieces,
)

ROOT = Path(__file__).parent.parent
V, E, H = 30, 6, 10  # vocabulary, embedding, hidden


class TheirLanguageModel(nn.Module):
    """fastai's AWD_LSTM in evaluation mode, made of torch's own layers under fastai's names."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.embedding = nn.Embedding(V, E)
        self.layers = nn.ModuleList([nn.LSTM(E, H), nn.LSTM(H, H), nn.LSTM(H, E)])
        self.decoder = nn.Linear(E, V)
        self.decoder.weight = self.embedding.weight

    def forward(self, ids_BT: Tensor) -> Tensor:
        x: Tensor = self.embedding(ids_BT).transpose(0, 1)
        for layer in self.layers:
            x, _ = layer(x)
        logits: Tensor = self.decoder(x.transpose(0, 1))
        return logits

    def saved(self) -> dict[str, Tensor]:
        embedding = self.embedding.weight.detach()
        tensors = {"0.encoder.weight": embedding, "0.encoder_dp.emb.weight": embedding}
        for depth, layer in enumerate(self.layers):
            of_layer = {name: weight.detach() for name, weight in layer.named_parameters()}
            tensors[f"0.rnns.{depth}.weight_hh_l0_raw"] = of_layer.pop("weight_hh_l0")
            tensors |= {f"0.rnns.{depth}.module.{name}": weight for name, weight in of_layer.items()}
        return tensors | {"1.decoder.weight": embedding, "1.decoder.bias": self.decoder.bias.detach()}


def our_model() -> LanguageModel:
    config = Config(E, H, 3, True, 0.0, 0.0, 0.0, 0.0, 0.0)
    return LanguageModel(AWDLSTM(config, V), tie_weights=True)


def test_the_logits_and_gradients_are_those_of_their_layers():
    theirs, ours = TheirLanguageModel(), our_model()
    ours.load_state_dict(language_model_tensors(theirs.saved(), Path("x.pth")))
    ids = torch.randint(V, (4, 12))
    wanted = theirs(ids)
    logits = ours.logits(ours(ids).features)
    assert torch.allclose(logits, wanted, atol=1e-6)
    targets = torch.randint(V, (4, 12))
    ours.loss(ours(ids).features, targets, torch.float32).backward()
    nn.functional.cross_entropy(wanted.flatten(0, 1), targets.flatten(), reduction="sum").backward()
    found, their = dict(ours.named_parameters()), dict(theirs.named_parameters())
    for name, their_name in (
        ("encoder.embedding.weight", "embedding.weight"),
        ("encoder.layers.1.weight_hh", "layers.1.weight_hh_l0"),
        ("encoder.layers.0.weight_ih", "layers.0.weight_ih_l0"),
        ("encoder.layers.2.bias", "layers.2.bias_ih_l0"),
        ("decoder_bias", "decoder.bias"),
    ):
        mine, grad = found[name].grad, their[their_name].grad
        assert mine is not None
        assert grad is not None
        assert float((mine - grad).norm()) <= 2e-6 * float(grad.norm()), name


@pytest.mark.skipif(not (ROOT / ".peers/fastai").exists(), reason="fastai is not installed (make peers)")
def test_the_logits_and_gradients_are_those_of_fastai_itself():
    import subprocess
    import sys

    script = ROOT / "benchmarks/contestants/parity_fastai.py"
    done = subprocess.run(
        [sys.executable, str(script)], text=True, capture_output=True,
        env={"PYTHONPATH": f"{ROOT}:{ROOT / '.peers'}", "PYTHONWARNINGS": "ignore", "HOME": "/"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    logits, gradients = map(float, done.stdout.split()[-2:])
    assert logits <= 1e-6
    assert gradients <= 2e-6


def test_pieces_take_the_rows_of_the_words_that_they_spell():
    words = ["xxunk", "xxpad", "xxbos", "the", "film", ",", "ing", "Oslo"]
    pieces = ["<pad>", "<unk>", "<s>", "</s>", "▁the", "▁The", "▁Oslo", "ing", ",", "▁film", "▁films", "▁"]
    specials = {0: "xxpad", 1: "xxunk", 2: "xxbos"}
    found = rows_of_pieces(pieces, specials, words)
    assert found == [1, 0, 2, None, 3, 3, 7, None, 5, 4, None, None]


def test_a_vocabulary_of_pieces_is_taken_piece_by_piece():
    words = ["xxunk", "▁the", "ing", "▁th"]  # those that begin with a space show that these are pieces
    assert rows_of_pieces(["▁the", "ing", "▁ing", "▁th"], {}, words) == [1, 2, None, 3]


def test_what_has_no_row_starts_from_the_mean():
    old = torch.arange(6.0).view(3, 2)
    assert move_rows(old, [2, None, 0]).tolist() == [[4, 5], [2, 3], [0, 1]]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer in its folder, and fastai's two files."""
    folder = tmp_path_factory.mktemp("fastai")
    settings = SentencepieceTokenizer(
        kind="bpe", vocab_size=60, character_coverage=1.0, byte_fallback=False, sample_mb=1.0, threads=1
    )
    draw = random.Random(1)
    known = ["the", "film", "was", "and", "sea", "music", "woman", "walk", "talk", "good"]
    texts = [" ".join(draw.choices(known, k=8)) for _ in range(200)]
    (folder / "tokenizers" / "pieces").mkdir(parents=True)
    (folder / "tokenizers" / "pieces" / "tokenizer.model").write_bytes(train(texts, settings).content)
    torch.save({"model": TheirLanguageModel().saved(), "opt": {"lr": 0.1}}, folder / "lm.pth")
    words = ["xxunk", "xxpad", "xxbos", "the", "film", "was", "and", "sea"]
    words += [f"w{number}" for number in range(V - len(words))]
    (folder / "itos.pkl").write_bytes(pickle.dumps(words))
    (folder / "words.txt").write_text("\n".join(words), encoding="utf-8")
    return folder


def settings(**config: object) -> Project:
    """params.yaml whose head starts are networks of the size of fastai's."""
    sizes = {"embedding_dim": E, "hidden_dim": H, "num_layers": 3, "tie_weights": True, **config}
    top = {"headstarts": {name: {"config": sizes} for name in ("ulmfit", "ulmfit_backward")}}
    return Project.of(overlay(read_yaml(ROOT / "params.yaml"), top), where="params.yaml")


@pytest.mark.parametrize(
    ("vocabulary", "headstart", "direction"),
    [
        ("itos.pkl", "ulmfit", "forward"),
        ("words.txt", "ulmfit", "forward"),
        ("itos.pkl", "ulmfit_backward", "backward"),
    ],
)
def test_an_import_is_a_language_model_to_go_on_from(files, tmp_path, vocabulary, headstart, direction):
    out = tmp_path / "general_lm"
    moved = import_language_model(
        files / "lm.pth", files / vocabulary, files / "tokenizers", settings(), headstart, out
    )
    tensors, card = load_model(out)
    model = build_language_model(build_encoder(card)[0], card)
    model.load_state_dict(tensors)
    assert (card.direction, card.config["direction"]) == (direction, direction)
    ours = Tokenizer.load(files / "tokenizers" / "pieces")
    assert (moved.num_pieces, moved.num_words) == (ours.vocab_size, V)
    assert 3 + 4 <= moved.num_found < ours.vocab_size  # three special tokens, and some words
    their_rows = TheirLanguageModel().saved()["0.encoder.weight"]
    the = next(token for token in range(ours.vocab_size) if ours.raw_piece(token) == "▁the")
    assert torch.equal(tensors["encoder.embedding.weight"][the], their_rows[3])
    assert torch.equal(tensors["encoder.embedding.weight"][ours.eos_id], their_rows.mean(0))
    assert card.tokenizer_sha256 == ours.sha256


def test_another_network_is_refused_with_what_to_set(files, tmp_path):
    with pytest.raises(
        ValueError,
        match=r"set headstarts\.ulmfit\.config\.embedding_dim: 6, headstarts\.ulmfit\.config\.hidden_dim: 10",
    ):
        import_language_model(
            files / "lm.pth", files / "itos.pkl", files / "tokenizers", settings(hidden_dim=11),
            "ulmfit", tmp_path / "out",
        )  # fmt: skip
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("headstart", "message"),
    [
        ("ulmfti", r"--headstart is ulmfti; there are .*ulmfit"),
        ("vectors", r"headstarts\.vectors\.family is word_vectors; fastai's models are awd_lstm"),
    ],
)
def test_a_head_start_that_is_not_there_or_of_another_family_is_refused(files, tmp_path, headstart, message):
    with pytest.raises(ValueError, match=message):
        import_language_model(
            files / "lm.pth", files / "itos.pkl", files / "tokenizers", settings(), headstart,
            tmp_path / "out",
        )  # fmt: skip
    assert not (tmp_path / "out").exists()


def test_a_vocabulary_of_another_model_is_refused(files, tmp_path):
    (tmp_path / "few.txt").write_text("one\ntwo\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"has 2 words, but .* has rows for 30"):
        import_language_model(
            files / "lm.pth", tmp_path / "few.txt", files / "tokenizers", settings(), "ulmfit",
            tmp_path / "out",
        )  # fmt: skip


class Trap:
    """An object whose pickle calls a function when it is read."""

    def __init__(self, function: Callable[..., object], *arguments: object) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return self.call


RAN = Path("/tmp") / f"headstart-test-{os.getpid()}-ran"
TRAPS = {
    "exec": Trap(exec, f"open({str(RAN)!r}, 'w')"),
    "os.system": Trap(os.system, f"touch {RAN}"),
    "in a list": ["the", [[Trap(os.system, f"touch {RAN}")]]],
    "in a dictionary": {"model": {"a": torch.zeros(2), "b": Trap(os.system, f"touch {RAN}")}},
    "as a name": {Trap(os.system, f"touch {RAN}"): 1},
    "a partial": Trap(functools.partial, os.system, "true"),
    "importing": Trap(__import__, "this"),
    "a class of ours": WordTokenizer.of(["the"], lowercase=True),
    "an old global": b"cos\nsystem\n(S'touch " + str(RAN).encode() + b"'\ntR.",
    "an instance": b"(S'touch " + str(RAN).encode() + b"'\nios\nsystem\n.",
    "an extension": b"\x80\x02\x82\x01.",
    "a persistent id": b"Pevil\n.",
    "a buffer": b"\x80\x05\x97.",
}


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("name", TRAPS)
def test_files_that_could_run_something_are_refused_and_run_nothing(tmp_path, name, protocol):
    trap = TRAPS[name]
    content = trap if isinstance(trap, bytes) else pickle.dumps(trap, protocol)
    (tmp_path / "itos.pkl").write_bytes(content)
    with pytest.raises(ValueError, match=r"itos\.pkl is no pickled list of words"):
        read_vocabulary(tmp_path / "itos.pkl")
    (tmp_path / "raw.pth").write_bytes(content)
    files = [tmp_path / "raw.pth"]
    if not isinstance(trap, bytes) and protocol >= 2:
        for zipped in (True, False):
            files.append(tmp_path / f"zip-{zipped}.pth")
            torch.save(trap, files[-1], pickle_protocol=protocol, _use_new_zipfile_serialization=zipped)
    for file in files:
        with pytest.raises(ValueError, match=r"holds more than weights.* with_opt=False"):
            read_weights(file)
    assert not RAN.exists()


def test_the_traps_would_run_if_they_were_unpickled():
    try:
        pickle.loads(pickle.dumps(TRAPS["os.system"]))
        assert RAN.exists()
    finally:
        RAN.unlink()


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickled_list_of_words_is_read_from_its_instructions_as_pickle_reads_it(tmp_path, protocol):
    words = ["xxunk", "", "the", "the", "ﬁlm", "日本", "a\nb", "x" * 70_000, *map(str, range(5000)), "the"]
    (tmp_path / "itos.pkl").write_bytes(pickle.dumps(words, protocol))
    assert read_vocabulary(tmp_path / "itos.pkl") == words


MEMO_BOMB = b"\x80\x02]r" + struct.pack("<I", 2**31) + b"."  # pickle itself would allocate 2^31 entries
LAUGHS = b"\x80\x02]q\x00(X\x03\x00\x00\x00hahq\x01e" + b"".join(
    b"(h%ch%ce]q%c" % (level, level, level + 1) for level in range(50)
) + b"."  # fmt: skip


@pytest.mark.parametrize(
    "content",
    [
        LAUGHS, b"\x80\x02]q\x00h\x00a.", b"\x80\x02]h\x07a.", b"\x80\x02]", b"(" * 10**5,
        b"\x80\x04]\x8d" + struct.pack("<Q", 2**62) + b"a.",
        b"\x80\x02]\x8b" + struct.pack("<i", -5) + b"a.",
        b"]L" + b"9" * 10**6 + b"L\na.",
        pickle.dumps("abc"), pickle.dumps(("a", "b")), pickle.dumps([["a"]]), pickle.dumps({"a"}),
    ],
)  # fmt: skip
def test_a_pickle_bomb_is_refused(tmp_path, content):
    (tmp_path / "itos.pkl").write_bytes(content)
    with pytest.raises(ValueError, match=r"itos\.pkl is no pickled list of words"):
        read_vocabulary(tmp_path / "itos.pkl")


def test_room_that_a_pickle_asks_for_is_not_made(tmp_path):
    (tmp_path / "itos.pkl").write_bytes(MEMO_BOMB)
    assert read_vocabulary(tmp_path / "itos.pkl") == []
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 4_000_000  # kB


def zipped(file: Path, source: Path, change: Callable[[str, bytes], bytes], how: int, more: int = 0) -> Path:
    """Rewrite a `.pth`: change each part, compress as given, and add `more` empty parts."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(file, "w", how) as new:
        for part in old.infolist():
            new.writestr(part.filename, change(part.filename, old.read(part)))
        for number in range(more):
            new.writestr(f"archive/extra/{number}", b"")
    return file


def bombs(tmp_path: Path) -> dict[str, Path]:
    source = tmp_path / "source.pth"
    torch.save({"a": torch.zeros(12_345)}, source)

    def grown(name: str, content: bytes) -> bytes:
        return bytes(50_000_000) if name.endswith("data/0") else content

    def declared(name: str, content: bytes) -> bytes:  # M: two bytes follow; \x8a\x06: six
        return content.replace(b"M90", b"\x8a\x06" + (10**12).to_bytes(6, "little"))

    old = tmp_path / "old.pth"
    torch.save({"a": torch.zeros(12_345)}, old, _use_new_zipfile_serialization=False)
    old.write_bytes(declared("", old.read_bytes()))
    assert b"M90" not in old.read_bytes()
    everything = torch.zeros(100_000)
    values: dict[str, object] = {
        "broadcast": {"a": torch.zeros(1).expand(10**6, 10**6)},
        "overlapping": {f"t{k}": everything for k in range(100)},
        "sparse": {"a": torch.eye(2).to_sparse()},
        "meta": {"a": torch.empty(10**12, device="meta")},
        "integers": {"a": torch.zeros(2, dtype=torch.int64)},
        "quantized": {"a": torch.quantize_per_tensor(torch.zeros(2), 0.1, 0, torch.qint8)},
        "many tensors": {f"t{k}": torch.zeros(0) for k in range(1001)},
        "a buffer of a terabyte": {"a": Trap(bytearray, 2**40)},
        "deep": json.loads("[" * 300 + "]" * 300),
    }
    found = {"a declared size, old form": old}
    for name, value in values.items():
        torch.save(value, tmp_path / f"{name}.pth")
        found[name] = tmp_path / f"{name}.pth"
    for name, change, how, more in (
        ("a zip bomb", grown, zipfile.ZIP_DEFLATED, 0),
        ("packed", lambda name, content: content, zipfile.ZIP_DEFLATED, 0),
        ("a declared size", declared, zipfile.ZIP_STORED, 0),
        ("many parts", lambda name, content: content, zipfile.ZIP_STORED, 1001),
    ):
        found[name] = zipped(tmp_path / f"{name}.pth", source, change, how, more)
    return found


@pytest.mark.filterwarnings("ignore")
def test_files_that_unpack_to_more_than_they_are_are_refused(tmp_path):
    for name, file in bombs(tmp_path).items():
        with pytest.raises(ValueError, match=r"\.pth"):
            pytest.fail(f"{name}: {read_weights(file)}")
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 4_000_000, name  # kB


def test_files_too_large_are_not_opened(tmp_path):
    for name, read, size in (
        ("lm.pth", read_weights, 4 * 10**9 + 1),
        ("itos.pkl", read_vocabulary, 64 * 10**6 + 1),
    ):
        with (tmp_path / name).open("wb") as file:
            file.truncate(size)  # sparse: takes no disk space
        with pytest.raises(ValueError, match=f"{name} is larger than"):
            read(tmp_path / name)


@pytest.mark.parametrize("content", [b"hello world, no weights", b"the\nof\n", b"aaaa", b"\x80\x02."])
def test_what_is_no_file_of_torchs_is_refused(tmp_path, content):
    (tmp_path / "lm.pth").write_bytes(content)
    with pytest.raises(ValueError, match=r"lm\.pth holds more than weights, or is no file of torch's"):
        read_weights(tmp_path / "lm.pth")


def test_names_that_are_none_are_refused(tmp_path):
    torch.save({0: torch.zeros(2)}, tmp_path / "lm.pth")
    with pytest.raises(ValueError, match="holds no weights by name"):
        read_weights(tmp_path / "lm.pth")


def test_a_folder_of_anything_else_is_not_written_over(files, tmp_path):
    (tmp_path / "letters.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(ValueError, match="exists and is no model folder"):
        import_language_model(
            files / "lm.pth", files / "itos.pkl", files / "tokenizers", settings(), "ulmfit", tmp_path
        )
    assert (tmp_path / "letters.txt").read_text(encoding="utf-8") == "mine"


@pytest.mark.parametrize("content", [b"", b"no pickle at all", pickle.dumps({"a": 1}), pickle.dumps([1, 2])])
def test_a_vocabulary_that_is_none_is_refused(tmp_path, content):
    (tmp_path / "itos.pkl").write_bytes(content)
    with pytest.raises(ValueError, match="is no pickled list of words"):
        read_vocabulary(tmp_path / "itos.pkl")


@pytest.mark.parametrize("kept", [10, 200, 1000])
def test_torn_weights_are_refused(files, tmp_path, kept):
    (tmp_path / "lm.pth").write_bytes((files / "lm.pth").read_bytes()[:kept])
    with pytest.raises(ValueError, match=r"lm\.pth holds more than weights, or is no file"):
        read_weights(tmp_path / "lm.pth")


@pytest.mark.parametrize("missing", ["1.decoder.bias", "0.rnns.1.module.bias_hh_l0", "0.encoder.weight"])
def test_a_missing_weight_is_named(missing):
    saved = TheirLanguageModel().saved()
    del saved[missing]
    with pytest.raises(ValueError, match=f"it has no `{missing}`"):
        language_model_tensors(saved, Path("lm.pth"))


@pytest.mark.parametrize(
    "name", ["1.decoder.bias", "0.encoder.weight", "0.rnns.0.weight_hh_l0_raw", "0.rnns.2.module.bias_hh_l0"]
)
@pytest.mark.parametrize("shape", [(), (3,), (0, 0), (1, 1, 1)])
def test_a_weight_of_another_shape_is_named(name, shape):
    saved = TheirLanguageModel().saved() | {name: torch.zeros(shape)}
    with pytest.raises(ValueError, match=r"lm\.pth .*`[\w.]+` has shape"):
        language_model_tensors(saved, Path("lm.pth"))


def test_missing_files_are_named(tmp_path):
    with pytest.raises(ValueError, match=r"lm\.pth: no such file"):
        read_weights(tmp_path / "lm.pth")
    (tmp_path / "lm.pth").touch()
    with pytest.raises(ValueError, match=r"lm\.pth is empty; fetch or save it again"):
        read_weights(tmp_path / "lm.pth")
    with pytest.raises(ValueError, match=r"itos\.pkl: no such file"):
        read_vocabulary(tmp_path / "itos.pkl")
