"""Facts about a module as it is written, for the rules of the canonical form."""

from __future__ import annotations

import ast
import builtins
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeGuard

Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = Function | ast.ClassDef
Import = ast.Import | ast.ImportFrom
Bound = Mapping[str, int]  # how often each name is bound

# What shows a program the names, annotations, docstrings or order of its definitions. Some read those of a
# function that they are handed, such as `torch.jit.script`.
_REFLECTION = {
    *("currentframe", "dir", "eval", "exec", "f_locals", "get_annotations", "get_type_hints"),
    *("getfullargspec", "getmembers", "getsource", "globals", "locals", "signature", "sql", "vars"),
    *("_getframe", "__annotations__", "__code__", "__dict__", "__doc__"),
    *("__init_subclass__", "__subclasses__"),
    *("custom_op", "infer_schema", "script", "singledispatch", "validate_call"),
}
_METHODS_TOO = {"eval", "sql"}  # names that count as functions only: `model.eval()` shows nothing
# Decorators that neither register what they decorate nor look at its names.
_NEUTRAL_DECORATORS = {
    *("property", "staticmethod", "classmethod", "abc.abstractmethod", "typing.override", "torch.no_grad"),
    *("functools.cache", "functools.lru_cache", "functools.cached_property", "contextlib.contextmanager"),
    "dataclasses.dataclass",
}


class ModuleFacts:
    """Facts about a module, by its syntax tree before anything is removed from it."""

    def __init__(self, tree: ast.Module) -> None:
        self._body = list(tree.body)
        self._nodes: defaultdict[type[ast.AST], list[Any]] = defaultdict(list)
        for node in nodes_of(tree):
            self._nodes[type(node)].append(node)
        self.uses = Counter(node.id for node in self._nodes[ast.Name])
        self.calls: list[ast.Call] = self._nodes[ast.Call]
        imports = [*self._nodes[ast.Import], *self._nodes[ast.ImportFrom]]
        # What the imported names refer to: `nn` -> `torch.nn`.
        self.origins = {name: origin for node in imports for name, origin in imported_by(node)}
        self.has_star_import = "*" in self.origins
        self.postpones_annotations = self.origins.get("annotations") == "__future__.annotations"
        # How often each name is bound at the top of the module, counting builtins, `global` statements and
        # `m.x = 1`, as a binding of `m`: `m.x` has different values before and behind it.
        rebound = [name for node in self._nodes[ast.Global] for name in node.names]
        rebound += [ast.unparse(node).partition(".")[0] for node in self._nodes[ast.Attribute]
                    if not isinstance(node.ctx, ast.Load)]  # fmt: skip
        self.bound = Counter([*dir(builtins), *bound_in(tree.body), *rebound])
        # How often each name is bound in any scope.
        binding = (node for kind in _BINDING for node in self._nodes[kind])
        self.bound_anywhere = Counter(name for node in binding for name in _bound_by(node))
        self.logger = self._logger()
        self.private_functions = self._private_functions()
        self.is_reflective = self._is_reflective()

    def origin(self, node: ast.expr) -> str:
        """The origin of a dotted name, `nn.Module` -> `torch.nn.Module`; empty if it is unclear."""
        first, dot, rest = ast.unparse(node).partition(".")
        if self.is_builtin(first):
            return first + dot + rest
        is_imported = first in self.origins and self.bound_anywhere[first] == 1
        return self.origins[first] + dot + rest if is_imported else ""

    def is_builtin(self, name: str) -> bool:
        return hasattr(builtins, name) and not self.bound_anywhere[name] and not self.has_star_import

    def is_plain(self, node: Definition) -> bool:
        """Whether no decorator registers a definition or looks at its names."""
        return all(map(self._is_neutral, node.decorator_list))

    def bound_inside(self, node: ast.ClassDef) -> Bound:
        """How often each name is bound in a class or at the top of the module."""
        return self.bound + Counter(bound_in(node.body))

    def are_settled(self, values: Iterable[ast.expr], bound: Bound) -> bool:
        """Whether expressions have the same values wherever among the bound names they stand."""
        return all(self._is_settled(value, bound) for value in values)

    def _is_settled(self, value: ast.expr, bound: Bound) -> bool:
        match value:
            case ast.Constant():
                return True
            case ast.Name(name):
                return bound[name] == 1
            case ast.Attribute():
                first = ast.unparse(value).partition(".")[0]
                return first in self.origins and bound[first] == 1
            case ast.UnaryOp():
                return self._is_settled(value.operand, bound)
            case ast.Tuple(values):
                return self.are_settled(values, bound)
        return False

    def _is_neutral(self, decorator: ast.expr) -> bool:
        called, values = decorator, list[ast.expr]()
        if isinstance(decorator, ast.Call):
            called = decorator.func
            values = [*decorator.args, *(keyword.value for keyword in decorator.keywords)]
        are_constant = all(isinstance(value, ast.Constant) for value in values)
        return are_constant and self.origin(called) in _NEUTRAL_DECORATORS

    def _logger(self) -> ast.stmt | None:
        """The statement `log = logging.getLogger(...)`, if nothing else is called `log`."""
        for node in self._body:
            match node:
                case ast.Assign([ast.Name("log")], ast.Call(func)):
                    is_logger = self.origin(func) == "logging.getLogger"
                    return node if is_logger and self.bound_anywhere["log"] == 1 else None
        return None

    def _private_functions(self) -> Mapping[str, Function]:
        """The private functions of which every use is a call in this module, without `**mapping`."""
        texts = {node.value for node in self._nodes[ast.Constant]}
        calls = Counter(
            node.func.id
            for node in self.calls
            if isinstance(node.func, ast.Name) and all(keyword.arg for keyword in node.keywords)
        )
        return {
            node.name: node
            for node in self._body
            if is_function(node)
            and node.name.startswith("_")
            and node.name not in texts
            and self.bound_anywhere[node.name] == 1
            and self.uses[node.name] == calls[node.name]
            and self.is_plain(node)
        }

    def _is_reflective(self) -> bool:
        """Whether the module looks at names, annotations or the order of definitions."""
        nodes = self._nodes
        shown = {node.attr for node in nodes[ast.Attribute]} - _METHODS_TOO
        shown |= {*self.uses, *(node.name for node in nodes[ast.FunctionDef])}
        shown |= {origin.rpartition(".")[2] for origin in self.origins.values()}  # under whatever name
        if self.uses["get_type_hints"] == sum(map(_reads_own_fields, self.calls)):
            shown.discard("get_type_hints")
        keywords = {keyword.arg for node in nodes[ast.ClassDef] for keyword in node.keywords}
        return not shown.isdisjoint(_REFLECTION) or "metaclass" in keywords


