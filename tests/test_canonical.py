"""The canonical form of a module: two sources with the same form compute the same."""

from __future__ import annotations

import ast
import dis
import re
import sys
import types
from collections.abc import Iterator, Mapping

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pipeline.identity import fingerprint
from pipeline.identity.canonical import Source, forms_of
from pipeline.identity.local_names import rename_locals
from pipeline.identity.module_facts import ModuleFacts
from tests.test_rooms import modules as every_module

START = "from __future__ import annotations\n\nimport logging\n\nlog = logging.getLogger(__name__)\n\n"
NUMERICAL = [module for module in every_module() if fingerprint.is_numerical(module)]


def form(source: str) -> str:
    return forms_of([Source(START + source)])[0]


SAME = {
    "a comment": ("x = 1", "x = 1  # why"),
    "a docstring": ("def f(x): return x", 'def f(x):\n    """Return it."""\n    return x'),
    "a local": ("def f(x):\n    a = x + 1\n    return a * a", "def f(x):\n    b = x + 1\n    return b * b"),
    "a local in a loop": (
        "def f(x):\n    for i, a in enumerate(x): print(i, a)",
        "def f(x):\n    for n, y in enumerate(x): print(n, y)",
    ),
    "a variable of one comprehension": (
        "def f(x): return [a + 1 for a in x], {a: a for a in x}",
        "def f(x): return [b + 1 for b in x], {a: a for a in x}",
    ),
    "a comprehension over its own name": (
        "def f(x):\n    y = x\n    return [y for y in y]",
        "def f(x):\n    a = x\n    return [b for b in a]",
    ),
    "the parameter of a lambda": (
        "def f(x): return sorted(x, key=lambda a: -a)",
        "def f(x): return sorted(x, key=lambda b: -b)",
    ),
    "a caught error": (
        "def f(x):\n    try: x()\n    except OSError as error: raise ValueError('a') from error",
        "def f(x):\n    try: x()\n    except OSError as it: raise ValueError('a') from it",
    ),
    "the text of an error that is caught for messages alone": (
        "def f(x):\n    try: x()\n    except ValueError as e:\n        if isinstance(e, A): raise\n"
        "        raise TypeError(h(e)) from e\ndef g(): raise ValueError('a')",
        "def f(x):\n    try: x()\n    except ValueError as e:\n        if isinstance(e, A): raise\n"
        "        log.info('%s', e)\n        raise TypeError(h(e)) from e\ndef g(): raise ValueError('b')",
    ),
    "the text of an error that is told in a sentence": (
        "def f(x):\n    try: x()\n    except ValueError as e: return f'line 1: {e}'\n"
        "def g(): raise ValueError('a')",
        "def f(x):\n    try: x()\n    except ValueError as e: return f'line 1: {e}'\n"
        "def g(): raise ValueError('b')",
    ),
    "an opened file": (
        "def f(x):\n    with open(x) as file: return file.read()",
        "def f(x):\n    with open(x) as opened: return opened.read()",
    ),
    "what a pattern captures": (
        "def f(x):\n    match x:\n        case [a, *b] | {'k': a, **b}: return a, b",
        "def f(x):\n    match x:\n        case [c, *d] | {'k': c, **d}: return c, d",
    ),
    "a walrus": (
        "def f(x):\n    return [y for z in x if (y := z)], y",
        "def f(x):\n    return [b for a in x if (b := a)], b",
    ),
    "a closure": (
        "def f(x):\n    n = 0\n    def g():\n        nonlocal n\n        n += x\n    g()\n    return n",
        "def f(x):\n    m = 0\n    def g():\n        nonlocal m\n        m += x\n    g()\n    return m",
    ),
    "the only parameter": ("def f(a): return a + 1", "def f(b): return b + 1"),
    "self and the only other parameter": (
        "class A:\n    def f(self, a): return self.x + a",
        "class A:\n    def f(this, b): return this.x + b",
    ),
    "args and kwargs": (
        "def f(a, b, *args, **kwargs): return g(args, kwargs)",
        "def f(a, b, *more, **named): return g(more, named)",
    ),
    "positional-only parameters": (
        "def f(a, b, /): return a - b",
        "def f(c, d, /): return c - d",
    ),
    "parameters of a private function": (
        "def _f(a, b): return a - b\ndef g(x, y): return _f(x, y)",
        "def _f(c, d): return c - d\ndef g(x, y): return _f(x, y)",
    ),
    "parameters of a private function that is called by keyword": (
        "def _f(a, *, b=2): return a - b\ndef g(x, y): return _f(x, b=y)",
        "def _f(c, *, d=2): return c - d\ndef g(x, y): return _f(x, d=y)",
    ),
    "annotations": (
        "def f(x, y):\n    z = x\n    return z + y",
        "def f(x: int, y: list[int]) -> int:\n    z: int = x\n    w: int\n    return z + y",
    ),
    "an import for an annotation": (
        "def f(x, y): return x",
        "from pathlib import Path\ndef f(x: Path, y) -> Path: return x",
    ),
    "an import for types alone": (
        "from typing import Any\ndef f(x: Any): return x",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from a import A\ndef f(x: A): return x",
    ),
    "the order of two functions": (
        "A = 1\ndef f(): return A\nB = 2\ndef g(): return f()",
        "A = 1\nB = 2\ndef g(): return f()\ndef f(): return A",
    ),
    "the order of two functions with defaults": (
        "A = 1\ndef f(x=A): return x\ndef g(x=(1, -2.0)): return x",
        "A = 1\ndef g(x=(1, -2.0)): return x\ndef f(x=A): return x",
    ),
    "the order of two methods": (
        "class A:\n    x: int\n    def f(self): return 1\n    @property\n    def g(self): return 2",
        "class A:\n    x: int\n    @property\n    def g(self): return 2\n    def f(self): return 1",
    ),
    "the order of two classes": (
        "from torch import nn\nclass A(nn.Module):\n    x: int = 1\nclass B: pass",
        "from torch import nn\nclass B: pass\nclass A(nn.Module):\n    x: int = 1",
    ),
    "the order of imports": (
        "import math\nfrom os import path, sep\ndef f(): return math, path, sep",
        "from os import sep, path\nimport math\ndef f(): return math, path, sep",
    ),
    "the text of an error": (
        "def f(x):\n    if x < 0: raise ValueError(f'{x} is negative')\n    return x",
        "def f(x):\n    if x < 0: raise ValueError('no: ' + repr(x) + f', {len(str(x)):,}')\n    return x",
    ),
    "the text of a check": ("def f(x): assert x, 'a'", "def f(x): assert x, f'{x} is not'"),
    "a warning's text": (
        "import warnings\ndef f(x): warnings.warn('a', stacklevel=2)",
        "import warnings\ndef f(x): warnings.warn(f'{x}', stacklevel=2)",
    ),
    "a log call": ("def f(x): return x", "def f(x):\n    log.info('%s', x)\n    return x"),
}


