"""Every kind of fuzzed input: how to generate it, and how to check what becomes of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from hypothesis.strategies import SearchStrategy

from tests.fuzz import corpora, folders, lines, settings, tokenizer_inputs
from tests.fuzz.damage import damaged_folders

# For the tests, which should take less than a minute.
NUM_CASES = {
    "CSV": 100, "NDJSON": 100, "plain text": 60, "parquet": 60, "label columns": 100, "params.yaml": 100,
    "overlays": 30, "tokenizer training": 40, "predict input": 60, "documents folder": 60,
    "tokenizer folder": 60, "words folder": 60, "tokens folder": 60, "checkpoint folder": 60,
    "model folder": 60,
}  # fmt: skip


@dataclass(frozen=True)
class Kind:
    """`check(case, folder)` tries an input in an empty folder and returns whether it was refused."""

    cases: SearchStrategy[Any]
    check: Callable[[Any, Path], bool]


def all_kinds(root: Path) -> dict[str, Kind]:
    """Return the kinds by name. The intact originals of damaged folders are written to `root`."""
    written = folders.write_all(root)
    kinds = {
        "CSV": Kind(corpora.csv_files(), corpora.check_prepared),
        "NDJSON": Kind(corpora.ndjson_files(), corpora.check_prepared),
        "plain text": Kind(corpora.text_files(), corpora.check_prepared),
        "parquet": Kind(corpora.parquet_files(), corpora.check_prepared),
        "label columns": Kind(corpora.label_columns(), corpora.check_labels),
        "params.yaml": Kind(settings.settings_files(), settings.check_settings),
        "overlays": Kind(settings.overlays(), settings.check_overlay),
        "tokenizer training": Kind(tokenizer_inputs.trainings(), tokenizer_inputs.check_training),
        "predict input": Kind(
            lines.inputs(), lambda case, folder: lines.check_lines(case, written["model"].folder, folder)
        ),
    }
    for name, each in written.items():
        kinds[f"{name} folder"] = Kind(damaged_folders(each.folder), partial(folders.check_folder, each))
    return kinds
