"""How each stage describes itself, read from its source so that nothing heavy is imported."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

_FOLDER = Path(__file__).resolve().parents[1] / "stages"

Kind = Literal["prepares", "trains", "sweeps", "evaluates", "reports"]

# The argument that the run around a stage hands it, besides its settings and paths.
HANDED: Mapping[Kind, str] = {"trains": "session", "sweeps": "sweep", "reports": "provenance"}


@dataclass(frozen=True)
class Stage:
    """A stage's description of itself: the constant `STAGE` in its file, written in literals.

    Everything else that knows about stages derives it from here: the command line, tracking, `gc`, `lr-find`,
    the doctor and the tests on dvc.yaml.
    """

    place: int  # on the route, from 1; lists of stages are in this order
    kind: Kind  # prepares data; trains one model; sweeps: trains many; evaluates; reports
    sections: tuple[str, ...]  # dotted paths in params.yaml; `{headstart}`: the value of that flag
    outputs: tuple[str, ...] = ("out",)  # flags of what it writes; its other paths are inputs
    needs_labels: bool = False  # without labels it is passed over, and its outputs are empty
    registers: str | None = None  # the MLflow model that its last output becomes

    @property
    def is_training(self) -> bool:
        return self.kind in ("trains", "sweeps")


@cache
def names() -> tuple[str, ...]:
    """Names of all stages, in the order of the route."""
    found = (path.stem for path in _FOLDER.glob("*.py") if not path.stem.startswith("_"))
    return tuple(sorted(found, key=lambda name: describe(name).place))


def of_kind(*kinds: Kind) -> tuple[str, ...]:
    return tuple(name for name in names() if describe(name).kind in kinds)


@cache
def describe(name: str) -> Stage:
    """The `STAGE` of a stage's file."""
    for node in _source(name).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "STAGE":
            assert isinstance(node.value, ast.Call)
            values = {str(each.arg): ast.literal_eval(each.value) for each in node.value.keywords}
            return Stage(**values)
    raise AssertionError(f"{_FOLDER / name}.py has no STAGE")


def title(name: str) -> str:
    """The first line of a stage's docstring, without the leading "Stage:"."""
    return (ast.get_docstring(_source(name)) or "").splitlines()[0].removeprefix("Stage: ")


@cache
def arguments(name: str) -> Mapping[str, str]:
    """The flags of a stage with their annotations, without the argument that the run hands it."""
    run = next(
        node for node in _source(name).body if isinstance(node, ast.FunctionDef) and node.name == "run"
    )
    handed = HANDED.get(describe(name).kind)
    return {arg.arg: ast.unparse(arg.annotation or arg) for arg in run.args.kwonlyargs if arg.arg != handed}


@cache
def _source(name: str) -> ast.Module:
    return ast.parse((_FOLDER / f"{name}.py").read_text(encoding="utf-8"))
