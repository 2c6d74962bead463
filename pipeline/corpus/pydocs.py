"""The built-in default corpus: docstrings of libraries that the project installs anyway.

Files are parsed with `ast`, never imported. Two parts:

- target: the opening prose (paragraphs before parameter lists, sections and code) of ten libraries,
  labelled with the library; library names are masked, as they would give the label away;
- general: all prose of the docstrings of the standard library and of the other listed distributions
  (`distributions.py`), and the `pydoc` topics (the language reference).

Documents come in a fixed order (library, file, line), wherever Python is installed. A general document
that is also a target document is left out.
"""

from __future__ import annotations

import ast
import contextlib
import gc
import inspect
import multiprocessing
import os
import re
import sysconfig
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.corpus.distributions import VENDORED_FOLDERS, python_files

# Target libraries, and the names that their documentation uses for them. A short alias such as `pd` or `pl`
# only counts before a dot.
TARGET_LIBRARIES: Mapping[str, tuple[str, ...]] = {
    "mlflow": ("mlflow",),
    "networkx": ("networkx", r"nx(?=\.)"),
    "pandas": ("pandas", r"pd(?=\.)"),
    "polars": ("polars", r"pl(?=\.)"),
    "ray": ("ray", "rllib"),
    "scipy": ("scipy", r"sp(?=\.)"),
    "sklearn": ("sklearn", r"scikit[-\s]?learn"),
    "sqlalchemy": ("sqlalchemy", r"sa(?=\.)"),
    "sympy": ("sympy",),
    "torch": ("torch", "pytorch", "libtorch"),
}
MASK = "library"

_NUM_PROCESSES = min(4, os.cpu_count() or 1)
_FILES_WORTH_PROCESSES = 500  # fewer are parsed before a process has started
_FILES_PER_TASK = 50

# CPython's own tests are not installed everywhere, so they would make the corpus differ by machine.
_NOT_STANDARD = ("test", "idlelib", "lib2to3")

_NAMES = "|".join(name for names in TARGET_LIBRARIES.values() for name in names)
_MASKED = re.compile(rf"(?<![a-z0-9])(?:{_NAMES})(?![a-z0-9])", re.IGNORECASE)
_ROLE = re.compile(r":[a-zA-Z][\w:+-]*:`([^`]*)`")  # :class:`~a.b.C`
_ROLE_TARGET = re.compile(r"\s*<[^<>]*>$")  # the address in `text <address>`
_UNDERLINE = re.compile(r"^([=\-~^*#+\"'`])\1{2,}$")
_FIELD = re.compile(r"^(?::\w+[^:`]*:(?!`)|@\w+\s|[-*]\s+:?\w+\s*:)")  # :param x:, @param x
_SECTION = re.compile(
    r"^(?:args?|arguments?|parameters?|params|other parameters|keyword arg(?:ument)?s|kwargs|returns?"
    r"|yields?|raises?|warns?|examples?|usage|notes?|see also|references?|attributes?|methods?|properties)"
    r"\s*:+\s*$",
    re.IGNORECASE,
)
_CODE = re.compile(
    r"^(?:>>>|\.\.\s|\$ |%|```|~~~|\||\+[-=]|class\s+\w+\(|def \w+\(|import \w|from \w+ import )"
)


@dataclass
class Extraction:
    """The documents found, and counts of those skipped by reason. `labels` index `label_names`."""

    texts: list[str] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    label_names: tuple[str, ...] | None = None
    skipped: Counter[str] = field(default_factory=Counter)


