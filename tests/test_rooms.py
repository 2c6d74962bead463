"""Who imports whom: rooms one way, numbers apart from operations, heavy packages in their place."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

from pipeline.identity.fingerprint import NUMERICAL_ROOMS, imports_of, source_of

ROOT = Path(__file__).resolve().parent.parent

# From the ground up: a room imports only rooms that stand before it.
FLOORS = (
    "models",
    "settings",
    "machine",
    "files",
    "figures",
    "terminal",
    "corpus",
    "objectives",
    "training",
    "evaluation",
    "identity",
    "tracking",
    "storage",
    "artifacts",
    "inference",
    "distributed",
    "sweeps",
    "project",
    "weights",
    "retention",
    "report",
    "stages",
    "execution",
    "doctor",
    "__main__",
)
# What decides no number and is used by what does: typed settings and figures, files that are written whole.
GROUND = {"settings", "files", "figures"}


def modules() -> list[str]:
    files = [*(ROOT / "pipeline").rglob("*.py"), *(ROOT / "models").rglob("*.py")]
    parts = [file.relative_to(ROOT).with_suffix("").parts for file in files]
    return sorted(".".join(part[:-1] if part[-1] == "__init__" else part) for part in parts)


def room(module: str) -> str:
    """`pipeline.corpus.tokens` -> `corpus`, `models.heads` -> `models`, `pipeline.__main__` -> `__main__`"""
    parts = module.split(".")
    return parts[0] if parts[0] == "models" or len(parts) == 1 else parts[1]


def rooms_imported(module: str) -> set[str]:
    return {room(other) for other in imports_of(module)} - {room(module), "pipeline"}


def test_nothing_stands_at_the_root_but_the_command_line():
    assert {file.name for file in (ROOT / "pipeline").glob("*.py")} == {"__init__.py", "__main__.py"}


def test_every_room_has_its_floor():
    assert {room(module) for module in modules()} - {"pipeline"} == set(FLOORS)


@pytest.mark.parametrize("name", FLOORS)
def test_imports_go_one_way(name):
    below = set(FLOORS[: FLOORS.index(name)])
    own = [module for module in modules() if room(module) == name]
    assert own
    for module in own:
        assert rooms_imported(module) <= below, module


def test_no_module_imports_itself_through_others():
    """Types count too: whoever reads a module of a circle has to read all of it."""
    files = [module for module in modules() if source_of(module).name != "__init__.py"]
    imported = {module: set(imports_of(module)) - {module} for module in files}
    while leaves := {module for module, others in imported.items() if not others & imported.keys()}:
        imported = {module: others for module, others in imported.items() if module not in leaves}
    assert sorted(imported) == []


@pytest.mark.parametrize("name", [name.rpartition(".")[2] for name in NUMERICAL_ROOMS])
def test_no_numerical_module_imports_an_operations_module(name):
    """Else its fingerprint would not cover what makes its numbers, or a fix in operations would change it."""
    numerical = {room.rpartition(".")[2] for room in NUMERICAL_ROOMS}
    for module in (each for each in modules() if room(each) == name):
        assert rooms_imported(module) <= numerical | GROUND, module


def test_nothing_imports_a_stage():
    for module in modules():
        stages = {other for other in imports_of(module) if other.startswith("pipeline.stages.")}
        shared = {other for other in stages if other.rsplit(".", 1)[1].startswith("_")}
        assert stages <= (shared if module.startswith("pipeline.stages.") else set()), module


MORE_FOR_MODELS = {
    "models.objective": ["numpy"],  # its contract names the type of the tokens that objectives are given
    "models.random_bits": ["numpy"],  # which has unsigned integers of 64 bits
    # Imported on a GPU alone, for which torch brings it.
    "models.triton_masks": ["triton"],
    "models.triton_attention": ["triton"],
}


@pytest.mark.parametrize(
    ("package", "allowed"),
    [
        ("ray", {"distributed", "doctor"}),
        ("mlflow", {"tracking", "inference"}),
        ("torch", None),
    ],
)
def test_heavy_packages_have_their_place(package, allowed):
    users = {room(each) for each in modules() if package in external_imports(each)}
    if allowed is not None:
        assert users == allowed
    else:  # models know torch and nothing else that is not in the standard library
        for module in (each for each in modules() if room(each) == "models"):
            foreign = external_imports(module) - set(sys.stdlib_module_names)
            assert foreign <= {"torch", *MORE_FOR_MODELS.get(module, ())}, module
        assert "models" in users


def external_imports(module: str) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(source_of(module).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.split(".")[0])
    return found - {"pipeline", "models"}
