"""The fingerprint of a stage: the code and the packages that make its numbers, and nothing else.

Numbers live in rooms of their own (`NUMERICAL_ROOMS`); `tests/test_rooms.py` checks that these import no
operations code. Two more modules decide numbers (`NUMERICAL_ELSEWHERE`). A stage's fingerprint covers its own
file and the numerical modules below it, as parsed source without comments, docstrings, log calls and the
messages of `raise` and `assert`. It also covers the versions of the packages that those modules compute with.
So a fix in a lease, a progress bar or a message trains nothing again, and a changed formula or another torch
does.

A room's `settings.py` is left out on purpose: its values are in the key of the run anyway.
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib import metadata
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
_PACKAGES = ("pipeline", "models")

NUMERICAL_ROOMS = (
    "models",
    "pipeline.corpus",
    "pipeline.objectives",
    "pipeline.training",
    "pipeline.evaluation",
)
_STAGES = "pipeline.stages"
# Modules that decide numbers in rooms of operations: which of several settings of a head start holds, and
# which settings a search tries.
NUMERICAL_ELSEWHERE = ("pipeline.project.headstarts", "pipeline.distributed.sampling")
# Modules that every training uses, though its stage imports neither: they are called where it runs.
_TRAINS = ("pipeline.training.loop", "pipeline.training.precision")

# Packages that decide numbers, by the name they are imported under.
_COMPUTING = {
    "captum": "captum",
    "numpy": "numpy",
    "optuna": "optuna",  # of a search
    "polars": "polars",
    "ray": "ray",  # its early stopping in a search; else it only runs others' code
    "scipy": "scipy",
    "sentencepiece": "sentencepiece",
    "sklearn": "scikit-learn",
    "tokenizers": "tokenizers",
    "torch": "torch",
}
# Packages that only move data or call others. A test checks that each imported package is in one of the two.
NOT_COMPUTING = {"joblib", "pyarrow", "pydantic", "safetensors", "threadpoolctl"}

_LEVELS = {"debug", "info", "warning", "error", "exception", "critical"}  # methods of a logger


@dataclass(frozen=True)
class Fingerprint:
    """The code and packages that make a stage's numbers."""

    code: Mapping[str, str]  # module -> hash of its parsed source
    packages: Mapping[str, str]  # distribution -> version
    text: Mapping[str, str] = field(default_factory=dict)  # distributions whose documentation is the corpus

    @property
    def digest(self) -> str:
        content = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()

    def to_json(self) -> str:
        return json.dumps({"digest": self.digest, **asdict(self)}, indent=1, sort_keys=True) + "\n"


def fingerprint_of(
    *modules: str,
    families: Sequence[str] = (),
    trains: bool = False,
    text: Mapping[str, str] | None = None,
) -> Fingerprint:
    """The fingerprint of a stage, or of the trials that a sweep runs.

    Args:
        modules: the stage's module, or those that the trials are made of.
        families: the model families, which count, with their objectives, where the stage builds a model.
        trains: whether a training runs below it.
        text: the versions of the distributions whose documentation is its input (`source: pydocs`).
    """
    roots = [*modules, *(_TRAINS if trains else ())]
    found = numerical_modules(roots)
    if "models.family" in found:
        found = numerical_modules(
            [*roots, *(module for name in families for module in modules_of_family(name))]
        )
    imported = {name for module in found for name in _foreign_imports(module)}
    distributions = sorted({_COMPUTING[name] for name in imported if name in _COMPUTING})
    return Fingerprint(
        code={module: _parsed(module) for module in found},
        packages={name: _version(name) for name in distributions},
        text=dict(text or {}),
    )


def is_family(name: str) -> bool:
    """Whether `models/NAME.py` describes a family, found without importing it."""
    file = source_of(f"models.{name}")
    return file.is_file() and "\nFAMILY = " in file.read_text(encoding="utf-8")


