"""Finds the objective of a family."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from models.family import Family
from models.objective import Objective


def objective_of(family: Family) -> type[Objective]:
    """Return the family's objective. Raises ValueError, naming the family, if it is unknown."""
    wanted: Any = family.objective
    if isinstance(wanted, type) and issubclass(wanted, Objective):
        return wanted
    known = _known_objectives()
    if wanted not in known:
        raise ValueError(
            f"the family {family.name} trains by {wanted!r}, which is no objective; known: "
            f"{', '.join(known)}, or a class in the family's file that extends models.objective.Objective"
        )
    objective: type[Objective] = importlib.import_module(f"pipeline.objectives.{wanted}").OBJECTIVE
    return objective


def _known_objectives() -> list[str]:
    """Modules beside this one that define `OBJECTIVE`, found without importing them."""
    files = Path(__file__).parent.glob("*.py")
    return sorted(file.stem for file in files if "\nOBJECTIVE = " in file.read_text(encoding="utf-8"))
