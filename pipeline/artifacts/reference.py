"""A classifier carries what its training and validation documents were like; later ones are compared with it.

There is no text in it: a word is known by a number of 32 bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from pipeline.artifacts.tensor_folder import read_folder, write_folder
from pipeline.evaluation.feature_space import FeatureSpace
from pipeline.evaluation.reference import Reference, Sample

_FOLDER = "reference"  # beside the parts of a classifier
_SPACE = ("mean_F", "directions_KF", "class_means_CK")


def write_reference(folder: Path, reference: Reference) -> None:
    """Write the reference into a classifier's folder."""
    sample, space = reference.sample, reference.space
    tensors = {"words": torch.tensor(sorted(reference.words), dtype=torch.int64)}
    tensors |= {f"sample.{name}": torch.from_numpy(values) for name, values in sample.measures.items()}
    if space is not None:
        tensors |= {name: torch.from_numpy(getattr(space, name)) for name in _SPACE}
    (folder / _FOLDER).mkdir()
    write_folder(folder / _FOLDER, tensors, {"kind": _FOLDER, "labels": dict(sample.labels)})


def read_reference(folder: Path, measures: Sequence[str]) -> Reference | None:
    """Return the reference in a classifier's folder, or None where there is none.

    Raises ValueError if it is torn or altered.
    """
    if not (folder / _FOLDER).is_dir():
        return None
    tensors, state = read_folder(folder / _FOLDER)
    try:
        sample = Sample({name: tensors[f"sample.{name}"].numpy() for name in measures}, dict(state["labels"]))
        space = FeatureSpace(*(tensors[name].numpy() for name in _SPACE)) if _SPACE[0] in tensors else None
        return Reference(frozenset(tensors["words"].tolist()), space, sample)
    except KeyError as error:
        raise ValueError(f"{folder / _FOLDER} lacks {error}; run the stage `evaluate` again") from error