def extract_target(
    min_words: int, site_folders: Iterable[Path] | None = None, *, every: int = 1
) -> Extraction:
    """Extract the target part: the opening prose of the ten libraries, labelled with the library.

    Only every `every`-th file is read.

    Raises:
        ValueError: fewer than two of the libraries are installed.
    """
    libraries = _targets(python_files(site_folders))
    names = tuple(sorted(libraries))
    if len(names) < 2:
        raise ValueError(
            f"pydocs: {len(names)} of the libraries {', '.join(sorted(TARGET_LIBRARIES))} are installed, "
            "but at least two are needed as classes; install the project's dependencies, or set "
            "`corpus.target.source` to files of your own"
        )
    extraction = Extraction(label_names=names)
    keys: set[str] = set()
    for name, docstring in _docstrings_below(libraries, every, extraction.skipped):
        text = opening(docstring)
        if _keep(text, min_words, keys, extraction.skipped):
            extraction.texts.append(text)
            extraction.labels.append(names.index(name))
    return extraction


def extract_general(
    min_words: int,
    site_folders: Iterable[Path] | None = None,
    standard_library: Path | None = None,
    *,
    every: int = 1,
) -> Extraction:
    """Extract the general part: standard library, `pydoc` topics and packages outside the target.

    Only every `every`-th file is read, as for the target.
    """
    standard_library = standard_library or Path(sysconfig.get_paths()["stdlib"])
    extraction = Extraction()
    packages = python_files(site_folders)
    keys = _target_keys(packages, every)
    for document in _general_documents(packages, standard_library, every, extraction.skipped):
        if _keep(document, min_words, keys, extraction.skipped):
            extraction.texts.append(document)
    return extraction


def opening(docstring: str) -> str:
    """Return the prose before the first parameter list, section or code, library names masked."""
    kept = []
    for paragraph in _paragraphs(docstring):
        if not _is_prose(paragraph):
            break
        kept.append(_as_prose(paragraph))
        if paragraph[-1].endswith("::"):  # what follows is code
            break
    return mask(" ".join(kept))


def prose(docstring: str) -> str:
    """Return the paragraphs of prose, one per line, without headings, parameter lists and code."""
    return "\n".join(_as_prose(lines) for lines in _paragraphs(docstring) if _is_prose(lines))


def mask(text: str) -> str:
    """Replace the names and aliases of the target libraries."""
    return _MASKED.sub(MASK, text)


def _keep(text: str, min_words: int, keys: set[str], skipped: Counter[str]) -> bool:
    if len(text.split()) < min_words:
        skipped["too_short"] += 1
        return False
    key = _key(text)
    if key in keys:
        skipped["duplicate"] += 1
        return False
    keys.add(key)
    return True


def _key(text: str) -> str:
    """Return a key that ignores case, spacing, punctuation and library names, to find duplicates."""
    return " ".join(re.findall(r"\w+", mask(text).lower()))


def _targets(packages: Mapping[str, list[Path]]) -> dict[str, list[Path]]:
    return {name: files for name, files in packages.items() if name in TARGET_LIBRARIES}


def _target_keys(packages: Mapping[str, list[Path]], every: int) -> set[str]:
    documents = _docstrings_below(_targets(packages), every, Counter())
    return {_key(opening(docstring)) for _, docstring in documents}


def _general_documents(
    packages: Mapping[str, list[Path]], standard_library: Path, every: int, skipped: Counter[str]
) -> Iterator[str]:
    yield from _topics(standard_library / "pydoc_data" / "topics.py")
    others = {name: files for name, files in packages.items() if name not in TARGET_LIBRARIES}
    for part in (_standard_files(standard_library), others):
        for _, docstring in _docstrings_below(part, every, skipped):
            yield prose(docstring)


def _standard_files(folder: Path) -> dict[str, list[Path]]:
    """The Python files of the standard library by top-level package or module; a package hides a module."""
    files: dict[str, list[Path]] = {}
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        is_package = path.is_dir() and path.name.isidentifier() and path.name not in VENDORED_FOLDERS
        if path.stem not in _NOT_STANDARD and (is_package or path.suffix == ".py"):
            files.setdefault(path.stem, _files_below(path))
    return files


