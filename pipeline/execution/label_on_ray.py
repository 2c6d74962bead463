"""`headstart predict --input` spread over a Ray: each node's workers label parts, this process keeps them."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.distributed.cluster import Cluster
from pipeline.files.atomic import atomic_write
from pipeline.inference.bulk import (
    Part,
    Request,
    Tally,
    all_parts,
    as_parquet,
    check_output,
    claim_parts,
    join_parts,
    labelled,
    labels_in,
    open_input,
    pieces_of,
)
from pipeline.inference.predict import Predictor

# Each worker is one process with one thread and a copy of the classifier.
_CPUS_OF_A_WORKER = 1


def label_on_ray(
    request: Request, output: Path, cluster: Cluster, num_texts: int, told: Callable[[Tally], None]
) -> Tally:
    """Label all documents of the input into one file, as `label_files` does, on a Ray.

    All nodes have to reach the input by the names that this machine has for it; the classifier is sent to
    them. Raises what `label_files` raises, and ValueError if the Ray cannot be joined, or a node cannot read
    a file.
    """
    check_output(output)
    source = open_input(request, num_texts)
    folder, tally = claim_parts(request, source, output), Tally()
    missing = []
    for part in all_parts(source):
        if (folder / part.name).exists():
            tally.add(labels_in(folder / part.name), made_before=True)
        else:
            missing.append(part)
    if missing:
        with cluster:
            for name, content in _labelled_parts(missing, request, cluster):
                atomic_write(folder / name, content)
                tally.add(labels_in(folder / name))
                told(tally)
    join_parts(folder, output)
    return tally


def _labelled_parts(parts: list[Part], request: Request, cluster: Cluster) -> Any:
    """Yield the name and the content of each part's file, in the order in which they are made."""
    num_cpus = int(sum(node.get("CPU", 0) for node in cluster.nodes()))
    import ray

    ray.data.DataContext.get_current().enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.WARNING)
    models = ray.put([_content_of(folder) for folder in request.models])
    rows = [{"file": part.file, "first_row": part.first_row} for part in parts]
    made = ray.data.from_items(rows, override_num_blocks=len(rows)).map_batches(
        Worker,
        fn_constructor_args=(request, models),
        batch_size=1,
        num_cpus=_CPUS_OF_A_WORKER,
        compute=ray.data.ActorPoolStrategy(min_size=1, max_size=max(1, num_cpus)),
    )
    try:
        for row in made.iter_rows():
            yield row["name"], row["content"]
    except ray.exceptions.RayError as error:
        if refusal := _refusal_in(error):
            raise ValueError(
                f"a node cannot label a part: {refusal}; all nodes have to reach the input by the same name"
            ) from error
        raise


def _refusal_in(error: BaseException | None) -> ValueError | None:
    while error is not None:
        cause = getattr(error, "cause", None)
        if isinstance(cause, ValueError):
            return cause
        error = error.__cause__
    return None


class Worker:
    """Labels parts in a process of a Ray, with a copy of the classifier."""

    def __init__(self, request: Request, models: Any) -> None:
        import ray
        import torch

        torch.set_num_threads(_CPUS_OF_A_WORKER)
        contents = ray.get(models)
        with tempfile.TemporaryDirectory(prefix="headstart-models-") as scratch:
            folders = [Path(scratch) / str(number) for number in range(len(contents))]
            for folder, content in zip(folders, contents, strict=True):
                _write(folder, content)
            self._predictor = Predictor.load(*folders, precision=request.precision)
        self._request = request
        self._source = open_input(request, self._predictor.num_texts)

    def __call__(self, batch: Mapping[str, np.ndarray]) -> dict[str, Any]:
        part = Part(int(batch["file"][0]), int(batch["first_row"][0]))
        pieces = pieces_of(self._source, part)
        made = [labelled(piece.rows, self._predictor, self._request) for piece in pieces]
        return {"name": [part.name], "content": [as_parquet(made)]}


def _content_of(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def _write(folder: Path, content: Mapping[str, bytes]) -> None:
    for name, data in content.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
