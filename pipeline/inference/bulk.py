"""Labels the documents of files, part by part.

The route of a document: a file's batches -> pieces of bounded size (`bulk_input`) -> their answers
(`bulk_answers`) -> the file of a part, of `PART_ROWS` documents of one file, beside the output -> when all
parts are whole, the output (`bulk_output`). A stopped run resumes behind the last whole part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import polars as pl

from pipeline.files.atomic import atomic_write
from pipeline.inference.bulk_answers import answer_rows, as_json
from pipeline.inference.bulk_input import Request, open_input, read_pieces
from pipeline.inference.bulk_output import (
    Tally,
    as_parquet,
    check_output,
    claim_parts,
    finish,
    read_for_tally,
)
from pipeline.inference.predict import Predictor
from pipeline.inference.predicted_lines import escaped


def label_files(
    request: Request, output: Path, predictor: Predictor, report: Callable[[Tally], None] = lambda tally: None
) -> Tally:
    """Label all documents of the input into one file, in their order; `report` is called after each part.

    The summary is written before the output, which appears last.

    Columns: `file` and `row` (from 1), what is to be kept, `label`, null for a document without words, and
    `probability:NAME` of each label; with words, what `words_that_moved` says.

    Raises ValueError if the output exists or its ending is not known, the summary cannot be written, an input
    cannot be read, or parts of another request lie beside the output.
    """
    check_output(request, output)
    source = open_input(request, predictor.num_texts)
    folder = claim_parts(request, source, output)
    tally, answers, num_read = Tally.of(request), list[pl.DataFrame](), 0
    for piece in read_pieces(source):
        path = folder / piece.part.name
        made_before = path.exists()
        if not made_before:
            answers.append(answer_rows(piece.rows, predictor, request, num_read))
        num_read += len(piece.rows)
        if not piece.is_last:
            continue
        if not made_before:
            atomic_write(path, as_parquet(answers))
            answers.clear()
        tally.add(read_for_tally(path), made_before)
        report(tally)
    finish(folder, output, request, tally)
    return tally


def label_to_lines(request: Request, predictor: Predictor) -> Iterator[str]:
    """Label all documents of the input, in their order; yield a line with a JSON object for each."""
    for piece in read_pieces(open_input(request, predictor.num_texts)):
        # A text may hold other line ends than those between the objects.
        lines = as_json(answer_rows(piece.rows, predictor, request, 0)).write_ndjson().removesuffix("\n")
        yield from map(escaped, lines.split("\n"))
