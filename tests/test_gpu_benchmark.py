"""The script that waits for a GPU, tried at toy size on the CPU."""

from __future__ import annotations

import argparse
import json
import lzma
import math
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.gpu import main
from benchmarks.gpu_parts.all_parts import SHARES, run_all
from benchmarks.gpu_parts.call import Call, Interruption
from benchmarks.gpu_parts.packed_tokens import pack, tokens_in
from benchmarks.side_by_side import Contestant, ContestantStoppedError
from pipeline.corpus.tokens import ShardWriter, TokensInfo, open_shard, read_info, write_info

ROOT = Path(__file__).resolve().parent.parent
# What the machine with the GPU may lack.
ABSENT = ("ray", "mlflow", "dvc", "polars", "sentencepiece", "sklearn", "scipy")
WITHOUT = f"""
import sys
for name in {ABSENT}:
    sys.modules[name] = None
sys.path.insert(0, sys.argv.pop(1))
from benchmarks.gpu import main
main(sys.argv[1:])
"""
pytestmark = pytest.mark.slow


def command(out: Path, part: str, *more: str) -> list[str]:
    given = [part, "--out", str(out), "--device", "cpu", "--tiny", *more]
    return [sys.executable, "-c", WITHOUT, str(ROOT), *given]


def figures_of(out: Path, part: str) -> Any:
    return json.loads((out / f"{part}.json").read_text())[part]


@pytest.fixture
def run(monkeypatch):
    """Run a part in this process, with the figures it writes."""
    for name in ABSENT:
        monkeypatch.setitem(sys.modules, name, None)
    handler = signal.getsignal(signal.SIGTERM)

    def run(out: Path, part: str, *more: str) -> Any:
        main([part, "--out", str(out), "--device", "cpu", "--tiny", *more])
        return figures_of(out, part)

    yield run
    signal.signal(signal.SIGTERM, handler)


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


@pytest.fixture(scope="module")
def toy_imdb(tmp_path_factory) -> tuple[Path, list[str]]:
    """The folder of tokens, and the arguments of `imdb` without it."""
    folder = tmp_path_factory.mktemp("imdb")
    tokens, settings = folder / "tokens", folder / "toy.yaml"
    write_shards(tokens / "general", {"train": 200, "validation": 40}, labelled=False)
    write_shards(tokens / "target", {"train": 200, "validation": 40, "test": 80}, labelled=True)
    settings.write_text(TOY, encoding="utf-8")
    return tokens, ["--settings", str(settings), "--labels", "60"]


