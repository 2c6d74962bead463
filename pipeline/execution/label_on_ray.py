"""`headstart predict --input` spread over a Ray: its workers label parts, this process keeps them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from pipeline.distributed.cluster import Cluster
from pipeline.distributed.ray_data import spread
from pipeline.files.atomic import atomic_write
from pipeline.files.packed_folder import PackedFolder, pack, unpack
from pipeline.inference.bulk_answers import answer_rows
from pipeline.inference.bulk_input import FilePart, Request, all_parts, open_input, pieces_of
from pipeline.inference.bulk_output import (
    Tally,
    as_parquet,
    check_output,
    claim_parts,
    finish,
    read_for_tally,
)
from pipeline.inference.predict import Predictor


def label_on_ray(
    request: Request, output: Path, cluster: Cluster, num_texts: int, report: Callable[[Tally], None]
) -> Tally:
    """Label all documents of the input into one file, as `label_files` does, on a Ray.

    All nodes have to reach the input by the names that this machine has for it; the classifier is sent to
    them. Raises what `label_files` raises, and ValueError if the Ray cannot be joined, or a node cannot read
    a file.
    """
    check_output(request, output)
    source = open_input(request, num_texts)
    folder, tally = claim_parts(request, source, output), Tally.of(request)
    missing, num_before = [], all_parts(source)
    for part in num_before:
        if (folder / part.name).exists():
            tally.add(read_for_tally(folder / part.name), made_before=True)
        else:
            missing.append(part)
    if missing:
        before = {part.name: num_before[part] for part in missing}
        held = Held(request, [pack(model) for model in request.models], before)
        with cluster:
            for name, content in spread(cluster, [part.name for part in missing], PartLabeller, held):
                atomic_write(folder / name, content)
                tally.add(read_for_tally(folder / name))
                report(tally)
    finish(folder, output, request, tally)
    return tally


@dataclass(frozen=True)
class Held:
    """Each worker is sent the request, the files of each classifier by name, and the places of the parts."""

    request: Request
    models: Sequence[PackedFolder]
    num_before: Mapping[str, int]  # documents before each part, by its name


class PartLabeller:
    """Labels parts in a worker, with a copy of the classifier."""

    def __init__(self, held: Held) -> None:
        self._request, self._num_before = held.request, held.num_before
        with tempfile.TemporaryDirectory(prefix="headstart-models-") as scratch:
            folders = [Path(scratch) / str(number) for number in range(len(held.models))]
            for folder, content in zip(folders, held.models, strict=True):
                unpack(content, folder)
            self._predictor = Predictor.load(*folders, precision=held.request.precision)
        try:
            self._source = open_input(self._request, self._predictor.num_texts)
        except ValueError as error:
            raise ValueError(f"on a node: {error}; all nodes have to reach the input by that name") from error

    def __call__(self, name: str) -> bytes:
        """Return the content of the file of a part, which the name tells."""
        answers, num_before = list[pl.DataFrame](), self._num_before[name]
        for piece in pieces_of(self._source, FilePart.of_name(name)):
            answers.append(answer_rows(piece.rows, self._predictor, self._request, num_before))
            num_before += len(piece.rows)
        return as_parquet(answers)