def _reads_own_fields(call: ast.Call) -> bool:
    """Whether a call is `get_type_hints(cls, ...)`: the canonical form keeps the annotations of a class."""
    match call:
        case ast.Call(ast.Name("get_type_hints"), [ast.Name("cls"), *_]):
            return True
    return False


def is_function(node: ast.AST) -> TypeGuard[Function]:
    return isinstance(node, Function)


def defaults_of(node: Function | ast.Lambda) -> list[ast.expr]:
    return [*node.args.defaults, *(value for value in node.args.kw_defaults if value is not None)]


def parameters_of(arguments: ast.arguments) -> list[ast.arg]:
    last = (arguments.vararg, *arguments.kwonlyargs, arguments.kwarg)
    return [*arguments.posonlyargs, *arguments.args, *(arg for arg in last if arg is not None)]


def nodes_of(*roots: ast.AST) -> list[ast.AST]:
    """The nodes of syntax trees in the order of the source, without contexts and operators."""
    nodes, waiting = [], list(reversed(roots))
    while waiting:
        node = waiting.pop()
        nodes.append(node)
        waiting += children_of(node)[::-1]
    return nodes


_PLAIN_FIELDS = {"arg", "attr", "ctx", "id", "level", "module", "op", "ops", "type_comment"}


def children_of(node: ast.AST) -> list[ast.AST]:
    """The statements and expressions that a node is made of, and their parts, without operators."""
    children: list[ast.AST] = []
    for name in node._fields:
        value = None if name in _PLAIN_FIELDS else getattr(node, name, None)
        if isinstance(value, ast.AST):
            children.append(value)
        elif isinstance(value, list):
            children += [item for item in value if isinstance(item, ast.AST)]
    return children


def in_scope(body: Sequence[ast.AST]) -> Iterator[ast.AST]:
    """The nodes of a scope: those of its statements, without the bodies of functions and classes in it."""
    for node in body:
        yield node
        if is_function(node):
            yield from in_scope([*node.decorator_list, *defaults_of(node)])
        elif isinstance(node, ast.ClassDef):
            yield from in_scope([*node.decorator_list, *node.bases, *node.keywords])
        else:
            yield from in_scope(children_of(node))


def bound_in(body: Sequence[ast.AST]) -> list[str]:
    """The names that statements bind in their scope, each as often as it is bound."""
    return [name for node in in_scope(body) if isinstance(node, _BINDING) for name in _bound_by(node)]


_BINDING = (
    *(ast.Name, ast.arg, ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef),
    *(ast.ExceptHandler, ast.MatchAs, ast.MatchStar, ast.MatchMapping),
)


def _bound_by(node: ast.AST) -> list[str]:
    match node:
        case ast.Name(name, context):
            return [] if isinstance(context, ast.Load) else [name]
        case ast.Import() | ast.ImportFrom():
            return [name for name, _ in imported_by(node)]
        case ast.arg(name) | ast.MatchMapping(rest=str(name)):
            return [name]
    own = getattr(node, "name", None)
    return [own] if isinstance(own, str) else []


def imported_by(node: Import) -> Iterator[tuple[str, str]]:
    """The names that an import binds, each with what it refers to."""
    for alias in node.names:
        if isinstance(node, ast.ImportFrom):
            yield alias.asname or alias.name, f"{'.' * node.level}{node.module or ''}.{alias.name}"
        elif alias.asname:
            yield alias.asname, alias.name
        else:
            yield (first := alias.name.partition(".")[0]), first
