"""The meaning of every setting, and `headstart settings`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import pytest

from models.family import _known_families, lookup
from pipeline.objectives.lookup import objective_of
from pipeline.project.params import Params
from pipeline.settings.meanings import meanings
from pipeline.settings.section import Section

ROOT = Path(__file__).resolve().parent.parent


def types_below(kind: Any) -> Iterator[type]:
    """The settings types that a type of a field, or a settings type, is made of."""
    if get_origin(kind) is not None:
        for each in get_args(kind)[: 1 if get_origin(kind) is Annotated else None]:
            yield from types_below(each)
    elif isinstance(kind, type) and (issubclass(kind, Section) or dataclasses.is_dataclass(kind)):
        yield kind
        if issubclass(kind, Section):
            for hint in get_type_hints(kind, include_extras=True).values():
                yield from types_below(hint)


def settings_types() -> list[type]:
    families = [lookup(name) for name in _known_families()]
    of_families = [kind for each in families for kind in (each.config, objective_of(each).Settings)]
    found = dict.fromkeys(kind for root in (Params, *of_families) for kind in types_below(root))
    return [kind for kind in found if kind.__name__ != "Arm"]  # a value with a spelling of its own


@pytest.mark.parametrize("kind", settings_types(), ids=lambda kind: f"{kind.__module__}.{kind.__name__}")
def test_every_setting_says_its_meaning_in_a_line(kind):
    fields = kind.model_fields if issubclass(kind, Section) else {f.name for f in dataclasses.fields(kind)}
    said = meanings(kind)
    assert {name for name in fields if not said.get(name, "").strip()} == set()
    assert {name for name in fields if "\n" in said[name]} == set()


def test_a_meaning_is_inherited_by_a_field_that_only_has_another_default():
    from models import gpt, transformer

    assert meanings(gpt.Config)["activation"] == meanings(transformer.LayersConfig)["activation"]
    assert meanings(gpt.Config).keys() > meanings(transformer.LayersConfig).keys()