def modules_of_family(name: str) -> list[str]:
    """The module of a family, and that of its objective where it names one of `pipeline/objectives`."""
    calls = (node for node in ast.walk(_tree(f"models.{name}")) if isinstance(node, ast.Call))
    described = next(call for call in calls if ast.unparse(call.func) == "Family")
    named = {each.arg: each.value for each in described.keywords}.get("objective")
    objective = named.value if isinstance(named, ast.Constant) else None
    return [f"models.{name}", *([f"pipeline.objectives.{objective!s}"] if objective else [])]


def numerical_modules(roots: Iterable[str]) -> list[str]:
    """The given modules and every numerical module and shared part of stages below them, sorted."""
    return _reached(roots, _counts)


def modules_of(*modules: str) -> list[str]:
    """The given modules and all our modules below them, sorted."""
    return _reached(modules, lambda module: True)


def _reached(roots: Iterable[str], follow: Callable[[str], bool]) -> list[str]:
    """Modules that some roots import, directly or not, as far as `follow` says."""
    found: set[str] = set()
    waiting = list(roots)
    while waiting:
        module = waiting.pop()
        if module not in found:
            found.add(module)
            waiting += [name for name in imports_of(module) if follow(name)]
    return sorted(found)


def _counts(module: str) -> bool:
    room, _, name = module.rpartition(".")
    is_part = room == _STAGES and name.startswith("_")
    return is_numerical(module) or module in NUMERICAL_ELSEWHERE or is_part


def is_numerical(module: str) -> bool:
    """Whether an edit in a module may change a number."""
    room, _, name = module.rpartition(".")
    return room in NUMERICAL_ROOMS and name != "settings"


def source_of(module: str) -> Path:
    base = _ROOT.joinpath(*module.split("."))
    return base / "__init__.py" if base.is_dir() else base.with_suffix(".py")


@cache
def imports_of(module: str) -> tuple[str, ...]:
    """Modules of ours that a module imports anywhere in its source, read without importing it."""
    names = (name for name in _imported(module) if name.split(".")[0] in _PACKAGES)
    return tuple(sorted({name for name in names if source_of(name).is_file()}))


def _foreign_imports(module: str) -> set[str]:
    return {name.split(".")[0] for name in _imported(module)} - set(_PACKAGES)


@cache
def _imported(module: str) -> frozenset[str]:
    names: set[str] = set()
    for node in ast.walk(_tree(module)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module)
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(names)


def _tree(module: str) -> ast.Module:
    return ast.parse(source_of(module).read_text(encoding="utf-8"))


@cache
def _parsed(module: str) -> str:
    """Hash of a module's parsed source without what decides no number."""
    return hashlib.sha256(ast.unparse(_Essence().visit(_tree(module))).encode()).hexdigest()[:16]


class _Essence(ast.NodeTransformer):
    """Removes docstrings, log calls, error messages, annotations of functions, and a stage's description."""

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        if getattr(node, "body", None) == [] and not isinstance(node, ast.Module):
            node.body = [ast.Pass()]  # type: ignore[attr-defined]
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        value = node.value
        is_text = isinstance(value, ast.Constant) and isinstance(value.value, str)
        return None if is_text or _is_log_call(value) else self.generic_visit(node)

    def visit_Pass(self, node: ast.Pass) -> None:
        return None

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        if isinstance(node.exc, ast.Call):
            node.exc = node.exc.func
        return node

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        node.msg = None
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.AST | None:
        is_logger = ast.unparse(node.value).startswith("logging.getLogger(")
        return None if is_logger or ast.unparse(node.targets[0]) == "STAGE" else self.generic_visit(node)

    def visit_Import(self, node: ast.Import) -> ast.AST | None:
        node.names = [alias for alias in node.names if alias.name != "logging"]
        return node if node.names else None

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node


def _is_log_call(value: ast.expr) -> bool:
    called = value.func if isinstance(value, ast.Call) else None
    return isinstance(called, ast.Attribute) and ast.unparse(called.value) == "log" and called.attr in _LEVELS


def _version(distribution: str) -> str:
    """The public version: a build for GPUs is the same package, as the device does not count."""
    try:
        return metadata.version(distribution).partition("+")[0]
    except metadata.PackageNotFoundError:  # an optional one
        return "not installed"
