"""Canonical names for local variables and parameters: `$0`, `$1`, ... in the order in which they occur.

A name gets a new one only if the compiler finds it local in every scope of the outermost function that uses
it. Comprehensions and lambdas have new names of their own; inner functions share those of the outermost one.
So the renamed function binds and resolves its names as the original does.

A parameter keeps its name if a caller may pass it by keyword: the call may stand in code that no fingerprint
covers, and if two parameters swapped their names, it would pass other values. So the names are free

- in a private function that its own module calls by name and without `**mapping`, whose calls are renamed
  with it;
- of the only parameter of a function, which cannot be confused with another;
- of `self`, `*args`, `**kwargs` and positional-only parameters.
"""

from __future__ import annotations

import ast
import symtable
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count

from pipeline.identity.module_facts import (
    Function,
    ModuleFacts,
    bound_in,
    children_of,
    defaults_of,
    is_function,
    nodes_of,
    parameters_of,
)

_Comprehension = ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp


def rename_locals(tree: ast.Module, source: str, facts: ModuleFacts) -> None:
    """Rename the locals of each function and method; `source` is what `tree` was parsed from."""
    tables = _outermost_tables(symtable.symtable(source, "<source>", "exec"))
    of_keywords: dict[str, Mapping[str, str]] = {}
    for node, is_method in _outermost(tree.body):
        free = _local_names(tables.get((node.name, node.lineno), []))
        scope = _Scope(free - _kept_parameters(node, facts, is_method=is_method))
        by_keyword = [arg.arg for arg in (*node.args.args, *node.args.kwonlyargs)]
        # Parameters have their numbers by position. Decorators and defaults belong to the scope outside.
        for part in (*parameters_of(node.args), *node.body):
            _rename(part, scope)
        if facts.private_functions.get(node.name) is node:
            of_keywords[node.name] = {name: scope.new_name(name) for name in by_keyword}
    for call in facts.calls:
        if isinstance(call.func, ast.Name) and (new := of_keywords.get(call.func.id)):
            for keyword in call.keywords:
                keyword.arg = new.get(keyword.arg or "", keyword.arg)


class _Scope:
    """The new names of a function's locals, or of those that a comprehension or lambda in it binds."""

    def __init__(self, own: set[str], outside: _Scope | None = None) -> None:
        self._own = own
        self._outside = outside
        self._new: dict[str, str] = {}
        self._root: _Scope = outside._root if outside else self
        self._numbers: Iterator[int] = outside._numbers if outside else count()

    def inside(self, bound: Iterable[str]) -> _Scope:
        return _Scope(self._root._own.intersection(bound), self)

    def new_name(self, name: str) -> str:
        if name in self._own:
            return self._new.get(name) or self._new.setdefault(name, f"${next(self._numbers)}")
        return self._outside.new_name(name) if self._outside else name


def _rename(node: ast.AST, scope: _Scope) -> None:
    match node:
        case ast.Name():
            node.id = scope.new_name(node.id)
            return
        case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
            _rename_comprehension(node, scope)
            return
        case ast.Lambda() if not any(isinstance(part, ast.NamedExpr) for part in nodes_of(node)):
            for default in defaults_of(node):
                _rename(default, scope)
            parameters = parameters_of(node.args)
            inside = scope.inside(arg.arg for arg in parameters)
            for part in (*parameters, node.body):
                _rename(part, inside)
            return
        case ast.arg():
            node.arg = scope.new_name(node.arg)
        case ast.Nonlocal():
            node.names = list(map(scope.new_name, node.names))
        case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(str(name)):
            node.name = scope.new_name(name)
        case ast.MatchMapping(rest=str(name)):
            node.rest = scope.new_name(name)
    for child in children_of(node):
        _rename(child, scope)


def _rename_comprehension(node: _Comprehension, scope: _Scope) -> None:
    """The first iterable belongs to the scope outside, all else to that of the comprehension."""
    first, *others = node.generators
    _rename(first.iter, scope)
    inside = scope.inside(name for part in node.generators for name in bound_in([part.target]))
    parts: list[ast.AST] = [first.target, *first.ifs, *others]
    parts += [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
    for part in parts:
        _rename(part, inside)


def _outermost(body: list[ast.stmt], *, is_class: bool = False) -> Iterator[tuple[Function, bool]]:
    """The functions in no other function, and whether each is a method."""
    for node in body:
        if is_function(node):
            yield node, is_class
        elif isinstance(node, ast.ClassDef):
            yield from _outermost(node.body, is_class=True)


_Tables = Mapping[tuple[str, int], list[symtable.SymbolTable]]


def _outermost_tables(table: symtable.SymbolTable) -> _Tables:
    """The symbol tables of functions in no other function, by name and line."""
    found: dict[tuple[str, int], list[symtable.SymbolTable]] = {}
    for child in table.get_children():
        if child.get_type() == "function":
            found.setdefault((child.get_name(), child.get_lineno()), []).append(child)
        else:
            for key, tables in _outermost_tables(child).items():
                found.setdefault(key, []).extend(tables)
    return found


def _with_all_below(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    yield table
    for child in table.get_children():
        yield from _with_all_below(child)


def _local_names(tables: Sequence[symtable.SymbolTable]) -> set[str]:
    """The names that are local in every scope that uses them, below the tables of an outermost function.

    Names of inner functions, classes and imports are not among them, nor is any name used in a class body.
    """
    local: set[str] = set()
    others = {symbol.get_name() for table in tables for symbol in table.get_symbols() if symbol.is_free()}
    for table in (below for outermost in tables for below in _with_all_below(outermost)):
        if table.get_type() != "function":
            others |= set(table.get_identifiers())
            continue
        for symbol in table.get_symbols():
            if symbol.is_global() or symbol.is_imported() or symbol.is_namespace():
                others.add(symbol.get_name())
            elif symbol.is_local():
                local.add(symbol.get_name())
    return {name for name in local - others if not name.startswith("__")}


def _kept_parameters(outermost: Function, facts: ModuleFacts, *, is_method: bool) -> set[str]:
    """The parameters, also of inner functions, that a caller may pass by keyword or a decorator may see."""
    kept: set[str] = set()
    for node in nodes_of(outermost):
        if not isinstance(node, Function | ast.Lambda):
            continue
        names = [arg.arg for arg in (*node.args.args, *node.args.kwonlyargs)]
        if is_function(node) and not facts.is_plain(node):
            kept.update(arg.arg for arg in parameters_of(node.args))
            continue
        if node is outermost and facts.private_functions.get(outermost.name) is outermost:
            continue
        if node is outermost and is_method and not node.args.posonlyargs and not _is_static(outermost):
            names = names[1:]
        if len(names) > 1 or node.args.kwarg is not None:
            kept.update(names)
    return kept


def _is_static(node: Function) -> bool:
    return any(isinstance(name, ast.Name) and name.id == "staticmethod" for name in node.decorator_list)