@pytest.mark.parametrize("change", SAME)
def test_what_changes_no_number_leaves_the_form(change):
    before, after = SAME[change]
    assert form(before) == form(after)


OTHER = {
    "a constant": ("def f(x): return x + 1", "def f(x): return x + 2"),
    "a constant's type": ("def f(x): return x + 1", "def f(x): return x + 1.0"),
    "an operator": ("def f(x): return x + 1", "def f(x): return x - 1"),
    "a comparison": ("def f(x): return x < 1", "def f(x): return x <= 1"),
    "a call": ("def f(x): return min(x)", "def f(x): return max(x)"),
    "an attribute": ("def f(x): return x.a", "def f(x): return x.b"),
    "a default": ("def f(x=1): return x", "def f(x=2): return x"),
    "a default that moves to another parameter": ("def f(a, b=1): return a", "def f(a=1, b=1): return a"),
    "a keyword": ("def f(x): return g(a=x)", "def f(x): return g(b=x)"),
    "an argument by keyword or not": ("def f(x): return g(x)", "def f(x): return g(a=x)"),
    "the order of statements": ("def f(x):\n    g()\n    h()", "def f(x):\n    h()\n    g()"),
    "a field's name": (
        "from dataclasses import dataclass\n@dataclass\nclass A:\n    x: int",
        "from dataclasses import dataclass\n@dataclass\nclass A:\n    y: int",
    ),
    "a field's type": ("class A(M):\n    x: int", "class A(M):\n    x: float"),
    "the type of a field on a condition": (
        "class A(M):\n    if B:\n        x: int",
        "class A(M):\n    if B:\n        x: float",
    ),
    "the order of fields": ("class A(M):\n    x: int\n    y: int", "class A(M):\n    y: int\n    x: int"),
    "a module's constant by another name": ("A = 1", "B = 1"),
    # Names
    "two locals that are swapped": (
        "def f(x):\n    a, b = x\n    return a - b",
        "def f(x):\n    a, b = x\n    return b - a",
    ),
    "a local or a global": (
        "def f(x):\n    a = 1\n    return [a for y in x]",
        "def f(x):\n    b = 1\n    return [a for y in x]",
    ),
    "the variable of a comprehension or a global": (
        "def f(x): return [a for a in x]",
        "def f(x): return [a for b in x]",
    ),
    "a comprehension's iterable, local or global": (
        "def f(z): return [x for x in x]",
        "def f(z): return [y for y in z]",
    ),
    "an inner or an outer variable": (
        "def f(x):\n    a = 1\n    def g():\n        a = 2\n    g()\n    return a",
        "def f(x):\n    a = 1\n    def g():\n        nonlocal a\n        a = 2\n    g()\n    return a",
    ),
    "a global that is written": (
        "def f():\n    a = 1\n    return a",
        "def f():\n    global a\n    a = 1\n    return a",
    ),
    "a name shadowed by a lambda's parameter": (
        "def f(x):\n    a = 1\n    return lambda b: a",
        "def f(x):\n    a = 1\n    return lambda a: a",
    ),
    "the default of a lambda": (
        "def f(x):\n    a = b = x\n    return lambda a=a: a",
        "def f(x):\n    a = b = x\n    return lambda a=b: a",
    ),
    "which of two is kept in a comprehension": (
        "def f(x): return [a for a, b in x]",
        "def f(x): return [b for a, b in x]",
    ),
    "which loop's variable counts": (
        "def f(x): return [[a for a in b] for b in x]",
        "def f(x): return [[b for a in b] for b in x]",
    ),
    "an attribute of a class body": (
        "def f():\n    class A:\n        a = 1\n    return A",
        "def f():\n    class A:\n        b = 1\n    return A",
    ),
    "a name in the scope of a class": (
        "def f(x):\n    a = 1\n    class A:\n        a = a\n    return A",
        "def f(x):\n    a = 1\n    class A:\n        b = a\n    return A",
    ),
    "the swapped parameters of a public function": (
        "def f(a, b): return a - b",
        "def f(b, a): return b - a",
    ),
    "the swapped parameters of a private function that is called by keyword": (
        "def _f(a, b): return a - b\ndef g(): return _f(a=1, b=2)",
        "def _f(b, a): return b - a\ndef g(): return _f(a=1, b=2)",
    ),
    "the swapped parameters of a private function that gets a mapping": (
        "def _f(a, b): return a - b\ndef g(x): return _f(**x)",
        "def _f(b, a): return b - a\ndef g(x): return _f(**x)",
    ),
    "the swapped parameters of a private function that is handed on": (
        "def _f(a, b): return a - b\ndef g(x): return x(_f)",
        "def _f(b, a): return b - a\ndef g(x): return x(_f)",
    ),
    "the swapped parameters of an inner function": (
        "def f(x):\n    def g(a, b): return a - b\n    return g",
        "def f(x):\n    def g(b, a): return b - a\n    return g",
    ),
    "the swapped parameters of a lambda": (
        "def f(x): return x(lambda a, b: a - b)",
        "def f(x): return x(lambda b, a: b - a)",
    ),
    "a parameter beside others by keyword": (
        "def f(a=1, **more): return g(a, **more)",
        "def f(b=1, **more): return g(b, **more)",
    ),
    "the parameter of a decorated function": (
        "@registered\ndef f(a): return a",
        "@registered\ndef f(b): return b",
    ),
    "an annotation that a decorator may read": (
        "@registered\ndef f(a: int): return a",
        "@registered\ndef f(a: float): return a",
    ),
    "a name in a debug text": (
        "def f(x):\n    a = x\n    return f'{a=}'",
        "def f(x):\n    b = x\n    return f'{b=}'",
    ),
    "a local that locals() shows": (
        "def f(x):\n    a = x\n    return locals()",
        "def f(x):\n    b = x\n    return locals()",
    ),
    "a parameter that signature() shows by another name": (
        "from inspect import signature as shown\ndef f(a): return a\nX = shown(f)",
        "from inspect import signature as shown\ndef f(b): return b\nX = shown(f)",
    ),
    "an annotation that a compiler reads": (
        "import torch\ndef _f(a: int): return a\nX = torch.jit.script(_f)",
        "import torch\ndef _f(a: float): return a\nX = torch.jit.script(_f)",
    ),
    "a local that eval() reads": (
        "def f(x):\n    a, b = x\n    return eval('a')",
        "def f(x):\n    b, a = x\n    return eval('a')",
    ),
    # Order
    "a function that is defined twice": (
        "def f(): return 1\ndef f(): return 2",
        "def f(): return 2\ndef f(): return 1",
    ),
    "the order of two that are registered": (
        "@registered\ndef f(): return 1\n@registered\ndef g(): return 2",
        "@registered\ndef g(): return 2\n@registered\ndef f(): return 1",
    ),
    "the order of two whose own decorator has a known name": (
        "def cache(f): return R.append(f)\n@cache\ndef f(): return 1\n@cache\ndef g(): return 2",
        "def cache(f): return R.append(f)\n@cache\ndef g(): return 2\n@cache\ndef f(): return 1",
    ),
    "a default before or after a constant is set": (
        "A = 1\ndef f(x=A): return x\nA = 2",
        "A = 1\nA = 2\ndef f(x=A): return x",
    ),
    "a default before or after an attribute is set": (
        "import m\ndef f(x=m.y): return x\nm.y = 2",
        "import m\nm.y = 2\ndef f(x=m.y): return x",
    ),
    "a default before or after a function sets an attribute": (
        "import m\ndef g(): m.y.z = 2\ndef f(x=m.y.z): return x\ng()",
        "import m\ndef g(): m.y.z = 2\ng()\ndef f(x=m.y.z): return x",
    ),
    "a default before or after a builtin is hidden": (
        "def f(x=sum): return x\nfrom math import fsum as sum",
        "from math import fsum as sum\ndef f(x=sum): return x",
    ),
    "a default that is drawn": (
        "def f(x=draw()): return x\ndef g(x=draw()): return x",
        "def g(x=draw()): return x\ndef f(x=draw()): return x",
    ),
    "a method that the class body uses": (
        "class A:\n    def list(self): return 1\n    x = list",
        "class A:\n    x = list\n    def list(self): return 1",
    ),
    "classes that their base registers": (
        "class R:\n    def __init_subclass__(cls): L.append(cls)\nclass A(R): pass\nclass B(R): pass",
        "class R:\n    def __init_subclass__(cls): L.append(cls)\nclass B(R): pass\nclass A(R): pass",
    ),
    "an import that hides another": (
        "from a import x\nfrom b import x\ndef f(): return x",
        "from b import x\nfrom a import x\ndef f(): return x",
    ),
    "an import for its effect": ("x = 1", "import patches\nx = 1"),
    "an import for types whose condition is one's own": (
        "from typing import TYPE_CHECKING\nTYPE_CHECKING = True\nif TYPE_CHECKING: A = 1",
        "from typing import TYPE_CHECKING\nTYPE_CHECKING = True\nif TYPE_CHECKING: A = 2",
    ),
    # Messages
    "the type of an error": ("def f(x): raise ValueError('a')", "def f(x): raise TypeError('a')"),
    "a value that an error carries": (
        "def f(x): raise StopIteration('a')",
        "def f(x): raise StopIteration('b')",
    ),
    "an error with or without a number": (
        "def f(x): raise OSError(2, 'a')",
        "def f(x): raise OSError(2)",
    ),
    "a key that an error carries": ("def f(x): raise KeyError('a')", "def f(x): raise KeyError('b')"),
    "an error of one's own": ("def f(x): raise Stop('a')", "def f(x): raise Stop('b')"),
    "an error whose name is one's own": (
        "class ValueError(Exception): pass\ndef f(x): raise ValueError('a')",
        "class ValueError(Exception): pass\ndef f(x): raise ValueError('b')",
    ),
    **{
        f"a message that {what}": tuple(
            f"def f(x):\n    try: x()\n    except ValueError as e:\n        {judged}\n"
            f"def g(): raise ValueError('{text}')"
            for text in "ab"
        )
        for what, judged in {
            "is compared": "if 'a' in str(e): return 1",
            "is judged by a local": "y = str(e)\n        if 'a' in y: return 1",
            "is judged behind the handler": "y = e.args\n    return 'a' in y",
            "another function judges": "h(e)",
            "is returned as it is": "return str(e)",
            "another error carries": "raise KeyError(str(e)) from e",
        }.items()
    },
    "a message that draws": (
        "def f(x): raise ValueError(f'{x.draw()}')",
        "def f(x): raise ValueError(f'{x}')",
    ),
    "a log call that draws": ("def f(x): log.info('%s', next(x))", "def f(x): log.info('%s', x)"),
    "a condition that is checked": ("def f(x): assert x, 'a'", "def f(x): assert not x, 'a'"),
    "a number called log": (
        "def f(x):\n    log = x\n    log.error(1)\n    return log",
        "def f(x):\n    log = x\n    log.error(2)\n    return log",
    ),
    "a text that is returned": ("def f(x): return 'a'", "def f(x): return 'b'"),
}