@pytest.fixture(scope="module")
def out_of_all(tmp_path_factory, toy_imdb) -> Path:
    """The folder in which `all` has left its figures, with packed tokens and without the other libraries."""
    folder, (tokens, more) = tmp_path_factory.mktemp("all"), toy_imdb
    pack(tokens, folder / "tokens.tar.xz", 48)
    more = [*more, "--tokens", str(folder / "tokens.tar.xz"), "--minutes", "60", "--no-peers"]
    done = subprocess.run(command(folder / "out", "all", *more), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / "out"


def test_all_runs_each_part_whole(out_of_all):
    outcomes = figures_of(out_of_all, "all")
    assert list(outcomes) == list(SHARES) == ["check", "resume", "speed", "imdb"]
    assert all("failed" not in outcome for outcome in outcomes.values())
    peers = ["fastai AWD-LSTM bf16", "transformers gpt bf16", "transformers bert bf16"]
    assert outcomes["speed"].pop("left out") == dict.fromkeys(peers, "--no-peers")
    assert all(outcome.keys() == {"minutes given", "minutes taken"} for outcome in outcomes.values())
    # A part leaves its time to those after it.
    assert 30 < outcomes["imdb"]["minutes given"] < 60


def test_check_finds_each_family_equal_to_itself(out_of_all):
    found = figures_of(out_of_all, "check")
    masks = found.pop("masks")
    assert masks == {"number": 36, "bits are equal": True, "different": []}
    attention = found.pop("attention with dropout")
    assert attention.keys() == {"all keys", "causal", "padding"}
    for differences in attention.values():
        assert differences["float32"] == 0
        assert 0 < differences["bfloat16"] < 0.02
    assert found.keys() == {"awd_lstm", "gpt", "transformer_xl", "bert"}
    for figures in found.values():
        assert figures["fp32 features, largest difference"] < 1e-5
        assert 0 < figures["bf16 features, largest difference"] < 0.1
        gradients = figures["gradients with dropout, largest relative difference"]
        assert gradients["fp32"] < 1e-5
        assert gradients["fp32, TF32 products"] < 1e-5
        assert 0 < gradients["bf16"] < 0.05
        losses = figures["validation loss after 10 steps"]
        assert losses["fp32"] == pytest.approx(losses["CPU fp32"], rel=1e-5)
        assert losses["bf16"] == pytest.approx(losses["CPU fp32"], rel=0.02)


def test_resume_ends_with_equal_bits(out_of_all):
    found = figures_of(out_of_all, "resume")
    assert found.keys() == {"awd_lstm", "gpt", "transformer_xl", "bert"}
    assert all(figures["bits are equal"] for figures in found.values())


def test_speed_measures_each_of_ours(out_of_all):
    found = figures_of(out_of_all, "speed")
    assert found["contestants"].keys() == {
        "AWD-LSTM bf16", "gpt bf16", "bert bf16", "gpt bf16, recompute_layers", "gpt bf16, micro_batch_rows",
    }  # fmt: skip
    assert all(each["tokens_per_second"]["median"] > 0 for each in found["contestants"].values())
    assert all("device_share" in each for each in found["contestants"].values())
    shares = found["share of the bf16 product"]
    assert shares.keys() == found["contestants"].keys()
    rate = found["contestants"]["gpt bf16"]["gflop_per_second"]["median"]
    assert shares["gpt bf16"] == pytest.approx(rate / found["bf16 product, GFLOP/s"])


def test_imdb_in_all_reaches_an_error(out_of_all):
    found = figures_of(out_of_all, "imdb")
    assert found["finetune_lm"]["validation/bits_per_byte"] < found["pretrain_lm"]["validation/bits_per_byte"]
    assert found["finetune_classifier"]["test error"] < 0.1
    for seed in (1, 2, 3):
        assert found[f"60 labels, seed {seed}"]["test error"] < 0.4


def test_all_continues_with_what_is_missing(out_of_all, toy_imdb, run):
    figures = {part: figures_of(out_of_all, part) for part in SHARES}
    file = out_of_all / "check.json"
    content = json.loads(file.read_text())
    del content["check"]["gpt"]
    file.write_text(json.dumps(content))
    tokens, more = toy_imdb
    outcomes = run(out_of_all, "all", *more, "--tokens", str(tokens), "--no-peers")
    assert sum(outcome["minutes taken"] for outcome in outcomes.values()) < 0.5
    again = {part: figures_of(out_of_all, part) for part in SHARES}
    assert again["check"].keys() == figures["check"].keys()
    del again["check"], figures["check"]
    assert again == figures


def call_of_all(out: Path, **more: Any) -> Call:
    arguments = argparse.Namespace(part="all", out=out, tokens=None, device=torch.device("cpu"))
    end = time.monotonic() + 1000
    return Call("all", arguments, Interruption(), part_end=end, end=end, **more)


def test_a_failed_part_and_sigterm_leave_whole_figures(tmp_path):
    call = call_of_all(tmp_path)

    def fails(part: Call) -> Any:
        raise RuntimeError("out of memory")

    def is_interrupted(part: Call) -> Any:
        call.interruption.came = True
        names = list(part.while_time_lasts(["gpt", "bert"]))
        return dict.fromkeys(names, 1)

    outcomes = run_all(call, {"check": fails, "resume": is_interrupted, "speed": fails})
    assert outcomes["check"]["failed"] == "RuntimeError: out of memory"
    assert outcomes["resume"]["left out"] == {"gpt": "SIGTERM", "bert": "SIGTERM"}
    assert figures_of(tmp_path, "resume") == {}
    assert outcomes["speed"] == {"left out": "SIGTERM"}
    assert outcomes["imdb"] == {"left out": "no --tokens"}
    assert figures_of(tmp_path, "all") == outcomes


def test_other_bits_and_a_failed_contestant_are_failures(tmp_path):
    unequal = {"masks": {"bits are equal": False}, "gpt": {"bits are equal": True}}
    figures: dict[str, dict[str, Any]] = {"check": unequal, "resume": {}, "speed": {"failed": {"gpt": "why"}}}

    def measure(part: Call) -> dict[str, Any]:
        return figures[part.part]

    parts = dict.fromkeys(figures, measure)
    outcomes = run_all(call_of_all(tmp_path), parts)
    assert outcomes["check"]["failed"] == "masks has other bits"
    assert "failed" not in outcomes["resume"]
    assert outcomes["speed"]["failed"] == "gpt failed"
    assert figures_of(tmp_path, "check") == unequal


def test_each_part_has_its_share_of_what_is_left(tmp_path):
    seconds = {}

    def takes_no_time(part: Call) -> Any:
        seconds[part.part] = part.part_end - time.monotonic()
        return {}

    run_all(call_of_all(tmp_path), dict.fromkeys(SHARES, takes_no_time))
    assert seconds["check"] == pytest.approx(1000 * 0.12 / 0.5, abs=5)  # without imdb's half
    assert seconds["resume"] == pytest.approx(1000 * 0.06 / 0.38, abs=5)
    assert seconds["speed"] == pytest.approx(1000, abs=5)


def test_a_contestant_is_killed_when_it_must_stop():
    with pytest.raises(ContestantStoppedError):
        Contestant("products", "gemm.py", []).run(must_stop=lambda: True)


def test_sigterm_ends_imdb_with_a_checkpoint(tmp_path, toy_imdb):
    tokens, more = toy_imdb
    given = command(tmp_path, "imdb", *more, "--tokens", str(tokens))
    with subprocess.Popen(given, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "pretrain_lm begins\n"
        process.terminate()
        process.communicate()
    assert process.returncode == 0
    assert figures_of(tmp_path, "imdb") == {"headstart": "ulmfit", "continues with": "pretrain_lm"}
    reasons = json.loads((tmp_path / "imdb.json").read_text())["left out"]
    assert reasons["pretrain_lm"] == "SIGTERM; another call resumes it"
    assert reasons["finetune_lm"] == "SIGTERM"
    (checkpoints,) = (tmp_path / "imdb").glob("*/pretrain_lm")  # below the fingerprint of the code
    assert any(checkpoints.iterdir())


def test_imdb_goes_on_from_call_to_call_to_an_error(tmp_path, toy_imdb, run):
    tokens, more = toy_imdb
    more = [*more, "--tokens", str(tokens)]
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


def test_packed_tokens_are_the_same(tmp_path, toy_imdb):
    tokens, _ = toy_imdb
    main(["pack", "--tokens", str(tokens), "--out", str(tmp_path / "packed")])
    folders = tokens_in(tmp_path / "packed", tmp_path)
    for corpus, folder in folders.items():
        assert read_info(folder) == read_info(tokens / corpus)
        for split in read_info(folder).splits:
            expected, shard = open_shard(tokens / corpus, split), open_shard(folder, split)
            for array in ("tokens", "offsets", "labels"):
                np.testing.assert_array_equal(getattr(shard, array), getattr(expected, array))
    assert tokens_in(tmp_path / "packed", tmp_path) == folders  # unpacked once


def test_pack_leaves_out_general_text_that_does_not_fit(tmp_path, toy_imdb, capsys):
    tokens, _ = toy_imdb
    pack(tokens, tmp_path / "whole", math.inf)
    num_bytes = (tmp_path / "whole").stat().st_size - 600
    content = pack(tokens, tmp_path / "cut", num_bytes / 1e6)
    assert (tmp_path / "cut").stat().st_size <= num_bytes
    kept = open_shard(tokens_in(tmp_path / "cut", tmp_path)["general"], "train")
    assert 60 < len(kept) < 190
    assert kept.num_words == 12 * len(kept)
    assert f"{len(kept)} of 200 training documents" in content
    documents = {tuple(kept.document(k)) for k in range(len(kept))}
    whole = open_shard(tokens / "general", "train")
    assert documents <= {tuple(whole.document(k)) for k in range(len(whole))}
    with pytest.raises(ValueError, match="leave no room for general text"):
        pack(tokens, tmp_path / "cut", 0.001)


def test_a_damaged_file_is_refused(tmp_path, toy_imdb):
    tokens, _ = toy_imdb
    (tmp_path / "other").write_bytes(lzma.compress(b"text"))
    pack(tokens, tmp_path / "packed", 48)
    content = (tmp_path / "packed").read_bytes()
    (tmp_path / "torn").write_bytes(content[: len(content) // 2])
    for name in ("other", "torn"):
        with pytest.raises(ValueError, match=f"{name} is damaged, or no file of"):
            tokens_in(tmp_path / name, tmp_path)


def test_penn_treebank_goes_on_from_call_to_call(tmp_path, run):
    for split, lines in (("train", 400), ("validation", 60), ("test", 60)):
        text = "\n".join(f"the {k % 7} <unk> sat on mat {k % 5}" for k in range(lines))
        (tmp_path / f"{split}.txt").write_text(text, encoding="utf-8")
    more = ["--text", str(tmp_path)]
    first, second = (run(tmp_path / "out", "ptb", *more) for _ in range(2))
    assert second["steps"] == 2 * first["steps"] > 0
    assert second["minutes"] > first["minutes"]
    assert second["test perplexity"] < 2  # 17 words; two of eight are drawn from 7 and from 5: 1.56


def test_steps_times_both_kinds_and_profiles_them(tmp_path, run):
    found = run(tmp_path, "steps")
    assert [name.partition(",")[0] for name in found] == ["language model", "classifier", "classifier"]
    assert all(figures["milliseconds"] > 0 for figures in found.values())
    profile = (tmp_path / "profile.txt").read_text(encoding="utf-8")
    assert profile.count("tokens a second") == len(found)
    assert "aten::mm" in profile
