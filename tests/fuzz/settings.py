"""Damaged params.yaml: refused in bounded time with the key or the position, or read as valid settings."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from ruamel.yaml import YAML

from pipeline.project import presets
from pipeline.project.checks import check
from pipeline.project.params import with_defaults
from pipeline.project.project import Project
from pipeline.settings.loader import flatten, read_yaml
from tests.fuzz.damage import damaged, refused

FILE = Path(__file__).resolve().parents[2] / "params.yaml"
_TEXT = FILE.read_bytes()
_MOST_SECONDS = 5.0
LAID_OVER = [("sample_efficiency", "classifier"), ("ablate", "classifier"), ("ablate", "pretrain_lm"),
             ("tune", "overrides")]  # fmt: skip
PARTS = ("pretrain_lm", "finetune_lm", "finetune_classifier", "few_labels", "scratch", "probe")
SECTIONS = re.compile("|".join(read_yaml(FILE)))  # one of them is named by what refuses a name
_SCALARS = [
    ".nan", ".inf", "-.inf", "1e400", "-1", "0", "0.0", "1.5", "1" + "0" * 30, "1" * 5_000, "1e-320",
    "true", "yes", "~", "null", '""', "'x'", "[]", "{}", "[1, 2]", "{a: 1}", "2024-13-45", "2024-12-05",
    "0o17", "0x1F", "1_000", "!!python/object:os.system ls", "!!binary '*'", "!!int x", "!!set {a}", "*no",
    "&a [*a]", "|", "'", "x" * 10_000, "[" * 5_000, "{a: " * 100 + "1" + "}" * 100, '"\\ud800"', '"\\0"',
    "\u202e", "a: b: c",
]  # fmt: skip


def _aliases(levels: int) -> bytes:
    lines = ["a0: &a0 [x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, levels)]
    return "\n".join(lines).encode() + b"\n"


@st.composite
def settings_files(draw: st.DrawFn) -> bytes:
    match draw(
        st.sampled_from(["damaged", "value", "value", "value", "key", "aliases", "wide", "mark", "empty"])
    ):
        case "damaged":
            return draw(damaged(_TEXT))
        case "value":
            lines = _TEXT.decode().splitlines()
            for _ in range(draw(st.integers(1, 3))):
                place = draw(st.integers(0, len(lines) - 1))
                key, colon, _ = lines[place].partition(":")
                lines[place] = f"{key}{colon} {draw(st.sampled_from(_SCALARS))}" if colon else lines[place]
            return "\n".join(lines).encode("utf-8", "surrogatepass")
        case "key":  # a duplicate, unknown or non-text key
            lines = _TEXT.decode().splitlines()
            line = draw(st.sampled_from([*lines, "  unknown: 1", "1: 2", "~: 3", "? [a, b]\n: 4", "  <<: 5"]))
            lines.insert(draw(st.integers(0, len(lines))), line)
            return "\n".join(lines).encode()
        case "aliases":
            aliases = _aliases(draw(st.integers(2, 4)))
            return draw(st.sampled_from([aliases + _TEXT, _TEXT + aliases, aliases]))
        case "wide":
            return _TEXT.decode().encode(draw(st.sampled_from(["utf-16", "utf-16-le", "utf-32", "latin-1"])))
        case "mark":
            return b"\xef\xbb\xbf" + _TEXT
        case _:
            return draw(st.sampled_from([b"", b"\n", b"# nothing\n", b"---\n...\n", b"- a\n", b"a"]))


def check_settings(content: bytes, folder: Path) -> bool:
    file = folder / "params.yaml"
    file.write_bytes(content)
    began = time.process_time()
    no, params = refused(lambda: read_all(file), str(file), file.name)
    assert time.process_time() - began < _MOST_SECONDS
    if no is None:
        _check_numbers(params)
    else:
        told = no.replace(str(file), "").replace(file.name, "")
        assert (
            "`" in told
            or "line " in told
            or "position " in told
            or "expected" in told
            or "recursion" in told
            or SECTIONS.search(told)
        ), no
    return no is not None


def read_all(file: Path) -> dict[str, Any]:
    """All settings as the stages get them: what is laid over others, as part of these."""
    project = Project.load(file)
    params = project.params
    values = params.model_dump()
    check(project)
    found = project.head_starts
    values["headstarts"] = {
        name: {part: each.of_stage(part) for part in PARTS} for name, each in found.items()
    }
    for section, name in LAID_OVER:
        del values[section][name]
    return values


def _check_numbers(values: Mapping[str, Any]) -> None:
    for key, value in flatten(values):
        if not re.match(r"headstarts\.\w+\.\w+\.model\.config\.", key):  # checked by the family
            assert not isinstance(value, float) or math.isfinite(value), key
            assert not isinstance(value, int) or abs(value) < 2**32, key


@st.composite
def overlays(draw: st.DrawFn) -> bytes:
    """Draw an overlay for params.yaml: some of its keys with other values."""
    known = [key for key, _ in flatten(read_yaml(FILE)) if not key.startswith("tune.space")]
    tree: dict[str, Any] = {}
    for key in draw(st.lists(st.sampled_from(known), min_size=1, max_size=4)):
        *above, last = key.split(".")
        below = tree
        for part in above:
            below = below.setdefault(part, {})
        below[last] = draw(
            st.sampled_from([0, 1, 2, 0.5, 0.25, "auto", True, None, [], "x: y", "\u2028", "é", -1])
        )
    from io import StringIO

    text = StringIO()
    YAML(typ="safe").dump(tree, text)
    content = text.getvalue().encode()
    return draw(damaged(content)) if draw(st.booleans()) else content


def check_overlay(content: bytes, folder: Path) -> bool:
    """Check that `headstart use` leaves params.yaml unchanged, or applies the overlay and nothing else."""
    file, overlay = folder / "params.yaml", folder / "mine.yaml"
    file.write_bytes(_TEXT)
    overlay.write_bytes(content)
    before = dict(flatten(with_defaults(read_yaml(file))))
    no, changes = refused(lambda: presets.use(str(overlay), file, write=True), overlay.name, file.name)
    if no:
        assert file.read_bytes() == _TEXT, "refused, but changed"
        return True
    after = dict(flatten(with_defaults(read_yaml(file))))
    after.pop("presets", None)
    expected = before | {key: new for key, _, new in changes if new != "(none)"}
    assert after == {key: value for key, value in expected.items() if key in after}
    Project.load(file)
    return False
