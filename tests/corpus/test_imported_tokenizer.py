"""Tokenizers that came with weights from elsewhere: their own ids stay, and documents are ours."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from pipeline.corpus.imported_tokenizer import import_tokenizer
from pipeline.corpus.sentencepiece_tokenizer import completed
from pipeline.corpus.settings import ImportedTokenizer as Settings
from pipeline.corpus.tokenizer import INFO_FILE, LIBRARY_MODULE
from pipeline.corpus.tokenizer_kinds import load_tokenizer
from pipeline.corpus.tokens import open_shard, read_info
from pipeline.corpus.vector_files import Vectors, read_vectors
from pipeline.corpus.word_vectors import vectors_for
from pipeline.execution.recipes import stage_fingerprint
from pipeline.figures.corpora import TokenizerFigures
from pipeline.project.project import Project
from pipeline.stages import encode, prepare, train_tokenizer
from pipeline.stages._imported_vectors import coverage
from pipeline.tracking import models

library = pytest.importorskip("tokenizers", reason="an optional package; make test installs it")

ROOT = Path(__file__).resolve().parents[2]
SEEN = [
    "the film was a long film, but the actors were good",
    "a good film is a long film",
    "été — 日本 映画",
] * 20
TEXTS = ["the good actors", "a film, été", "unseen wörds 日本 😀", "two\nlines", "[SEP] </s> <s>", ""]
KINDS = ("wordpiece", "bytes", "unigram", "wordlevel", "suffix", "sentencepiece")
KEY = "tokenizers.theirs"


def wordpiece() -> Any:
    made = library.Tokenizer(library.models.WordPiece(unk_token="[UNK]"))
    made.normalizer = library.normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = library.pre_tokenizers.BertPreTokenizer()
    made.decoder = library.decoders.WordPiece()
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    made.train_from_iterator(SEEN, library.trainers.WordPieceTrainer(vocab_size=150, special_tokens=names))
    made.post_processor = library.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    made.enable_truncation(3)  # as files of sentence encoders have it
    made.enable_padding(length=8)
    return made


def bytes_() -> Any:
    """GPT-2's: one special token for both ends, and none for padding and unknown ones."""
    made = library.Tokenizer(library.models.BPE())
    made.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = library.decoders.ByteLevel()
    trainer = library.trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=library.pre_tokenizers.ByteLevel.alphabet(),
    )
    made.train_from_iterator(SEEN, trainer)
    return made


def unigram() -> Any:
    made = library.Tokenizer(library.models.Unigram())
    made.pre_tokenizer = library.pre_tokenizers.Metaspace()
    made.decoder = library.decoders.Metaspace()
    trainer = library.trainers.UnigramTrainer(
        vocab_size=60, special_tokens=["<unk>", "<s>", "</s>"], unk_token="<unk>"
    )
    made.train_from_iterator(SEEN, trainer)
    return made


def wordlevel() -> Any:
    words = {word: token for token, word in enumerate(["[UNK]", "the", "film", "good", "[PAD]"])}
    made = library.Tokenizer(library.models.WordLevel(words, unk_token="[UNK]"))
    made.pre_tokenizer = library.pre_tokenizers.Whitespace()
    return made


