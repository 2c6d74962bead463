"""Run DVC's command on the worst inputs: exit code 2, one message, and an unchanged output."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from pipeline.settings.loader import overlay, read_yaml

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [
    sys.executable, "-m", "pipeline", "prepare", "--corpus", "general", "--out", "data/documents/general",
    "--metrics", "reports/metrics/prepare-general.json",
]  # fmt: skip
SOURCE: dict[str, Any] = {
    "kind": "files", "format": "auto", "train": [], "validation": [], "test": [], "unlabelled": [],
    "text_column": "text", "label_column": None, "label_names": None, "encoding_errors": "replace",
}  # fmt: skip


def _settings(folder: Path, name: str) -> None:
    from ruamel.yaml import YAML

    source = SOURCE | {"train": [name]}
    settings = overlay(read_yaml(ROOT / "params.yaml"), {"corpus": {"general": {"source": source}}})
    with (folder / "params.yaml").open("w", encoding="utf-8") as file:
        YAML(typ="safe").dump(settings, file)


def _torn_parquet(folder: Path) -> bytes:
    pl.DataFrame({"text": [f"a text {number}" for number in range(1_000)]}).write_parquet(folder / "whole")
    return (folder / "whole").read_bytes()[:-100]


def _wide(folder: Path) -> bytes:
    return "a text\n".encode("utf-16") * 100


def _comma_in_row(folder: Path) -> bytes:
    return b"text,id\n" + b'"a, text",1\n' * 50_000 + b"a, text,2\n"


def _long_line(folder: Path) -> bytes:
    return b'{"text": "' + b"a " * 5_000_000 + b'"}\n{"text": "torn'


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "make", "message"),
    [
        ("raw.parquet", _torn_parquet, "raw.parquet: cannot be read"),
        ("raw.txt", _wide, "raw.txt: looks like UTF-16"),
        ("raw.csv", _comma_in_row, "raw.csv: cannot be read: line 50,002: 3 fields, the header has 2"),
        ("raw.ndjson", _long_line, "raw.ndjson: cannot be read: line 2: Unterminated string"),
        ("params.yaml", lambda folder: b"run: " + b"[" * 5_000, "params.yaml: not valid YAML: "),
    ],
)
def test_the_worst_input_gives_a_message_and_leaves_the_output_unchanged(tmp_path, name, make, message):
    before = tmp_path / "data/documents/general/documents.json"
    before.parent.mkdir(parents=True)
    before.write_text("as it was")
    _settings(tmp_path, name)
    (tmp_path / name).write_bytes(make(tmp_path))
    done = subprocess.run(COMMAND, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr) < 3_000
    assert before.read_text() == "as it was"
    assert [file.name for file in before.parent.parent.iterdir()] == ["general"]
    assert not (tmp_path / "reports/metrics/prepare-general.json").exists()
