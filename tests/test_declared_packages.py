"""Imported packages are declared in pyproject.toml, and declared packages are imported."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OURS = {"models", "pipeline", "tests"}

USED_WITHOUT_IMPORT = {
    "dvc": "the stages run its command line",
    "grpcio-reflection": "Ray Serve imports it",
    "mypy": "a tool of `make check`",
    "onnx": "torch.onnx imports it",
    "psycopg2-binary": "SQLAlchemy imports it for PostgreSQL",
    "ruff": "a tool of `make check`",
}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def declared() -> dict[str, set[str]]:
    """The declared distributions, by group: `required`, or the name of the extra."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    groups = {"required": project["dependencies"], **project["optional-dependencies"]}
    return {
        group: {normal(re.split(r"[^\w.-]", each, maxsplit=1)[0]) for each in requirements}
        for group, requirements in groups.items()
    }


def imported(*folders: str) -> dict[str, str]:
    """A file that imports it, for each top-level name of other people's packages."""
    found: dict[str, str] = {}
    for file in (file for folder in folders for file in sorted((ROOT / folder).rglob("*.py"))):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = [node.module]
            else:
                continue
            for name in names:
                found.setdefault(name.partition(".")[0], str(file.relative_to(ROOT)))
    return {name: file for name, file in found.items() if name not in OURS | sys.stdlib_module_names}


def owners(name: str) -> set[str]:
    """The distributions that install a top-level name; its own name if none of them is installed."""
    return {normal(each) for each in _OWNERS.get(name, [name])}


_OWNERS = metadata.packages_distributions()


def test_every_imported_package_is_declared():
    known = set().union(*(names for group, names in declared().items() if group != "dev"))
    found = imported("models", "pipeline")
    missing = {name: file for name, file in found.items() if not owners(name) & known}
    assert missing == {}


def test_every_declared_package_is_imported_or_used_in_another_way():
    names = set().union(*declared().values())
    found = {owner for name in imported("models", "pipeline", "tests") for owner in owners(name)}
    assert names - found == USED_WITHOUT_IMPORT.keys()