@pytest.mark.parametrize("change", OTHER)
def test_what_may_change_a_number_changes_the_form(change):
    before, after = OTHER[change]
    assert form(before) != form(after)


def test_code_that_looks_at_names_keeps_those_of_the_modules_that_run_with_it():
    looks = Source("def f(x): return vars(x)")
    plain = START + "class A:\n    def {}(self): pass\n    def {}(self): pass"
    one, other = (Source(plain.format(*names)) for names in ("ab", "ba"))
    assert forms_of([one]) == forms_of([other])
    assert forms_of([one, looks]) != forms_of([other, looks])


def test_no_numerical_code_looks_at_names():
    """Else the stages that use it run again whatever is renamed."""
    counted = [module for module in every_module() if fingerprint._counts(module)]
    looks = {module for module in counted if fingerprint._source(module).is_reflective}
    assert looks == set()


def test_no_module_calls_a_private_function_of_another():
    """Names of its parameters are free, as its own module makes all calls."""
    for module in every_module():
        tree = ast.parse(fingerprint.source_of(module).read_text(encoding="utf-8"))
        origin = ModuleFacts(tree).origin
        used = {origin(node) for node in ast.walk(tree) if isinstance(node, ast.Name)}
        used |= {origin(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)
                 and isinstance(node.value, ast.Name)}  # fmt: skip
        ours = {name for name in used if name.startswith(("models.", "pipeline."))}
        private = {name for name in ours if re.fullmatch(r"_(?!_).*", name.rpartition(".")[2])}
        assert not {name for name in private if not fingerprint.source_of(name).exists()}, module


