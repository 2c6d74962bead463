"""The distributions whose documentation is the default corpus, and their files.

`pydocs_distributions.txt` lists them with the versions that the published figures were made with. Only files
that a listed distribution installed are read, so installing any other package leaves the corpus as it is.

The list is `requirements.lock` plus pip, whose documentation was always part of the corpus. pip comes with
Python, so its version differs between machines; `prepare` warns about that as about any other version.
"""

from __future__ import annotations

import platform
import sysconfig
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Literal

Part = Literal["general", "target"]

_LIST = Path(__file__).with_name("pydocs_distributions.txt")
# The distributions that install the ten target libraries. The general part reads all the others, and these to
# leave out what the target has.
_TARGET_DISTRIBUTIONS = frozenset(
    (
        "mlflow",
        "mlflow-skinny",
        "mlflow-tracing",
        "networkx",
        "pandas",
        "polars",
        "ray",
        "scikit-learn",
        "scipy",
        "SQLAlchemy",
        "sympy",
        "torch",
    )
)
_MOST_NAMED = 5

# Vendored code inside a library, whose text would get the wrong label.
VENDORED_FOLDERS = frozenset(
    ("_vendor", "_vendored", "vendor", "vendored", "thirdparty_files", "third_party", "site-packages")
)


def listed_versions(part: Part) -> dict[str, str]:
    """The version of each distribution on the list that a part of the corpus depends on."""
    lines = _LIST.read_text(encoding="utf-8").splitlines()
    versions = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    return {
        name: version
        for name, version in versions.items()
        if part == "general" or name in _TARGET_DISTRIBUTIONS
    }


def installed_versions(part: Part, folders: Iterable[Path] | None = None) -> dict[str, str | None]:
    """The installed version of each listed distribution, None if it is missing.

    A build for GPUs (`2.13.0+cu130`) has the same documentation, so the local part of a version is left out.
    """
    return {
        name: distribution.version.partition("+")[0] if distribution else None
        for name, distribution in _listed(part, folders).items()
    }


def text_versions(part: Part) -> dict[str, str]:
    """The versions of Python and of the distributions that a part of the corpus depends on."""
    installed = installed_versions(part)
    return {
        "python": platform.python_version(),
        **{name: version or "not installed" for name, version in installed.items()},
    }


def version_warning(part: Part, folders: Iterable[Path] | None = None) -> str | None:
    """Return one line that names the distributions that are missing or have another version than listed."""
    installed = installed_versions(part, folders)
    different = [
        f"{name} {installed[name]} instead of {version}" if installed[name] else f"{name} is missing"
        for name, version in listed_versions(part).items()
        if installed[name] != version
    ]
    if not different:
        return None
    named = different[:_MOST_NAMED]
    if len(different) > len(named):
        named.append(f"and {len(different) - len(named)} more")
    return (
        f"{len(different)} of the {len(installed)} packages whose documentation is read differ from those of "
        f"the published figures: {', '.join(named)}"
    )


def python_files(folders: Iterable[Path] | None = None) -> dict[str, list[Path]]:
    """The Python files of the listed distributions, in order, by top-level package or module."""
    path_of: dict[tuple[str, ...], Path] = {}  # by the parts of the name in a distribution's list
    for distribution in _listed("general", folders).values():
        for file in (distribution.files if distribution else None) or ():
            if file.suffix == ".py" and _is_read(file.parts):
                path_of.setdefault(file.parts, Path(str(file.locate())))
    packages = {parts[0] for parts in path_of if len(parts) > 1}
    files: dict[str, list[Path]] = {}
    for parts, path in sorted(path_of.items()):
        top = path.stem if len(parts) == 1 else parts[0]
        hidden = len(parts) == 1 and top in packages  # Python imports the package of that name
        if not hidden and path.is_file():
            files.setdefault(top, []).append(path)
    return files


def _is_read(parts: tuple[str, ...]) -> bool:
    """Whether a file is a module, or in a package that is not vendored (`../bin` is no package)."""
    return len(parts) == 1 or (parts[0].isidentifier() and not VENDORED_FOLDERS.intersection(parts))


def _listed(part: Part, folders: Iterable[Path] | None) -> dict[str, metadata.Distribution | None]:
    path = [str(folder) for folder in (_site_folders() if folders is None else folders)]
    return {
        name: next(iter(metadata.distributions(name=name, path=path)), None) for name in listed_versions(part)
    }


def _site_folders() -> list[Path]:
    paths = sysconfig.get_paths()
    return [Path(folder) for folder in sorted({paths["purelib"], paths["platlib"]})]
