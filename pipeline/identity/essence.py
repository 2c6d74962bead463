"""Removes what people read from a syntax tree: docstrings, log calls, messages and annotations."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable

from pipeline.identity.module_facts import (
    Function,
    ModuleFacts,
    children_of,
    is_function,
    nodes_of,
    parameters_of,
)

# Errors that carry a text for people. Others, such as KeyError and StopIteration, may carry a value.
_ERRORS_WITH_MESSAGE = {
    *("ArithmeticError", "AssertionError", "FileExistsError", "FileNotFoundError", "ImportError"),
    *("NotImplementedError", "OSError", "OverflowError", "RuntimeError", "TypeError", "ValueError"),
}
_LOG_METHODS = {"debug", "info", "warning", "error", "exception", "critical"}
# Calls that change nothing. Any other call in a message stays, as its effect may matter.
_HARMLESS_CALLS = {"abs", "float", "format", "int", "len", "repr", "round", "str", "type"}
_MAY_MATTER = (
    *(ast.Call, ast.NamedExpr, ast.Await, ast.Yield, ast.YieldFrom, ast.Starred, ast.Subscript),
    *(ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp),
)


class Essence:
    """Removes from the statements of a module, in place, what decides no number.

    Annotations stay in class bodies, and where a decorator may read them.
    """

    def __init__(self, facts: ModuleFacts) -> None:
        self._facts = facts
        self.removed: Counter[str] = Counter()  # names, by the number of uses that were removed
        self.judges_errors = False  # whether the text of a caught error may decide more than a message

    def of_body(self, body: list[ast.stmt], *, in_class: bool = False) -> list[ast.stmt]:
        return [kept for node in body for kept in self._of_statement(node, in_class)]

    def _of_statement(self, node: ast.stmt, in_class: bool) -> list[ast.stmt]:
        match node:
            case ast.Pass() | ast.Expr(ast.Constant(str())):
                return []
            case ast.Assign() if node is self._facts.logger:
                return self._without(node)
            case ast.If(ast.Name() as test) if self._facts.origin(test) == "typing.TYPE_CHECKING":
                self._without(test, *node.body)
                return self.of_body(node.orelse, in_class=in_class)
            case ast.AnnAssign() if not in_class and self._facts.postpones_annotations:
                return self._of_annotated(node)
            case ast.Expr(ast.Call(ast.Attribute(ast.Name("log"), method)) as call) if (
                self._facts.logger is not None and method in _LOG_METHODS
            ):
                self._without(call)
                values = [*call.args, *(keyword.value for keyword in call.keywords)]
                return [ast.copy_location(ast.Expr(part), node) for part in self._what_may_matter(values)]
            case ast.Expr(ast.Call(ast.Attribute(ast.Name() as root, "warn")) as call):
                if self._facts.origin(root) == "warnings":
                    call.args = self._without_texts(call.args)
            case ast.Raise(ast.Call(ast.Name(error)) as call) if self._has_message(error):
                call.args = self._without_texts(call.args)
            case ast.Assert(msg=ast.expr() as message) if _is_text(message):
                rest = self._without_text(message)
                node.msg = None if isinstance(rest, ast.Constant) else rest
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._of_signature(node)
        is_class = isinstance(node, ast.ClassDef)
        self._of_bodies(node, is_class or (in_class and not is_function(node)))
        return [node]

    def _of_bodies(self, node: ast.AST, in_class: bool) -> None:
        for name in ("body", "orelse", "finalbody"):
            if statements := getattr(node, name, None):
                setattr(node, name, self.of_body(statements, in_class=in_class) or [ast.Pass()])
        for name in ("handlers", "cases"):
            for part in getattr(node, name, ()):
                self._of_bodies(part, in_class)
                if isinstance(part, ast.ExceptHandler) and part.name:
                    self.judges_errors |= any(self._may_judge(child, part.name) for child in part.body)

    def _may_judge(self, node: ast.AST, error: str) -> bool:
        """Whether a caught error serves more than its type, a message or a sentence that is returned."""
        match node:
            case ast.Call(ast.Name("isinstance")) | ast.Return(ast.JoinedStr()) | ast.Raise(ast.Name()):
                return False
            case ast.Raise(ast.Call(ast.Name(raised)), ast.Name() | None) if self._has_message(raised):
                return False
            case ast.Raise(ast.expr() as raised, ast.Name()):
                return self._may_judge(raised, error)
            case ast.Name(name):
                return name == error
        return any(self._may_judge(child, error) for child in children_of(node))

    def _has_message(self, error: str) -> bool:
        return error in _ERRORS_WITH_MESSAGE and self._facts.is_builtin(error)

    def _of_annotated(self, node: ast.AnnAssign) -> list[ast.stmt]:
        if node.value is None and not isinstance(node.target, ast.Name):
            return [node]
        self._without(node.annotation)
        return [ast.copy_location(ast.Assign([node.target], node.value), node)] if node.value else []

    def _of_signature(self, node: Function) -> None:
        if self._facts.postpones_annotations and self._facts.is_plain(node):
            parameters = parameters_of(node.args)
            annotations = (node.returns, *(arg.annotation for arg in parameters))
            self._without(*(annotation for annotation in annotations if annotation is not None))
            node.returns = None
            for arg in parameters:
                arg.annotation = None

    def _without(self, *nodes: ast.AST) -> list[ast.stmt]:
        self.removed.update(node.id for node in nodes_of(*nodes) if isinstance(node, ast.Name))
        return []

    def _without_texts(self, arguments: list[ast.expr]) -> list[ast.expr]:
        return [self._without_text(value) if _is_text(value) else value for value in arguments]

    def _without_text(self, text: ast.expr) -> ast.expr:
        """An empty text, or a tuple of the parts that may matter."""
        self._without(text)
        parts = self._what_may_matter([text])
        return ast.Tuple(parts, ast.Load()) if parts else ast.Constant("")

    def _what_may_matter(self, texts: Iterable[ast.AST]) -> list[ast.expr]:
        """The outermost parts of messages that may do more than read a value."""
        parts: list[ast.expr] = []
        for text in texts:
            if isinstance(text, _MAY_MATTER) and not self._is_harmless(text):
                self.removed.subtract(node.id for node in nodes_of(text) if isinstance(node, ast.Name))
                parts.append(text)
            else:
                parts += self._what_may_matter(children_of(text))
        return parts

    def _is_harmless(self, node: ast.AST) -> bool:
        match node:
            case ast.Call(ast.Name(name)):
                return name in _HARMLESS_CALLS and self._facts.is_builtin(name)
            case ast.Call(ast.Attribute(text, "join" | "format"), values):
                return _is_text(text) and all(isinstance(value, ast.Constant) for value in values)
        return False


def _is_text(node: ast.AST) -> bool:
    match node:
        case ast.Constant(str()) | ast.JoinedStr():
            return True
        case ast.BinOp(left, ast.Add(), right):
            return _is_text(left) or _is_text(right)
        case ast.BinOp(left, ast.Mod()):
            return _is_text(left)
        case ast.IfExp(_, first, second):
            return _is_text(first) and _is_text(second)
        case ast.Call(ast.Attribute(text, "join" | "format")):
            return _is_text(text)
    return False
