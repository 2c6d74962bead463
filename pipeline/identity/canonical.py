"""The canonical form of a module: its source without what can change no number.

Two modules with the same form compute the same. The form leaves out

- comments, docstrings, log calls, and the texts of `raise`, `assert` and `warnings.warn`;
- annotations of functions, parameters and variables, and imports that only they need;
- the names of local variables, and of parameters that no caller can pass by keyword;
- the order of imports, functions, classes and methods.

Everything else stays. A class body keeps its annotations and the order of its fields, because dataclasses and
pydantic read them. A function with an unknown decorator keeps its names, annotations and place. A method
with the name of a builtin, or of something at the top of its module, keeps its place.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import groupby

from pipeline.identity.essence import Essence
from pipeline.identity.local_names import rename_locals
from pipeline.identity.module_facts import (
    Bound,
    Definition,
    Import,
    ModuleFacts,
    bound_in,
    defaults_of,
    in_scope,
    is_function,
    nodes_of,
)


class Source:
    """A module's source, and what is known about it. Syntax trees are large, so none is kept."""

    def __init__(self, text: str) -> None:
        self._text = text

    @cached_property
    def imported(self) -> frozenset[str]:
        """The dotted names that the module imports, also of what may be no module."""
        return frozenset(_imported(nodes_of(ast.parse(self._text))))

    @cached_property
    def imported_at_top(self) -> frozenset[str]:
        """Those that are imported outside functions."""
        return frozenset(_imported(in_scope(ast.parse(self._text).body)))

    @property
    def canonical(self) -> str:
        """The canonical form."""
        return self._canonical[0]

    @property
    def is_reflective(self) -> bool:
        """Whether the code looks at what the canonical form leaves out."""
        return self._canonical[1]

    @cached_property
    def as_written(self) -> str:
        """The form that leaves out comments and layout alone."""
        return ast.unparse(ast.parse(self._text))

    @cached_property
    def _canonical(self) -> tuple[str, bool]:
        tree = ast.parse(self._text)
        facts = ModuleFacts(tree)
        essence = Essence(facts)
        body = _with_imports_apart(essence.of_body(tree.body))
        unused = {name for name, times in essence.removed.items() if times == facts.uses[name]}
        tree.body = [node for node in body if not (isinstance(node, Import) and unused & {*bound_in([node])})]
        rename_locals(tree, self._text, facts)
        if facts.postpones_annotations and not facts.has_star_import:  # else more is evaluated in place
            _sort(tree, facts)
        return ast.unparse(tree), facts.is_reflective or essence.judges_errors


def forms_of(sources: Iterable[Source]) -> list[str]:
    """The forms of modules that run together.

    They are canonical unless one of the modules looks at names, annotations, the order of definitions or the
    text of errors. As it may look into the others, all are then taken as they are written.
    """
    modules = list(sources)
    as_written = any(module.is_reflective for module in modules)
    return [module.as_written if as_written else module.canonical for module in modules]


def _imported(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _with_imports_apart(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements, with one for each name that is imported."""
    for node in body:
        match node:
            case ast.Import(names):
                yield from (ast.Import([name]) for name in names)
            case ast.ImportFrom(module, names, level):
                yield from (ast.ImportFrom(module, [name], level) for name in names)
            case _:
                yield node


# ---------------------------------------------------------------------------------------------- order


def _sort(tree: ast.Module, facts: ModuleFacts) -> None:
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and not node.keywords:
            methods = [part for part in node.body if is_function(part)]
            node.body = _definitions_sorted(node.body, methods, facts.bound_inside(node), facts)
    definitions = [node for node in tree.body if isinstance(node, Definition)]
    tree.body = _definitions_sorted(tree.body, definitions, facts.bound, facts)
    tree.body = _imports_sorted(tree.body, facts.bound)


def _definitions_sorted(
    body: list[ast.stmt], definitions: Iterable[Definition], bound: Bound, facts: ModuleFacts
) -> list[ast.stmt]:
    """The other statements in their order, then those definitions by name that may stand anywhere.

    What such a definition evaluates is the same everywhere, and its name is bound once, so it means nothing
    else before.
    """
    movable = {
        node.name: node for node in definitions if bound[node.name] == 1 and _is_settled(node, bound, facts)
    }
    rest = [node for node in body if node not in movable.values()]
    return [*rest, *(movable[name] for name in sorted(movable))]


def _is_settled(node: ast.stmt, bound: Bound, facts: ModuleFacts) -> bool:
    """Whether what Python evaluates where a statement stands has the same value everywhere."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            return facts.is_plain(node) and facts.are_settled(defaults_of(node), bound)
        case ast.ClassDef(bases=bases, keywords=[], body=body):
            inside = facts.bound_inside(node)
            parts_are_settled = all(_is_settled(part, inside, facts) for part in body)
            return facts.is_plain(node) and facts.are_settled(bases, bound) and parts_are_settled
        case ast.Assign(value=value) | ast.AnnAssign(value=value):
            return value is None or facts.are_settled([value], bound)
    return isinstance(node, ast.Pass)


def _imports_sorted(body: list[ast.stmt], bound: Bound) -> list[ast.stmt]:
    """Sort each run of imports that bind their names once."""

    def is_sortable(node: ast.stmt) -> bool:
        return isinstance(node, Import) and all(bound[name] == 1 for name in bound_in([node]))

    runs = groupby(body, is_sortable)
    return [node for sortable, run in runs for node in (sorted(run, key=ast.unparse) if sortable else run)]
