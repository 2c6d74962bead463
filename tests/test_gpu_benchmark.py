"""The script that waits for a GPU, tried at toy size on the CPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.corpus.tokens import ShardWriter, TokensInfo, write_info

ROOT = Path(__file__).resolve().parent.parent
# What the machine with the GPU may lack.
WITHOUT = """
import sys
for name in ("ray", "mlflow", "dvc", "polars", "sentencepiece", "sklearn", "scipy"):
    sys.modules[name] = None
sys.path.insert(0, sys.argv.pop(1))
from benchmarks.gpu import main
main(sys.argv[1:])
"""
pytestmark = pytest.mark.slow


def run(out: Path, part: str, *more: str) -> Any:
    given = [part, "--out", str(out), "--device", "cpu", "--tiny", *more]
    done = subprocess.run([sys.executable, "-c", WITHOUT, str(ROOT), *given], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads((out / f"{part}.json").read_text())[part]


def test_check_finds_each_family_equal_to_itself(tmp_path):
    found = run(tmp_path, "check")
    assert found.keys() == {"awd_lstm", "gpt", "transformer_xl", "bert"}
    for figures in found.values():
        assert figures["fp32 features, largest difference"] < 1e-5
        assert 0 < figures["bf16 features, largest difference"] < 0.1
        losses = figures["validation loss after 10 steps"]
        assert losses["fp32"] == pytest.approx(losses["CPU fp32"], rel=1e-5)
        assert losses["bf16"] == pytest.approx(losses["CPU fp32"], rel=0.02)


def test_resume_ends_with_equal_bits(tmp_path):
    assert all(figures["bits are equal"] for figures in run(tmp_path, "resume").values())


def test_penn_treebank_goes_on_from_call_to_call(tmp_path):
    for split, lines in (("train", 400), ("validation", 60), ("test", 60)):
        text = "\n".join(f"the {k % 7} <unk> sat on mat {k % 5}" for k in range(lines))
        (tmp_path / f"{split}.txt").write_text(text, encoding="utf-8")
    more = ["--text", str(tmp_path)]
    first, second = (run(tmp_path / "out", "ptb", *more) for _ in range(2))
    assert second["steps"] == 2 * first["steps"] > 0
    assert second["minutes"] > first["minutes"]
    assert second["test perplexity"] < 2  # 17 words; two of eight are drawn from 7 and from 5: 1.56


def test_speed_measures_each_of_ours(tmp_path):
    found = run(tmp_path, "speed")
    assert found["contestants"].keys() == {
        "AWD-LSTM bf16", "gpt bf16", "bert bf16", "gpt bf16, recompute_layers", "gpt bf16, micro_batch_rows",
    }  # fmt: skip
    assert all(each["tokens_per_second"]["median"] > 0 for each in found["contestants"].values())
    shares = found["share of the bf16 product"]
    assert shares.keys() == found["contestants"].keys()
    rate = found["contestants"]["gpt bf16"]["gflop_per_second"]["median"]
    assert shares["gpt bf16"] == pytest.approx(rate / found["bf16 product, GFLOP/s"])


def test_steps_times_both_kinds_and_profiles_them(tmp_path):
    found = run(tmp_path, "steps")
    assert [name.partition(",")[0] for name in found] == ["language model", "classifier", "classifier"]
    assert all(figures["milliseconds"] > 0 for figures in found.values())
    profile = (tmp_path / "profile.txt").read_text(encoding="utf-8")
    assert profile.count("tokens a second") == len(found)
    assert "aten::mm" in profile


TOY = """
tokenizers: {pieces: {vocab_size: 64}}
headstarts:
  ulmfit:
    embedding_from: null
    teacher: null
    config: {embedding_dim: 16, hidden_dim: 24, num_layers: 2}
    pretrain_lm: {epochs: 12.0, batch_rows: 4, bptt: 20}
    finetune_lm: {epochs: 12.0, batch_rows: 4, bptt: 20}
    finetune_classifier: {epochs: 4.0, batch_rows: 32}
"""


def write_shards(folder: Path, splits: dict[str, int], *, labelled: bool) -> None:
    """Documents of 12 tokens; the label is told by which of two tokens comes more often."""
    rng, names = np.random.default_rng(5), ("even", "odd") if labelled else None
    folder.mkdir(parents=True)
    written = {}
    for name, num_documents in splits.items():
        labels = rng.integers(0, 2, num_documents)
        documents = [np.array([2, *(8 + 2 * rng.integers(0, 20, 10) + label), 3]) for label in labels]
        with ShardWriter(folder, name, 64) as shard:
            shard.append(documents, labels if labelled else [None] * num_documents)
        written[name] = shard.info(12 * num_documents, 24 * num_documents)
    write_info(folder, TokensInfo(64, "0" * 64, 1, 2, 3, 0, names, written))


def test_imdb_goes_on_from_call_to_call_to_an_error(tmp_path):
    tokens, settings = tmp_path / "tokens", tmp_path / "toy.yaml"
    write_shards(tokens / "general", {"train": 200, "validation": 40}, labelled=False)
    write_shards(tokens / "target", {"train": 200, "validation": 40, "test": 80}, labelled=True)
    settings.write_text(TOY, encoding="utf-8")
    more = ["--tokens", str(tokens), "--settings", str(settings), "--labels", "60"]
    stopped = run(tmp_path / "out", "imdb", *more, "--minutes", "0")
    assert stopped == {"headstart": "ulmfit", "continues with": "pretrain_lm"}
    found = run(tmp_path / "out", "imdb", *more)
    assert found["finetune_lm"]["validation/bits_per_byte"] < found["pretrain_lm"]["validation/bits_per_byte"]
    assert found["finetune_classifier"]["test error"] < 0.1
    for seed in (1, 2, 3):
        assert found[f"60 labels, seed {seed}"]["test error"] < 0.4
    assert run(tmp_path / "out", "imdb", *more) == found  # nothing is trained twice
    classifier = run(tmp_path / "out", "imdb", *more, "--stages", "finetune_classifier", "--labels")
    assert classifier == {"headstart": "ulmfit", "finetune_classifier": found["finetune_classifier"]}

    out = str(tmp_path / "out")
    mean = run(tmp_path / "mean", "both", "--tokens", str(tokens), "--members", out, out)
    assert mean["test error of the mean"] == found["finetune_classifier"]["test error"]
