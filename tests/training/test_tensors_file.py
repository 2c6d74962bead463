"""Hostile safetensors files: each is refused by file name before any of its tensors is used."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from pipeline.artifacts.tensor_folder import read_folder, write_folder
from pipeline.artifacts.tensors_file import read_tensors

DATA = bytes(range(8))


def entry(dtype: str = "F32", shape: Any = (2,), offsets: Any = (0, 8), **more: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets, **more}


def written(path: Path, header: Any, data: bytes = DATA, length: int | None = None) -> Path:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(raw) if length is None else length) + raw + data)
    return path


TWICE = b'{"a": %b, "a": %b}' % (2 * (json.dumps(entry()).encode(),))
HOSTILE: dict[str, Any] = {
    "empty header": (b"", b""),
    "header beyond the file": (b"{}", b"", 100),
    "header of 2^63 bytes": (b"{}", b"", 2**63),
    "header of 11 MB": (b" " * 11_000_000,),
    "no JSON": (b"hello",),
    "not UTF-8": (b'{"\xff": 1}',),
    "NUL after it": (json.dumps({"a": entry()}).encode() + b"\0\0",),
    "a list": ([],),
    "a number": (3,),
    "deep lists": (b"[" * 100_000,),
    "deep objects": (b'{"a":' * 100_000,),
    "a huge number": (b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, ' + b"9" * 5000 + b"]}}",),
    "NaN": (b'{"a": {"dtype": "F32", "shape": [NaN], "data_offsets": [0, 8]}}',),
    "a name twice": (TWICE,),
    "a field twice": (b'{"a": {"dtype": "F32", "dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}',),
    "metadata": ({"__metadata__": {"format": "pt"}, "a": entry()},),
    "metadata that is a tensor": ({"__metadata__": entry()},),
    "another field": ({"a": entry(pickle="gASV")},),
    "no shape": ({"a": {"dtype": "F32", "data_offsets": [0, 8]}},),
    "no object": ({"a": [1]},),
    "an unknown dtype": ({"a": entry("X99")},),
    "a dtype that is none": ({"a": entry([])},),  # type: ignore[arg-type]
    "a dtype that we never write": ({"a": entry("F4", (16,))},),
    "overlapping": ({"a": entry(), "b": entry()},),
    "a gap": ({"a": entry(), "b": entry(offsets=(16, 24))}, DATA * 3),
    "a gap before": ({"a": entry(offsets=(8, 16))}, DATA * 2),
    "bytes behind": ({"a": entry()}, DATA * 2),
    "beyond the end": ({"a": entry()}, b""),
    "backwards": ({"a": entry(offsets=(8, 0))},),
    "a negative offset": ({"a": entry(offsets=(-8, 0))},),
    "three offsets": ({"a": entry(offsets=(0, 4, 8))},),
    "a shape too large": ({"a": entry(shape=(3,))},),
    "a shape that overflows": ({"a": entry(shape=(2**62, 8))},),
    "a shape that overflows to nothing": ({"a": entry(shape=(2**63, 2), offsets=(0, 0))}, b""),
    "a negative size": ({"a": entry(shape=(-2,))},),
    "a size that is no integer": ({"a": entry(shape=(2.0,))},),
    "a size that is a truth value": ({"a": entry(shape=(True, 2))},),
    "a shape that is text": ({"a": entry(shape="2")},),
    "a thousand dimensions": ({"a": entry(shape=[1] * 1000 + [2])},),
    "too many tensors": ({f"t{k}": entry(shape=(0,), offsets=(0, 0)) for k in range(10_001)}, b""),
    "no name": ({"": entry()},),
    "a long name": ({"a" * 1001: entry()},),
    "a name with an escape": ({"\x1b[31mred": entry()},),
    "a lone surrogate": (b'{"\\ud800": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}',),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_file_is_refused_by_its_name(tmp_path, case):
    path = written(tmp_path / "tensors.safetensors", *HOSTILE[case])
    with pytest.raises(ValueError, match=r"tensors\.safetensors is no valid safetensors file: ") as refused:
        read_tensors(path)
    assert len(str(refused.value)) < 1000
    assert str(refused.value).isprintable()


def test_every_file_cut_short_is_refused(tmp_path):
    whole = written(tmp_path / "whole", {"a": entry()}).read_bytes()
    for kept in range(len(whole)):
        (tmp_path / "cut").write_bytes(whole[:kept])
        with pytest.raises(ValueError, match="cut is no valid safetensors file"):
            read_tensors(tmp_path / "cut")
    assert read_tensors(tmp_path / "whole")["a"].numpy().tobytes() == DATA


def test_what_training_writes_is_read_as_it_was(tmp_path):
    tensors = {
        "model.weight": torch.randn(3, 2),
        "optimizer.step": torch.tensor(7.0),
        "rng": torch.arange(256, dtype=torch.uint8),
        "half": torch.randn(2).to(torch.bfloat16),
        "cursor": torch.tensor([2**40]),
        "flags": torch.tensor([True, False]),
        "nothing": torch.zeros(0, 4),
    }
    save_file(tensors, str(tmp_path / "x.safetensors"))
    found = read_tensors(tmp_path / "x.safetensors")
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], tensors[name]) for name in tensors)


def test_a_folder_with_a_manifest_of_its_own_making_does_not_get_around_it(tmp_path):
    """An attacker can write a matching manifest too: its hashes only prove that nothing was torn."""
    write_folder(tmp_path, {"a": torch.zeros(2)}, {})
    tensors = written(tmp_path / "tensors.safetensors", {"__metadata__": {"x": "y"}, "a": entry()})
    manifest = json.loads((tmp_path / "manifest.json").read_text(encoding="utf-8"))
    content = tensors.read_bytes()
    manifest[tensors.name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    with pytest.raises(ValueError, match="is no valid safetensors file: '__metadata__'"):
        read_folder(tmp_path)
