"""What makes a result: the fingerprint of a stage covers its numbers, and nothing else."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

from pipeline.execution.fingerprints import stage_fingerprint, write_fingerprints
from pipeline.identity import fingerprint
from pipeline.project import stages
from pipeline.project.params import Params, load

ROOT = Path(__file__).resolve().parent.parent


def forget() -> None:
    for cached in (fingerprint.imports_of, fingerprint._imported, fingerprint._parsed):
        cached.cache_clear()


@pytest.fixture
def source(tmp_path, monkeypatch) -> Iterator[Path]:
    """A copy of the code whose fingerprints are taken."""
    for package in ("models", "pipeline"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(fingerprint, "_ROOT", tmp_path)
    forget()
    yield tmp_path
    forget()


@pytest.fixture
def params() -> Params:
    return load(ROOT / "params.yaml")


def digests(params: Params) -> dict[str, str]:
    forget()
    found = {stage: stage_fingerprint(stage, params).digest for stage in stages.names()}
    return found | {f"prepare {each}": stage_fingerprint("prepare", params, each).digest
                    for each in ("general", "target")}  # fmt: skip


def changed_by(source: Path, params: Params, file: str, old: str, new: str) -> set[str]:
    """The stages whose fingerprint an edit changes."""
    before = digests(params)
    path = source / file
    text = path.read_text(encoding="utf-8")
    assert old in text, f"{old!r} is not in {file}"
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    after = digests(params)
    return {stage for stage in before if before[stage] != after[stage]}


TALKS = """
import logging

log = logging.getLogger(__name__)


def talk(x: int) -> int:
    log.info("{word}")
    if x < 0:
        raise ValueError(f"{word} {{x}}")
    return x
"""


def test_what_people_read_changes_nothing(source, params):
    """Comments, docstrings, error messages and log calls in numerical code."""
    loop, optim = (source / "pipeline/training" / name for name in ("loop.py", "optim.py"))
    plain = optim.read_text(encoding="utf-8")
    optim.write_text(plain + TALKS.format(word="one"), encoding="utf-8")
    before = digests(params)
    text = loop.read_text(encoding="utf-8")
    text = text.replace("    def train_step", "    # why\n\n    def train_step").replace(
        '"""', '"""Anew: ', 1
    )
    loop.write_text(text, encoding="utf-8")
    optim.write_text(plain + TALKS.format(word="two"), encoding="utf-8")
    assert digests(params) == before
    optim.write_text(plain + TALKS.format(word="two").replace("return x", "return x + 1"), encoding="utf-8")
    assert digests(params) != before


def test_operations_change_nothing(source, params):
    """Leases, launching, checkpoints' publishing, tracking, the command line, the settings' form."""
    before = digests(params)
    first_import = "from __future__ import annotations\n"
    files = (path for path in (source / "pipeline").rglob("*.py") if path.parent.name != "stages")
    edited = [path for path in files if not fingerprint.is_numerical(_module(path, source))]
    for path in edited:
        text = path.read_text(encoding="utf-8")
        path.write_text(text.replace(first_import, first_import + "\nANOTHER = 1\n"), encoding="utf-8")
    assert {"lease.py", "ray_train.py", "checkpoint_store.py", "runs.py", "__main__.py", "settings.py"} <= {
        path.name for path in edited
    }
    assert digests(params) == before


def _module(path: Path, source: Path) -> str:
    return ".".join(path.relative_to(source).with_suffix("").parts)


def test_a_formula_of_the_schedules_changes_what_trains_and_no_corpus(source, params):
    file = "pipeline/training/schedules.py"
    changed = changed_by(source, params, file, "return (1 + p * (ratio", "return (1.5 + p * (ratio")
    assert changed >= set(stages.of_kind("trains", "sweeps"))
    assert not changed & {*stages.of_kind("prepares"), "prepare general", "prepare target", "report"}


def test_the_normalisation_changes_the_documents(source, params):
    file = "pipeline/corpus/normalise.py"
    first_import = "from __future__ import annotations\n"
    changed = changed_by(source, params, file, first_import, first_import + "\nANOTHER = 1\n")
    assert {"prepare", "prepare general", "prepare target"} <= changed
    assert not changed & {"pretrain_lm", "finetune_lm"}


def test_another_family_counts_only_where_it_is_used(source, params):
    (source / "models/other.py").write_text("A = 1\n")
    forget()
    plain = fingerprint.fingerprint_of("pipeline.stages.pretrain_lm", "awd_lstm", trains=True)
    other = fingerprint.fingerprint_of("pipeline.stages.pretrain_lm", "other", trains=True)
    assert "models.other" in other.code
    assert "models.other" not in plain.code
    assert "models.awd_lstm" in plain.code


def test_every_training_counts_the_loop_and_what_it_runs():
    wanted = {
        "models.awd_lstm",
        "models.kernels",
        "models.layers",
        "pipeline.corpus.batches",
        "pipeline.corpus.tokens",
        "pipeline.training.context",
        "pipeline.training.jobs",
        "pipeline.training.loop",
        "pipeline.training.objectives",
        "pipeline.training.optim",
        "pipeline.training.schedules",
    }
    for stage in stages.of_kind("trains", "sweeps"):
        found = fingerprint.fingerprint_of(f"pipeline.stages.{stage}", "awd_lstm", trains=True)
        assert wanted <= found.code.keys(), stage


def test_another_version_of_what_computes_changes_what_uses_it(monkeypatch, params):
    def with_version(package: str, version: str) -> set[str]:
        real, before = metadata.version, digests(params)
        with monkeypatch.context() as patch:
            patch.setattr(metadata, "version", lambda name: version if name == package else real(name))
            after = digests(params)
        return {stage for stage in before if before[stage] != after[stage]}

    trains = set(stages.of_kind("trains", "sweeps"))
    by_torch = with_version("torch", "99.0")
    assert trains <= by_torch
    assert not by_torch & {"prepare", "train_tokenizer", "encode", "find_leaks"}
    assert {"train_tokenizer", "encode"} <= with_version("sentencepiece", "99.0")
    assert "prepare" in with_version("polars", "99.0")
    assert with_version("ray", "99.0") == with_version("mlflow", "99.0") == set()
    # The build for another device is the same package.
    assert with_version("torch", metadata.version("torch").partition("+")[0] + "+cu130") == set()


def test_text_of_installed_packages_counts_where_it_is_the_corpus(params):
    found = stage_fingerprint("prepare", params, "general")
    assert found.text["torch"] == metadata.version("torch")
    assert "headstart" not in found.text
    assert not stage_fingerprint("encode", params).text


def test_a_file_that_says_the_same_is_left_alone(params, tmp_path):
    written = write_fingerprints(params, tmp_path)
    assert {file.stem for file in written} == {*stages.names(), "prepare-general", "prepare-target"} - {
        "prepare"
    }
    stamps = {file: file.stat().st_mtime_ns for file in written}
    assert write_fingerprints(params, tmp_path) == []
    assert {file: file.stat().st_mtime_ns for file in written} == stamps