def test_annotations_that_python_evaluates_stay():
    sources = [f"def f(x: {kind}, y): return x" for kind in ("int", "g()")]
    assert Source(sources[0]).canonical != Source(sources[1]).canonical


# ---------------------------------------------------------------------------------- against the compiler


compiles_scopes_apart = pytest.mark.skipif(
    sys.version_info >= (3, 12), reason="later versions compile comprehensions into the function around them"
)


def renamed(source: str) -> str:
    """The source with nothing changed but names; new ones are `_new_0`, `_new_1`, ..."""
    tree = ast.parse(source)
    rename_locals(tree, source, ModuleFacts(tree))
    return re.sub(r"\$(?=\d)", "_new_", ast.unparse(tree))


def check_same_code(one: types.CodeType, other: types.CodeType, outer: Mapping[str, str]) -> dict[str, str]:
    """The compiler finds the same instructions, and each name refers to what it referred to.

    Returns the new name of each local name.
    """
    names = {name: outer[name] for name in one.co_freevars if name in outer}
    names |= dict(zip(one.co_varnames, other.co_varnames, strict=True))
    for left, right in zip(instructions(one), instructions(other), strict=True):
        assert left.opname == right.opname
        if left.opname.endswith(("_FAST", "_DEREF", "_CLASSDEREF")):
            assert names.setdefault(left.argval, right.argval) == right.argval
        elif not isinstance(left.argval, types.CodeType) and left.argval != right.argval:
            keywords = (
                {each} if isinstance(each, str) else set(each) for each in (right.argval, left.argval)
            )
            assert all(new.startswith("_new_") for new in set.difference(*keywords))
    for left_code, right_code in zip(codes_in(one), codes_in(other), strict=True):
        inner = check_same_code(left_code, right_code, names)
        for name in left_code.co_freevars:  # it may be used in there alone
            assert name not in inner or names.setdefault(name, inner[name]) == inner[name]
    assert len(set(names.values())) == len(names)
    return names