def suffix() -> Any:
    """The first GPT's: a mark at the end of words."""
    made = library.Tokenizer(library.models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    made.pre_tokenizer = library.pre_tokenizers.BertPreTokenizer()
    made.decoder = library.decoders.BPEDecoder(suffix="</w>")
    trainer = library.trainers.BpeTrainer(vocab_size=150, special_tokens=["<unk>"], end_of_word_suffix="</w>")
    made.train_from_iterator(SEEN, trainer)
    return made


def sentencepiece() -> bytes:
    """As BPEmb and Llama have it: no piece for padding."""
    import sentencepiece as package

    model = io.BytesIO()
    package.SentencePieceTrainer.train(
        sentence_iterator=iter(SEEN), model_writer=model, model_type="bpe", vocab_size=60,
        pad_id=-1, bos_id=-1, eos_id=1, unk_id=0, minloglevel=2,
    )  # fmt: skip
    return model.getvalue()


MAKERS = {
    "wordpiece": wordpiece,
    "bytes": bytes_,
    "unigram": unigram,
    "wordlevel": wordlevel,
    "suffix": suffix,
}


@pytest.fixture
def theirs(tmp_path, request) -> Path:
    """A file of the kind that the test asks for."""
    if request.param == "sentencepiece":
        file = tmp_path / "theirs.model"
        file.write_bytes(sentencepiece())
    else:
        file = tmp_path / "tokenizer.json"
        MAKERS[request.param]().save(str(file))
    return file


def settings_of(file: Path) -> Settings:
    return Settings(kind="imported", file=str(file), threads=1)


def encoded_by_its_library(file: Path, texts: list[str]) -> list[list[int]]:
    """Token ids without special ones, as the package that wrote the file has them."""
    if file.suffix == ".model":
        import sentencepiece as package

        return list(package.SentencePieceProcessor(model_file=str(file)).encode(texts))
    own = library.Tokenizer.from_file(str(file))
    own.no_truncation()
    own.no_padding()
    own.encode_special_tokens = True
    return [own.encode(text, add_special_tokens=False).ids for text in texts]


@pytest.mark.parametrize("theirs", KINDS, indirect=True)
def test_documents_have_the_ids_of_the_original_between_start_and_end(theirs):
    pieces = import_tokenizer(settings_of(theirs), KEY)
    wanted = encoded_by_its_library(theirs, TEXTS)
    framing = {pieces.bos_id, pieces.eos_id, pieces.pad_id}
    for text, tokens, own in zip(TEXTS, pieces.encode_batch(TEXTS), wanted, strict=True):
        # A text that spells a special piece does not have it.
        inner = [pieces.unk_id if token in framing else token for token in own]
        assert tokens.tolist() == [pieces.bos_id, *inner, pieces.eos_id], text
        assert tokens.dtype == np.int32
    assert pieces.encode_batch([]) == []


@pytest.mark.parametrize("kind", ["wordpiece", "bytes", "suffix"])
def test_the_older_files_give_the_ids_of_the_newer_one(tmp_path, kind):
    made, older = MAKERS[kind](), tmp_path / "older"
    made.no_truncation()
    made.no_padding()
    if kind == "suffix":
        made.normalizer = library.normalizers.BertNormalizer(lowercase=True)
    older.mkdir()
    made.save(str(tmp_path / "tokenizer.json"))
    names = {Path(file).name for file in made.model.save(str(older))}
    assert names == ({"vocab.txt"} if kind == "wordpiece" else {"vocab.json", "merges.txt"})
    texts = [*TEXTS, "The FILM, été!", "The\tfilm  was"]
    newer = import_tokenizer(settings_of(tmp_path), KEY)
    for file in (older, older / min(names - {"merges.txt"})):
        found = import_tokenizer(settings_of(file), KEY)
        assert found.vocabulary == newer.vocabulary
        for ours, wanted in zip(found.encode_batch(texts), newer.encode_batch(texts), strict=True):
            assert ours.tolist() == wanted.tolist()
        assert found.decode(found.encode_batch(["the good film"])[0]) == "the good film"


@pytest.mark.parametrize(
    ("pieces", "settings", "text"),
    [
        ("[UNK] film Film", {}, "Film"),  # a vocabulary with capitals
        ("[UNK] film", {}, "film"),
        ("[UNK] film Film", {"do_lower_case": True}, "film"),
        ("[UNK] film ##s é", {"do_lower_case": False}, "[UNK]"),
    ],
)
def test_lower_case_is_as_the_file_beside_says_or_as_the_pieces_are(tmp_path, pieces, settings, text):
    (tmp_path / "vocab.txt").write_text("\n".join(pieces.split()) + "\n")
    if settings:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    found = import_tokenizer(settings_of(tmp_path), KEY)
    assert found.pieces(found.encode_batch(["Film"])[0])[1].strip() == text


@pytest.mark.parametrize("theirs", KINDS, indirect=True)
def test_special_pieces_that_it_lacks_stand_behind_its_own(theirs):
    if theirs.suffix == ".model":
        import sentencepiece as package

        own = package.SentencePieceProcessor(model_file=str(theirs))
        before = [own.id_to_piece(token) for token in range(own.vocab_size())]
    else:
        made = library.Tokenizer.from_file(str(theirs))
        before = [made.id_to_token(token) for token in range(made.get_vocab_size())]
    pieces = import_tokenizer(settings_of(theirs), KEY)
    assert list(pieces.vocabulary[: len(before)]) == before
    assert len(pieces.vocabulary) == pieces.vocab_size
    new = range(len(before), pieces.vocab_size)
    assert set(new) <= set(pieces.special_ids)
    assert pieces.pad_id not in (pieces.unk_id, pieces.bos_id, pieces.eos_id)


@pytest.mark.parametrize(
    ("theirs", "names"),
    [
        ("wordpiece", ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]),
        ("bytes", ["<pad>", "<unk>", "<|endoftext|>", "<|endoftext|>"]),
        ("unigram", ["<pad>", "<unk>", "<s>", "</s>"]),
        ("wordlevel", ["[PAD]", "[UNK]", "<s>", "</s>"]),
        ("sentencepiece", ["<pad>", "<unk>", "<s>", "</s>"]),
    ],
    indirect=["theirs"],
)
def test_its_own_names_of_special_pieces_are_known(theirs, names):
    pieces = import_tokenizer(settings_of(theirs), KEY)
    ids = [pieces.pad_id, pieces.unk_id, pieces.bos_id, pieces.eos_id]
    assert [pieces.vocabulary[token] for token in ids] == names


