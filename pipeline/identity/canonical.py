"""The canonical form of a module: its source without what can change no number.

Two modules with the same form compute the same. The form leaves out

- comments, docstrings, log calls, and the texts of `raise`, `assert` and `warnings.warn`;
- annotations of functions, parameters and variables, and imports that only they need;
- the names of local variables, and of parameters that no caller can pass by keyword;
- the order of imports, functions, classes and methods.

Everything else stays. A class body keeps its annotations and the order of its fields, because dataclasses and
pydantic read them. A function with an unknown decorator keeps its names, annotations and place.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property

from pipeline.identity.essence import Essence
from pipeline.identity.local_names import rename_locals
from pipeline.identity.module_facts import (
    ModuleFacts,
    bound_in,
    defaults_of,
    imported_by,
    in_scope,
    is_function,
    nodes_of,
)

_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


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
        tree.body = essence.of_body(tree.body)
        _drop_imports(tree, {name for name, times in essence.removed.items() if times == facts.uses[name]})
        rename_locals(tree, self._text, facts)
        if facts.postpones_annotations and not facts.has_star_import:  # else more is evaluated in place
            _sort(tree, facts)
        return ast.unparse(tree), facts.is_reflective


def forms_of(sources: Iterable[Source]) -> list[str]:
    """The forms of modules that run together.

    They are canonical unless one of the modules looks at names, at the order of definitions or at the text of
    errors. As it may look into the others, all are then taken as they are written.
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


def _drop_imports(tree: ast.Module, names: set[str]) -> None:
    """Drop the imports of names that only annotations, messages and log calls used."""
    for node in list(tree.body):
        if isinstance(node, ast.Import | ast.ImportFrom):
            bound = [name for name, _ in imported_by(node)]
            node.names = [alias for alias, name in zip(node.names, bound, strict=True) if name not in names]
            if not node.names:
                tree.body.remove(node)


# ---------------------------------------------------------------------------------------------- order


def _sort(tree: ast.Module, facts: ModuleFacts) -> None:
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and not node.keywords:
            node.body = _definitions_sorted(node.body, _movable_methods(node, facts))
    movable = [node for node in tree.body if _is_movable(node, facts)]
    tree.body = _imports_sorted(_definitions_sorted(tree.body, movable), facts)


def _definitions_sorted(body: list[ast.stmt], movable: Sequence[ast.stmt]) -> list[ast.stmt]:
    """The other statements in their order, then the movable definitions by name."""
    moved = set(map(id, movable))
    rest = [node for node in body if id(node) not in moved]
    return [*rest, *sorted(movable, key=_name_of)]


def _name_of(node: ast.stmt) -> str:
    assert isinstance(node, _Definition)
    return node.name


def _is_movable(node: ast.stmt, facts: ModuleFacts) -> bool:
    """Whether a definition at the top of a module is the same wherever it stands.

    Its name is bound once, and what Python evaluates where it stands has the same value everywhere.
    """
    if not isinstance(node, _Definition) or facts.bound[node.name] != 1 or not facts.is_plain(node):
        return False
    if is_function(node):
        return all(map(facts.is_settled, defaults_of(node)))
    assert isinstance(node, ast.ClassDef)
    fields = [part for part in node.body if not is_function(part)]
    methods = [part for part in node.body if is_function(part)]
    return (
        not node.keywords
        and all(map(facts.is_settled, node.bases))
        and all(_is_field(part, facts) for part in fields)
        and all(facts.is_plain(part) and all(map(facts.is_settled, defaults_of(part))) for part in methods)
    )


def _is_field(node: ast.stmt, facts: ModuleFacts) -> bool:
    is_value = isinstance(node, ast.AnnAssign | ast.Assign) and facts.is_settled(node.value)
    return is_value or isinstance(node, ast.Pass)


def _movable_methods(node: ast.ClassDef, facts: ModuleFacts) -> list[ast.stmt]:
    """Methods that neither use a name of the class body where they stand nor are used by it."""
    bound = bound_in(node.body)
    loaded = {part.id for part in in_scope(node.body) if isinstance(part, ast.Name)}
    return [
        part
        for part in node.body
        if is_function(part)
        and bound.count(part.name) == 1
        and part.name not in loaded
        and facts.is_plain(part)
        and all(map(facts.is_settled, defaults_of(part)))
        and not {name.id for name in in_scope([*defaults_of(part), *part.decorator_list])
                 if isinstance(name, ast.Name)} & set(bound)
    ]  # fmt: skip


def _imports_sorted(body: list[ast.stmt], facts: ModuleFacts) -> list[ast.stmt]:
    """Sort each run of imports that bind every name once."""
    result: list[ast.stmt] = []
    run: list[ast.stmt] = []
    for node in [*body, ast.Pass()]:
        if isinstance(node, ast.Import | ast.ImportFrom):
            run += _one_each(node)
            continue
        is_sortable = all(facts.bound[name] == 1 for name in bound_in(run))
        result += [*(sorted(run, key=ast.unparse) if is_sortable else run), node]
        run = []
    return result[:-1]


def _one_each(node: ast.Import | ast.ImportFrom) -> list[ast.stmt]:
    if isinstance(node, ast.Import):
        return [ast.Import([alias]) for alias in node.names]
    return [ast.ImportFrom(node.module, [alias], node.level) for alias in node.names]