def codes_in(code: types.CodeType) -> list[types.CodeType]:
    return [const for const in code.co_consts if isinstance(const, types.CodeType)]


def instructions(code: types.CodeType) -> Iterator[dis.Instruction]:
    """Without those that set up cells: their order is that of the names."""
    left_out = {"MAKE_CELL", "LOAD_CLOSURE", "EXTENDED_ARG", "CACHE"}
    return (each for each in dis.get_instructions(code) if each.opname not in left_out)


def check_renaming(source: str) -> None:
    plain = ast.unparse(ast.parse(source))
    check_same_code(compile(plain, "plain", "exec"), compile(renamed(source), "renamed", "exec"), {})


@compiles_scopes_apart
@pytest.mark.parametrize("module", NUMERICAL)
def test_renamed_numerical_code_compiles_to_the_same(module):
    source = fingerprint.source_of(module).read_text(encoding="utf-8")
    assert renamed(source) != source
    check_renaming(source)


@compiles_scopes_apart
@pytest.mark.parametrize("change", [*SAME, *OTHER])
def test_renamed_examples_compile_to_the_same(change):
    for source in (SAME | OTHER)[change]:
        check_renaming(source)


NAMES = st.sampled_from("abcd")
EXPRESSIONS = st.recursive(
    NAMES,
    lambda inner: st.one_of(
        st.builds("({} - {})".format, inner, inner),
        st.builds("[{} for {} in {} if {}]".format, inner, NAMES, inner, inner),
        st.builds("{{{}: {} for {} in {} for {} in {}}}".format, inner, inner, NAMES, inner, NAMES, inner),
        st.builds("(lambda {}={}: {})".format, NAMES, inner, inner),
        st.builds("({} := {})".format, NAMES, inner),
        st.builds("_g({}, c={})".format, inner, inner),
    ),
    max_leaves=8,
)