@pytest.mark.parametrize("theirs", [kind for kind in KINDS if kind != "wordlevel"], indirect=True)
def test_pieces_spell_the_text_with_its_spaces(theirs):
    pieces = import_tokenizer(settings_of(theirs), KEY)
    text = "the good actors were long"
    (tokens,) = pieces.encode_batch([text])
    assert "".join(pieces.pieces(tokens)).strip() == text
    assert pieces.decode(tokens) == text


@pytest.mark.parametrize("theirs", ["bytes"], indirect=True)
def test_bytes_give_any_text_back(theirs):
    pieces = import_tokenizer(settings_of(theirs), KEY)
    assert [pieces.decode(tokens) for tokens in pieces.encode_batch(TEXTS)] == TEXTS
    assert pieces.unk_id not in np.concatenate(pieces.encode_batch(TEXTS))


def test_bytes_of_characters_that_it_lacks_are_known_as_such(tmp_path):
    vocabulary = {"<unk>": 0, "▁": 1, "a": 2} | {f"<0x{byte:02X}>": 3 + byte for byte in range(256)}
    made = library.Tokenizer(
        library.models.BPE(vocabulary, [], byte_fallback=True, unk_token="<unk>", fuse_unk=True)
    )
    made.save(str(tmp_path / "tokenizer.json"))
    pieces = import_tokenizer(settings_of(tmp_path), KEY)
    tokens = pieces.encode_batch(["aé"])[0][1:-1]
    assert [pieces.is_byte(token) for token in tokens] == [False, True, True]
    assert pieces.byte_mask.sum() == 256


@pytest.mark.parametrize("theirs", ["wordpiece", "sentencepiece"], indirect=True)
def test_the_stages_import_and_use_it(theirs, make_params, make_corpus, labelled_csv, tmp_path):
    params = make_params(make_corpus(train=[str(labelled_csv)], fractions=(0.1, 0.1)))
    params.params.tokenizers = {"theirs": settings_of(theirs)}
    documents, folder = tmp_path / "documents" / "target", tmp_path / "theirs"
    prepare.run(params, corpus="target", out=documents)
    made = train_tokenizer.run(params, tokenizer="theirs", documents=tmp_path / "documents", out=folder)
    loaded = load_tokenizer(folder)
    assert made == TokenizerFigures(kind="imported", vocab_size=loaded.vocab_size, sha256=loaded.sha256)
    assert sorted(file.name for file in folder.iterdir()) == sorted([loaded.FILE, INFO_FILE])
    encode.run(params, documents=documents, tokenizer=folder, out=tmp_path / "tokens")
    info, tokens = read_info(tmp_path / "tokens"), open_shard(tmp_path / "tokens", "train").tokens
    assert (info.bos_id, info.pad_id) == (loaded.bos_id, loaded.pad_id)
    assert tokens[0] == loaded.bos_id
    (folder / loaded.FILE).write_bytes(b"{}")
    with pytest.raises(ValueError, match=r"damaged, or not the one .*; run the stage `train_tokenizer`"):
        load_tokenizer(folder)


