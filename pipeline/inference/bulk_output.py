"""The output of bulk labelling: a file of answers for each part, and when all are whole, the one output."""

from __future__ import annotations

import io
import json
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from pipeline.corpus.file_source import Files
from pipeline.corpus.scanned_files import is_remote
from pipeline.files.atomic import atomic_write_text, clear_leftovers
from pipeline.inference import bulk_input
from pipeline.inference.bulk_answers import SUMMARY_COLUMNS, as_csv, as_json
from pipeline.inference.bulk_input import Request
from pipeline.inference.summary import Summary, classifier_of, write_summary

_JOB_FILE = "job.json"
_ENDINGS = (".parquet", ".csv", ".ndjson", ".jsonl")


@dataclass
class Tally:
    num_documents: int = 0
    num_made_before: int = 0  # of these, labelled by an earlier, interrupted run
    labels: Counter[str | None] = field(default_factory=Counter)  # None: a document without words
    num_sure: int | None = None  # None: it was not asked which labels are
    summary: Summary | None = None  # None: it was not asked for

    @classmethod
    def of(cls, request: Request) -> Tally:
        """The tally of a request before anything is labelled."""
        return cls(summary=None if request.summary is None else Summary(classifier_of(request.models)))

    def add(self, answers: pl.DataFrame, made_before: bool = False) -> None:
        self.num_documents += len(answers)
        self.num_made_before += len(answers) if made_before else 0
        self.labels.update(answers["label"])
        if "sure" in answers.columns:
            self.num_sure = (self.num_sure or 0) + int(answers["sure"].sum())
        if self.summary is not None:
            rows = answers.select(SUMMARY_COLUMNS).drop_nulls(SUMMARY_COLUMNS[0]).fill_null(np.nan).rows()
            self.summary.add_labels(answers["label"])
            self.summary.add_rows(rows)


def check_output(request: Request, output: Path) -> None:
    """Raise ValueError for an output or a summary that cannot be written, or that holds something else."""
    if output.suffix not in _ENDINGS:
        raise ValueError(f"--output {output}: its ending is none of {', '.join(_ENDINGS)}")
    if output.exists():
        raise ValueError(f"{output} exists; name another --output, or remove it")
    if (file := request.summary) is None:
        return
    if file.resolve() == output.resolve():
        raise ValueError(f"--summary {file} is --output, too; name another file")
    if file.exists() and not _parts_folder(output).exists():
        raise ValueError(f"{file} exists; name another --summary, or remove it")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"--summary {file} cannot be written: {error.strerror}") from error


def _parts_folder(output: Path) -> Path:
    return output.with_name(f"{output.name}.parts")


def claim_parts(request: Request, source: Files, output: Path) -> Path:
    """Return the folder for the parts, which are this request's: a new one, or one that it left."""
    folder, job = _parts_folder(output), _job(request, source)
    folder.mkdir(parents=True, exist_ok=True)
    clear_leftovers(folder)
    file = folder / _JOB_FILE
    if not file.exists():
        atomic_write_text(file, json.dumps(job, indent=1) + "\n")
        return folder
    recorded = json.loads(file.read_text(encoding="utf-8"))
    if changed := [name for name in job if recorded.get(name) != job[name]]:
        raise ValueError(
            f"{folder} holds parts of an earlier run with other {' and '.join(changed)}; remove it, or name "
            "another --output"
        )
    return folder


def _job(request: Request, source: Files) -> dict[str, Any]:
    """Return everything that the answers depend on, under the names that messages use."""

    def state(name: str) -> list[int]:
        if is_remote(name):
            return []
        facts = Path(name).stat()
        return [facts.st_size, facts.st_mtime_ns]

    return {
        "input files": [[name, *state(name)] for name in source.names("train")],
        "--text-column": [*request.text_columns],
        "--keep": [*request.keep],
        "--with-text": request.with_text,
        "--words": request.num_words,
        "--precision": request.precision,
        "--most-wrong": request.guarantees.most_wrong,
        "--label-sets": request.guarantees.coverage,
        "--summary": request.summary is not None,
        "classifier": classifier_of(request.models),
        "size of parts": bulk_input.PART_ROWS,
    }


def as_parquet(pieces: Sequence[pl.DataFrame]) -> bytes:
    """The content of the file of a part, from the answers to its pieces."""
    content = io.BytesIO()
    pl.concat(pieces).write_parquet(content)
    return content.getvalue()


def read_for_tally(path: Path) -> pl.DataFrame:
    """Read what a tally counts from the file of a part."""
    answers = pl.scan_parquet(path)
    counted = {"label", "sure", *SUMMARY_COLUMNS} & {*answers.collect_schema().names()}
    return answers.select(sorted(counted)).collect()


def finish(folder: Path, output: Path, request: Request, tally: Tally) -> None:
    """Write the summary, if there is one, and then the output of the parts in a folder."""
    if request.summary is not None and tally.summary is not None:
        write_summary(tally.summary, request.summary)
    join_parts(folder, output)


def join_parts(folder: Path, output: Path) -> None:
    """Stream the parts into the output, which appears whole; then remove them."""
    paths = sorted(folder.glob("[0-9]*.parquet"))
    if not paths:
        shutil.rmtree(folder)
        raise ValueError("the input has no document")
    answers, aside = pl.scan_parquet(paths, glob=False), folder / f"all{output.suffix}"
    answers = answers.drop(SUMMARY_COLUMNS, strict=False)
    match output.suffix:
        case ".parquet":
            answers.sink_parquet(aside)
        case ".csv":
            as_csv(answers).sink_csv(aside)
        case _:
            as_json(answers).sink_ndjson(aside)
    aside.replace(output)
    shutil.rmtree(folder)
