from __future__ import annotations

import json

import pytest
import torch

from pipeline.training import precision

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def memory(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(precision, "_has_bfloat16", lambda device: True)
    return tmp_path / "headstart" / "precision.json"


def measured(monkeypatch, *results):
    left = list(results)
    monkeypatch.setattr(precision, "measure", lambda device: left.pop(0))
    return left


@pytest.mark.parametrize(
    ("speedup", "rounding", "dtype"),
    [(2.0, 0.002, torch.bfloat16), (1.1, 0.002, torch.float32), (2.0, 0.05, torch.float32)],
)
def test_bfloat16_has_to_be_faster_and_exact_enough(monkeypatch, speedup, rounding, dtype):
    measured(monkeypatch, (speedup, rounding))
    assert precision.fast_dtype(CPU) == dtype


def test_what_was_chosen_once_stays(monkeypatch, memory):
    left = measured(monkeypatch, (2.0, 0.002), (1.0, 0.002))
    assert [precision.fast_dtype(CPU) for _ in range(3)] == [torch.bfloat16] * 3
    assert len(left) == 1
    (key,) = json.loads(memory.read_text())
    assert torch.__version__ in key
    monkeypatch.setattr(torch, "__version__", "another")
    assert precision.fast_dtype(CPU) == torch.float32  # measured again for that version
    assert len(json.loads(memory.read_text())) == 2


@pytest.mark.parametrize("content", ["", "[1]", '{"a": 1}', '{"a": ["x", 2]}'])
def test_a_damaged_memory_is_measured_anew(monkeypatch, memory, content):
    memory.parent.mkdir()
    memory.write_text(content)
    measured(monkeypatch, (2.0, 0.002))
    assert precision.fast_dtype(CPU) == torch.bfloat16


def test_a_home_that_cannot_be_written_is_no_obstacle(monkeypatch, memory):
    memory.parent.write_text("a file where the folder should be")
    measured(monkeypatch, (2.0, 0.002))
    assert precision.fast_dtype(CPU) == torch.bfloat16


def test_no_home_at_all_is_no_obstacle(monkeypatch):
    """As for a container user without an entry in passwd."""
    monkeypatch.delenv("XDG_CACHE_HOME")

    def no_home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(precision.Path, "home", no_home)
    measured(monkeypatch, (2.0, 0.002))
    assert precision.fast_dtype(CPU) == torch.bfloat16


def test_without_instructions_nothing_is_measured(monkeypatch):
    monkeypatch.setattr(precision, "_has_bfloat16", lambda device: False)
    measured(monkeypatch)
    assert precision.fast_dtype(CPU) == torch.float32


def test_the_probe_measures_a_speed_and_a_rounding(monkeypatch):
    monkeypatch.setattr(precision, "_SHAPE", (16, 32, 64))
    speedup, rounding = precision.measure(CPU)
    assert speedup > 0
    assert 1e-4 < rounding < 0.01  # bfloat16 keeps eight bits: about 0.002