@pytest.mark.parametrize(
    ("files", "name", "message"),
    [
        ({}, "none", r"which does not exist; put a tokenizer\.json, a vocab\.txt, a vocab\.json with a merg"),
        (
            {"x.txt": b""},
            "x.txt",
            r"x\.txt; expected a tokenizer\.json, .* or a sentencepiece model \(\*\.mod",
        ),
        ({"x.txt": b""}, ".", r"which has no tokenizer; put a tokenizer\.json, a vocab\.txt"),
        ({"vocab.json": b"{}"}, ".", r"which has no tokenizer"),
        ({"vocab.txt": b""}, ".", r"vocab\.txt: has no piece for unknown text \(<unk> or \[UNK\]\)"),
        ({"vocab.txt": b"[UNK]\na\na\n"}, ".", r"vocab\.txt: has 1 lines that occur twice"),
        ({"vocab.txt": b"[UNK]\n\xff\n"}, ".", r"vocab\.txt: no UTF-8 text"),
        (
            {"vocab.txt": b"[UNK]", "tokenizer_config.json": b"{"},
            ".",
            r"tokenizer_config\.json beside it is dam",
        ),
        (
            {"vocab.txt": b"[UNK]", "tokenizer_config.json": b"[]"},
            ".",
            r"tokenizer_config\.json beside it holds",
        ),
        (
            {"vocab.json": b"{", "merges.txt": b""},
            ".",
            r"vocab\.json: with merges\.txt, no byte-pair encoding",
        ),
        ({"vocab.json": b'{"a": 0}', "merges.txt": b"a b"}, ".", r"with merges\.txt, no byte-pair encoding"),
        ({"vocab.json": b'{"a": 0}'}, "vocab.json", r"vocab\.json: with merges\.txt, no byte-pair encoding"),
        ({"a.model": b"", "b.model": b""}, ".", r"which holds a\.model, b\.model; name one file"),
        ({"tokenizer.json": b"{}"}, ".", r"tokenizer\.json: no tokenizer of the `tokenizers` library"),
        ({"tokenizer.json": b"\xff"}, ".", r"tokenizer\.json: no tokenizer of the `tokenizers` library"),
        ({"a.model": b"x"}, "a.model", r"a\.model: not a sentencepiece model"),
    ],
)
def test_what_is_no_tokenizer_is_refused_by_its_key(tmp_path, files, name, message):
    for file, content in files.items():
        (tmp_path / file).write_bytes(content)
    with pytest.raises(ValueError, match=rf"`tokenizers\.theirs\.file` is .*{message}"):
        import_tokenizer(settings_of(tmp_path / name), KEY)


@pytest.mark.parametrize("theirs", ["wordpiece"], indirect=True)
def test_without_the_package_its_installation_is_asked_for(theirs, tmp_path, monkeypatch):
    pieces = import_tokenizer(settings_of(theirs), KEY)
    (tmp_path / pieces.FILE).write_bytes(pieces.content)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    wanted = r"needs the package `tokenizers`, .*; install it with `pip install tokenizers`$"
    with pytest.raises(ValueError, match=wanted):
        import_tokenizer(settings_of(theirs), KEY)
    with pytest.raises(ValueError, match=wanted):
        load_tokenizer(tmp_path / pieces.FILE)


def test_only_who_imports_one_has_its_code_in_the_fingerprint(tmp_path):
    params = Project.load(ROOT / "params.yaml").params
    tokenizers = {**params.tokenizers, "theirs": settings_of(tmp_path)}
    with_one = params.model_copy(update={"tokenizers": tokenizers})
    for stage, theirs, ours in (
        ("train_tokenizer", {"tokenizer": "theirs"}, {"tokenizer": "pieces"}), ("encode", {}, {}),
    ):  # fmt: skip
        without = stage_fingerprint(stage, Project(params), ours)
        found = stage_fingerprint(stage, Project(with_one), theirs)
        assert found.modules.keys() - without.modules.keys() == {
            LIBRARY_MODULE,
            "pipeline.corpus.tokenizer_json",
        }
        assert found.packages.keys() - without.packages.keys() == {"tokenizers"}
    for name in params.run.headstarts:
        for stage in ("pretrain_lm", "finetune_lm", "finetune_classifier"):
            each = [
                stage_fingerprint(stage, Project(either), {"headstart": name})
                for either in (params, with_one)
            ]
            assert each[0] == each[1]


