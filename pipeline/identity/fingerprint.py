"""The fingerprint of a stage: the code and packages that make its numbers, and nothing else.

Numbers live in rooms of their own (`NUMERICAL_ROOMS`); `tests/test_rooms.py` checks that these import no
operations code. Others decide numbers, too (`NUMERICAL_ELSEWHERE`). A stage's fingerprint covers its own
file and the numerical modules below it in their canonical form (`pipeline/identity/canonical.py`), and the
versions of the packages that those modules compute with. So a fix in a lease, a reworded message or a renamed
variable trains nothing again, and a changed formula or another torch does.

A room's `settings.py` is left out on purpose: its values are in the key of the run anyway, and its methods
compute nothing (`tests/test_fingerprint.py`).
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache, partial
from importlib import metadata
from pathlib import Path

from pipeline.identity.canonical import Source, forms_of

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
# Modules that decide numbers in other rooms: which of several settings of a head start or a student holds,
# which arms there are and what each reads, which settings a search tries, how figures are added, and on which
# documents a classifier is judged.
NUMERICAL_ELSEWHERE = (
    "pipeline.project.headstarts",
    "pipeline.project.arms",
    "pipeline.project.student",
    "pipeline.project.sizes",
    "pipeline.distributed.sampling",
    "pipeline.settings.arm",
    "pipeline.figures.cost",
    "pipeline.figures.estimates",
    "pipeline.figures.label_curve",
    "pipeline.inference.reference_sample",
)
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
# Packages that only move data or call others, and Triton: torch, whose version counts, brings it where there
# is a GPU. A test checks that each imported package is in one of the two.
NOT_COMPUTING = {"joblib", "pyarrow", "pydantic", "safetensors", "threadpoolctl", "triton"}


@dataclass(frozen=True)
class Fingerprint:
    """The code and packages that make a stage's numbers."""

    modules: Mapping[str, str]  # module -> hash of its canonical form
    packages: Mapping[str, str]  # distribution -> version
    text: Mapping[str, str] = field(default_factory=dict)  # distributions whose documentation is the corpus

    @property
    def digest(self) -> str:
        content = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()


def fingerprint_of(
    *modules: str,
    families: Sequence[str] = (),
    optional: Collection[str] = (),
    trains: bool = False,
    text: Mapping[str, str] | None = None,
) -> Fingerprint:
    """The fingerprint of a stage, or of the trials that a sweep runs.

    Args:
        modules: the stage's module, or those that the trials are made of.
        families: the model families, which count, with their objectives, where the stage builds a model.
        optional: as `numerical_modules` takes them; those that count are among `modules`.
        trains: whether a training runs below it.
        text: the versions of the distributions whose documentation is its input (`source: pydocs`).
    """
    roots = [*modules, *(_TRAINS if trains else ())]
    counted = numerical_modules(roots, optional)
    if "models.family" in counted:
        of_families = [module for name in families for module in modules_of_family(name)]
        counted = numerical_modules([*roots, *of_families], optional)
    imported = {name for module in counted for name in _foreign_imports(module)}
    distributions = sorted({_COMPUTING[name] for name in imported if name in _COMPUTING})
    hashes = [hashlib.sha256(form.encode()).hexdigest()[:16] for form in forms_of(map(_source, counted))]
    return Fingerprint(
        modules=dict(zip(counted, hashes, strict=True)),
        packages={name: _version(name) for name in distributions},
        text=dict(text or {}),
    )


def modules_of_family(name: str) -> list[str]:
    """The module of a family, and that of its objective where it names one of `pipeline/objectives`."""
    calls = (node for node in ast.walk(ast.parse(_text(f"models.{name}"))) if isinstance(node, ast.Call))
    described = next(call for call in calls if ast.unparse(call.func) == "Family")
    named = {keyword.arg: keyword.value for keyword in described.keywords}.get("objective")
    objective = named.value if isinstance(named, ast.Constant) else None
    return [f"models.{name}", *([f"pipeline.objectives.{objective!s}"] if objective else [])]


def numerical_modules(roots: Iterable[str], optional: Collection[str] = ()) -> list[str]:
    """The given modules and every numerical module and shared part of stages below them, sorted.

    `optional` are parts of stages that only some head starts need: one that is imported inside a function
    does not count, so whoever needs it names it among the roots.
    """
    return _reached(roots, partial(_counted_imports, optional=optional))


def modules_of(*modules: str) -> list[str]:
    """The given modules and all our modules below them, sorted."""
    return _reached(modules, imports_of)


def _reached(roots: Iterable[str], below: Callable[[str], Iterable[str]]) -> list[str]:
    reached: set[str] = set()
    waiting = list(roots)
    while waiting:
        module = waiting.pop()
        if module not in reached:
            reached.add(module)
            waiting += below(module)
    return sorted(reached)


def _counted_imports(module: str, optional: Collection[str]) -> list[str]:
    """The imports of a module that its fingerprint covers."""
    at_top = _source(module).imported_at_top
    return [name for name in imports_of(module)
            if _counts(name) and (name not in optional or name in at_top)]  # fmt: skip


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
    names = (name for name in _source(module).imported if name.split(".")[0] in _PACKAGES)
    return tuple(sorted({name for name in names if source_of(name).is_file()}))


def _foreign_imports(module: str) -> set[str]:
    return {name.split(".")[0] for name in _source(module).imported} - set(_PACKAGES)


def _source(module: str) -> Source:
    return _parsed(_text(module))


@cache
def _text(module: str) -> str:
    return source_of(module).read_text(encoding="utf-8")


@cache
def _parsed(text: str) -> Source:
    return Source(text)


def _version(distribution: str) -> str:
    """The public version: a build for GPUs is the same package, as the device does not count."""
    try:
        return metadata.version(distribution).partition("+")[0]
    except metadata.PackageNotFoundError:  # an optional one
        return "not installed"