def _docstrings_below(
    packages: Mapping[str, list[Path]], every: int, skipped: Counter[str]
) -> Iterator[tuple[str, str]]:
    """Yield pairs of package name and docstring of every n-th file, in order of package, file and line."""
    files = [(name, file) for name in sorted(packages) for file in packages[name]][::every]
    parsed = _each_files_docstrings([file for _, file in files])
    for (name, _), docstrings in zip(files, parsed, strict=True):
        if docstrings is None:
            skipped["unparsable_file"] += 1
        else:
            yield from ((name, docstring) for docstring in docstrings)


def _each_files_docstrings(files: list[Path]) -> Iterator[list[str] | None]:
    if len(files) < _FILES_WORTH_PROCESSES:
        yield from map(_docstrings_in, files)
        return
    # Spawned, not forked: a forked child may deadlock on locks that polars' threads hold.
    with ProcessPoolExecutor(_NUM_PROCESSES, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(_docstrings_in, files, chunksize=_FILES_PER_TASK)


def _docstrings_in(file: Path) -> list[str] | None:
    """Return a file's docstrings in order of line, or None if Python cannot parse it."""
    source = file.read_bytes()
    # Long docstrings are triple-quoted; skipping files without any saves a quarter of the time.
    if b'"""' not in source and b"'''" not in source:
        return []
    with _no_garbage_collection(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # other people's invalid escapes
        try:
            return list(_docstrings(ast.parse(source)))
        except (SyntaxError, ValueError, RecursionError):
            return None


def _files_below(package: Path) -> list[Path]:
    if package.is_file():  # a single module
        return [package]
    relative = (file.relative_to(package) for file in package.rglob("*.py"))
    kept = (file for file in relative if not VENDORED_FOLDERS.intersection(file.parts))
    return [package / file for file in sorted(kept, key=lambda file: file.parts)]


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Pause garbage collection, which halves the speed: syntax trees are many objects without cycles."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _docstrings(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        docstring = ast.get_docstring(node, clean=True)
        if docstring:
            yield docstring
    # Only statements hold definitions: no need to walk expressions.
    for block in ("body", "handlers", "orelse", "finalbody"):
        for child in getattr(node, block, ()):
            yield from _docstrings(child)


def _topics(file: Path) -> Iterator[str]:
    """Yield the texts of `pydoc_data.topics`, a module that assigns one dictionary of strings."""
    if not file.is_file():  # some distributions package it separately
        return
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Dict):
            for value in node.values:
                if isinstance(value, ast.Constant) and isinstance(value.value, str):
                    yield prose(inspect.cleandoc(value.value))


def _paragraphs(docstring: str) -> Iterator[list[str]]:
    """Yield blocks of non-empty lines, indentation kept; a section's heading starts a new block."""
    block: list[str] = []
    for line in docstring.expandtabs().splitlines():
        stripped = line.strip()
        starts_section = bool(_SECTION.match(stripped) or _FIELD.match(stripped) or _CODE.match(stripped))
        if block and (not stripped or (starts_section and not _is_marked(block))):
            yield block
            block = []
        if stripped:
            block.append(line.rstrip())
    if block:
        yield block


def _is_marked(block: list[str]) -> bool:
    first = block[0].strip()
    return bool(_SECTION.match(first) or _FIELD.match(first) or _CODE.match(first))


def _is_prose(block: list[str]) -> bool:
    indented = block[0].startswith("    ")
    underlined = any(_UNDERLINE.match(line.strip()) for line in block)
    return not (indented or underlined or _is_marked(block))


def _as_prose(block: list[str]) -> str:
    """Join the lines and strip markup: roles, code quotes, emphasis."""
    text = " ".join(line.strip() for line in block)
    text = _ROLE.sub(lambda match: _ROLE_TARGET.sub("", match[1]).lstrip("~!"), text)
    text = text.replace("``", "").replace("`", "").replace("**", "")
    return re.sub(r"::$", ":", text)
