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
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

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


def rename_locals(tree: ast.Module, source: str, facts: ModuleFacts) -> None:
    """Rename the locals of each function and method; `source` is what `tree` was parsed from."""
    tables = list(_all_below(symtable.symtable(source, "<source>", "exec")))
    of_keywords: dict[str, Mapping[str, str]] = {}
    for node, is_method in _outermost(tree.body):
        free = _local_names(table for table in tables if _is_inside(table, node))
        scope = _Scope(dict.fromkeys(free - _kept_parameters(node, facts, is_method=is_method), node))
        by_keyword = _keywords_of(node)
        # Parameters have their numbers by position. Decorators and defaults belong to the scope outside.
        for part in (*parameters_of(node.args), *node.body):
            _rename(part, scope)
        if facts.private_functions.get(node.name) is node:
            of_keywords[node.name] = {name: scope.new_name(name) for name in by_keyword}
    for call in facts.calls:
        if isinstance(call.func, ast.Name) and (new := of_keywords.get(call.func.id)):
            for keyword in call.keywords:
                keyword.arg = new.get(keyword.arg or "", keyword.arg)


@dataclass(frozen=True)
class _Scope:
    """The names that get new ones, in a function or in a comprehension or lambda within."""

    binders: Mapping[str, ast.AST]  # name -> the function, comprehension or lambda that binds it
    _new: dict[tuple[str, ast.AST], str] = field(default_factory=dict)

    def inside(self, binder: ast.AST, bound: Iterable[str]) -> _Scope:
        own = {name: binder for name in bound if name in self.binders}
        return _Scope({**self.binders, **own}, self._new)

    def new_name(self, name: str) -> str:
        if name not in self.binders:
            return name
        return self._new.setdefault((name, self.binders[name]), f"${len(self._new)}")


def _rename(node: ast.AST, scope: _Scope) -> None:
    match node:
        case ast.Name(name):
            node.id = scope.new_name(name)
        case ast.arg(name):
            node.arg = scope.new_name(name)
        case ast.Nonlocal(names):
            node.names = list(map(scope.new_name, names))
        case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(str(name)):
            node.name = scope.new_name(name)
        case ast.MatchMapping(rest=str(name)):
            node.rest = scope.new_name(name)
        # The first iterable and the defaults belong to the scope outside. They are met again below, where
        # they have their new names.
        case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
            _rename(node.generators[0].iter, scope)
            scope = scope.inside(node, bound_in([part.target for part in node.generators]))
        case ast.Lambda() if not any(isinstance(part, ast.NamedExpr) for part in nodes_of(node)):
            for default in defaults_of(node):
                _rename(default, scope)
            scope = scope.inside(node, (arg.arg for arg in parameters_of(node.args)))
    for child in children_of(node):
        _rename(child, scope)


def _outermost(body: list[ast.stmt], *, is_class: bool = False) -> Iterator[tuple[Function, bool]]:
    """The functions in no other function, and whether each is a method."""
    for node in body:
        if is_function(node):
            yield node, is_class
        elif isinstance(node, ast.ClassDef):
            yield from _outermost(node.body, is_class=True)


def _all_below(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    yield table
    for child in table.get_children():
        yield from _all_below(child)


def _is_inside(table: symtable.SymbolTable, node: Function) -> bool:
    """Whether a symbol table is that of an outermost function or of a scope in it, by its line."""
    return node.lineno <= table.get_lineno() <= (node.end_lineno or node.lineno)


def _local_names(tables: Iterable[symtable.SymbolTable]) -> set[str]:
    """The names that are local in every scope that uses them, by the tables of an outermost function.

    Names of inner functions, classes and imports are not among them, nor is any name used in a class body.
    """
    local: set[str] = set()
    others: set[str] = set()
    for table in tables:
        for symbol in table.get_symbols():
            is_fixed = symbol.is_global() or symbol.is_imported() or symbol.is_namespace()
            if is_fixed or table.get_type() != "function":
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
        names = _keywords_of(node)
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


def _keywords_of(node: Function | ast.Lambda) -> list[str]:
    return [arg.arg for arg in (*node.args.args, *node.args.kwonlyargs)]


def _is_static(node: Function) -> bool:
    return any(isinstance(name, ast.Name) and name.id == "staticmethod" for name in node.decorator_list)
