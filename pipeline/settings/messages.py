"""Error messages for wrong keys in `params.yaml`."""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel

from pipeline.settings.section import Values

_REPR = reprlib.Repr()  # shortens values to what a message can hold
_REPR.maxstring = _REPR.maxother = 200


def explain(errors: Sequence[Any], values: Values, model: type[BaseModel], prefix: str) -> Iterator[str]:
    """Yield one line per wrong key; for a union, pydantic has one error per member."""
    found: dict[tuple[str, ...], list[Any]] = {}
    for item in errors:
        found.setdefault(_key_of(item, values), []).append(item)
    for key, items in found.items():
        last = items[-1]
        dotted = prefix + ".".join(key)
        if last["type"] == "extra_forbidden" or any(item["loc"][-1:] == ("[key]",) for item in items):
            yield _unknown(dotted, _names_in(_types_at(model, key[:-1])))
        elif last["type"] in ("missing", "union_tag_not_found"):
            yield f"missing key `{dotted}`"
        elif not any(other[: len(key)] == key and len(other) > len(key) for other in found):
            # Otherwise the value is a mapping, as it may be, and the errors below it say what is wrong.
            given = last["ctx"]["tag"] if last["type"] == "union_tag_invalid" else last["input"]
            yield f"`{dotted}` is {_REPR.repr(given)}: {_expected(items, _types_at(model, key))}"


def _key_of(item: Any, values: Any) -> tuple[str, ...]:
    """Return the path of an error in the file; pydantic's location also has union tags, which are dropped."""
    key = []
    for part in item["loc"]:
        try:
            values = values[part]
        except (KeyError, IndexError, TypeError):
            continue
        key.append(str(part))
    if item["type"] == "missing":
        key.append(str(item["loc"][-1]))
    elif item["type"].startswith("union_tag"):
        key.append(item["ctx"]["discriminator"].strip("'"))
    return tuple(key)


def _expected(items: Sequence[Any], types: Sequence[Any]) -> str:
    """Say what is valid there. Messages of our own checks replace those of pydantic."""
    ours = [item["msg"].removeprefix("Value error, ") for item in items if item["type"] == "value_error"]
    said = list(dict.fromkeys(_in_yaml_terms(item, types) for item in items))
    prefix = "Input should be "
    if ours or not all(text.startswith(prefix) for text in said):
        return "; ".join(ours or said)
    null = ["null"] if type(None) in types else []
    return prefix + " or ".join([text.removeprefix(prefix) for text in said] + null)


def _in_yaml_terms(item: Any, types: Sequence[Any]) -> str:
    """Return pydantic's message in the terms of the file."""
    if item["type"] == "union_tag_invalid":
        return f"Input should be {item['ctx']['expected_tags'].replace(', ', ' or ')}"
    if item["type"] in ("too_short", "too_long"):
        return f"Input should be {_length(item['ctx'])}"
    if item["type"] not in ("model_type", "model_attributes_type", "dict_type"):
        return str(item["msg"])
    names = _names_in(types)
    return "Input should be a mapping" + (f" of {', '.join(names)}" if names else "")


def _length(bound: Mapping[str, Any]) -> str:
    """Name a list or mapping of a valid length, from what pydantic says of one that is too short or long."""
    container, part = ("a mapping", "key") if bound["field_type"] == "Dictionary" else ("a list", "item")
    limit, number = (
        ("at least", bound["min_length"]) if "min_length" in bound else ("at most", bound["max_length"])
    )
    return f"{container} with {limit} {number} {part}{'' if number == 1 else 's'}"


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a hint for an unknown name: the nearest known one, or all of them."""
    known = list(known)
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"


def _unknown(key: str, known: list[str]) -> str:
    near = difflib.get_close_matches(key.rsplit(".", 1)[-1], known, n=1, cutoff=0.5)
    hint = f"did you mean `{near[0]}`?" if near else f"known here: {', '.join(sorted(known))}"
    return f"unknown key `{key}`; {hint}"


def _types_at(model: Any, key: Sequence[str]) -> list[Any]:
    """Return the types that a key may have."""
    types = list(_union_members(model))
    for part in key:
        types = [below for each in types for below in _types_below(each, part)]
    return types


def _names_in(types: Sequence[Any]) -> list[str]:
    """Return the keys of sections, and of mappings with a fixed set of keys."""
    names: dict[str, None] = {}
    for kind in types:
        given = get_args(get_args(kind)[0]) if get_origin(kind) is dict else ()
        names |= dict.fromkeys([*getattr(kind, "model_fields", ()), *given])
    return list(names)


def _union_members(annotation: Any) -> Iterator[Any]:
    """Yield the members of a union, or the type itself."""
    if get_origin(annotation) in (Annotated, Union, UnionType):
        members = get_args(annotation)
        for each in members[:1] if get_origin(annotation) is Annotated else members:
            yield from _union_members(each)
    else:
        yield annotation


def _types_below(kind: Any, part: str) -> Iterator[Any]:
    """Yield the types of a key of a section or mapping, or of an item of a list."""
    if get_origin(kind) in (dict, list):
        yield from _union_members(get_args(kind)[-1])
    elif part in getattr(kind, "model_fields", {}):
        yield from _union_members(kind.model_fields[part].annotation)