def indented(lines: list[str]) -> str:
    return "\n".join(f"    {line}" for text in lines for line in text.splitlines())


STATEMENTS = st.recursive(
    st.one_of(
        st.builds("{} = {}".format, NAMES, EXPRESSIONS),
        st.builds("for {} in {}: pass".format, NAMES, EXPRESSIONS),
        st.builds("try: {}\nexcept E as {}: {}".format, EXPRESSIONS, NAMES, EXPRESSIONS),
        st.builds("match {}:\n    case [{}, *_]: {}".format, EXPRESSIONS, NAMES, EXPRESSIONS),
        st.builds("global {}".format, NAMES),
        st.builds("nonlocal {}".format, NAMES),
    ),
    lambda inner: st.one_of(
        st.builds("def {}({}):\n{}".format, NAMES, NAMES, st.lists(inner, min_size=1).map(indented)),
        st.builds("class {}:\n{}".format, NAMES, st.lists(inner, min_size=1).map(indented)),
    ),
    max_leaves=6,
)


@compiles_scopes_apart
@settings(max_examples=50, deadline=None)
@given(st.lists(STATEMENTS, min_size=1).map(indented), EXPRESSIONS)
def test_any_renamed_function_compiles_to_the_same(body, result):
    source = f"def f(a, b):\n{body}\n    return {result}\ndef _g(b, c): return b - c"
    try:
        compile(source, "source", "exec")
    except SyntaxError:
        assume(False)
    check_renaming(source)
