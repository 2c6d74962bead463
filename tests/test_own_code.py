"""A checkout whose environment belongs to another one."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.execution.own_code import check_runs_own_code


def checkout(folder: Path, content: str) -> Path:
    (folder / "pipeline").mkdir(parents=True)
    (folder / "models").mkdir()
    (folder / "pipeline" / "__main__.py").write_text("main = 1\n", encoding="utf-8")
    (folder / "models" / "layers.py").write_text(content, encoding="utf-8")
    return folder


def test_other_code_than_the_folders_own_is_refused_by_the_file(tmp_path):
    running = checkout(tmp_path / "running", "rate = 1\n")
    with pytest.raises(ValueError, match=r"models/layers\.py here differs from that of .*/running"):
        check_runs_own_code(checkout(tmp_path / "other", "rate = 2\n"), running)


def test_the_same_code_or_none_is_fine(tmp_path):
    running = checkout(tmp_path / "running", "rate = 1\n")
    check_runs_own_code(running, running)
    check_runs_own_code(checkout(tmp_path / "copy", "rate = 1\n"), running)
    (tmp_path / "project").mkdir()
    assert check_runs_own_code(tmp_path / "project", running) is None  # type: ignore[func-returns-value]


def test_the_doctor_refuses_it_too(tmp_path, monkeypatch):
    from pipeline.__main__ import doctor

    other = checkout(tmp_path / "other", "rate = 2\n")
    monkeypatch.chdir(other)
    with pytest.raises(ValueError, match="here differs from that of"):
        doctor()