def test_a_model_that_is_served_with_one_asks_for_the_package(tmp_path):
    def requirements(name: str) -> list[str]:
        folder = tmp_path / name / "parts" / "x"
        folder.mkdir(parents=True)
        (folder / name).write_text("{}")
        models._write_model(tmp_path / name, tmp_path / "models" / name)
        required = (tmp_path / "models" / name / "requirements.txt").read_text().split()
        return [each.partition("==")[0] for each in required]

    assert "tokenizers" not in requirements("words.txt")
    assert requirements("pieces.json") == [*requirements("other.txt"), "tokenizers"]


# ---------------------------------------------------------------------------------- vectors of pieces


@pytest.mark.parametrize("theirs", ["unigram", "bytes", "wordpiece"], indirect=True)
def test_each_piece_takes_its_row_of_an_embedding(theirs, tmp_path):
    pieces = import_tokenizer(settings_of(theirs), KEY)
    num_own = library.Tokenizer.from_file(str(theirs)).get_vocab_size()
    rows = np.random.default_rng(0).normal(size=(num_own, 3)).astype(np.float32)
    save_file({"embedding.weight": rows}, tmp_path / "model.safetensors")
    vectors = read_vectors(tmp_path, set(pieces.vocabulary), of_pieces=True)
    matrix, covered = vectors_for(pieces, vectors, np.zeros(pieces.vocab_size))
    own = [token for token in range(num_own) if token not in pieces.special_ids]
    np.testing.assert_array_equal(matrix[own], rows[own])
    assert covered.share_of_words == 1
    np.testing.assert_allclose(matrix[pieces.unk_id], rows[own].mean(0), rtol=1e-4, atol=1e-6)
    assert not matrix[[pieces.pad_id, pieces.bos_id, pieces.eos_id]].any()


@pytest.mark.parametrize("theirs", ["sentencepiece"], indirect=True)
def test_vectors_of_sentencepiece_are_matched_as_they_are_spelled(
    theirs, tmp_path, make_params, make_corpus, labelled_csv
):
    """As BPEmb has them: text or word2vec's binary form, with the pieces for words."""
    params = make_params(make_corpus(train=[str(labelled_csv)], fractions=(0.1, 0.1)))
    params.params.tokenizers = {"theirs": settings_of(theirs)}
    prepare.run(params, corpus="target", out=tmp_path / "documents" / "target")
    train_tokenizer.run(params, tokenizer="theirs", documents=tmp_path, out=tmp_path / "theirs")
    encode.run(
        params, documents=tmp_path / "documents" / "target", tokenizer=tmp_path / "theirs",
        out=tmp_path / "tokens",
    )  # fmt: skip
    pieces = load_tokenizer(tmp_path / "theirs")
    file = tmp_path / "vectors.txt"
    file.write_text("".join(f"{piece} {token} 1\n" for token, piece in enumerate(pieces.vocabulary[:-2])))
    found = coverage(file, tmp_path / "theirs", tmp_path / "tokens")
    assert (found.share_of_words, found.share_of_running_words) == (1.0, pytest.approx(1.0, abs=0.9))
    assert found.num_words == pieces.vocab_size - 4


def test_vectors_of_another_vocabulary_are_refused(tmp_path):
    pieces = completed(sentencepiece())
    few = [piece for piece in pieces.vocabulary if piece.isascii()][:5]
    with pytest.raises(ValueError, match=r"only 2 of the tokenizer's 58 pieces have a vector; take"):
        vectors_for(pieces, Vectors(["▁the", "▁film"], np.ones((2, 3), np.float32)), np.zeros(60))
    file = tmp_path / "words.txt"
    file.write_text("Ganz 1 2\nanders 3 4\n")
    with pytest.raises(ValueError, match=r"none of the .*; take the tokenizer that came with them"):
        read_vectors(file, set(few), of_pieces=True)
