"""The meaning of each setting: the docstring that stands below its field."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Mapping
from functools import cache
from itertools import pairwise


def meanings(kind: type) -> Mapping[str, str]:
    """The docstrings of the fields of a settings type by name, inherited ones included.

    They are read from its source when they are first asked for: `kind` may be a pydantic model or, as the
    families' are, a dataclass, and no import waits for them.
    """
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if "__annotations__" in base.__dict__ and base.__module__.split(".")[0] != "pydantic":
            found |= _own(base)
    return found


@cache
def _own(kind: type) -> dict[str, str]:
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(definition, ast.ClassDef)
    found = {}
    for field, below in pairwise(definition.body):
        match field, below:
            case ast.AnnAssign(target=ast.Name(name)), ast.Expr(ast.Constant(str() as text)):
                found[name] = text
    return found
