"""Reads YAML into strict, typed settings."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, TypeVar, get_origin, get_type_hints

from pydantic import BaseModel, ValidationError, create_model

from pipeline.settings.messages import explain
from pipeline.settings.section import Section, Values

T = TypeVar("T")

# Sections of things that a person names, and the corpora, of which one may be taken out.
_NAMED = {"tokenizers", "headstarts", "ensembles", "corpus"}


def read_yaml(path: Path) -> dict[str, Any]:
    """Parse a YAML 1.2 mapping. Raises ValueError if the file is missing or is no mapping."""
    from ruamel.yaml.error import YAMLError

    try:
        content = parsed(path.read_text(encoding="utf-8"))
        if isinstance(content, dict):
            _check_no_nul(content)
            return content
    except FileNotFoundError as error:
        raise ValueError(f"{path}: no such file; run this in the folder of a headstart project") from error
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror}") from error
    except (YAMLError, ValueError, RecursionError) as error:
        hint = "; put text with a colon in quotes" if "unexpected ':'" in str(error) else ""
        raise ValueError(f"{path}: not valid YAML: {error}{hint}") from error
    raise ValueError(f"{path}: holds {type(content).__name__}; expected a mapping")


def parsed(text: str) -> Any:
    """Parse YAML 1.2 as DVC does: libyaml refuses a colon in a list on one line that has no quotes.

    Raises one of several errors if it is none.
    """
    from ruamel.yaml import YAML

    yaml = YAML(typ="safe")
    yaml.Constructor = _with_positions(yaml.Constructor)
    return yaml.load(text)


def _with_positions(constructor: type[Any]) -> type[Any]:
    """Add line and column to the error for a value that cannot be made, such as a 13th month."""
    from ruamel.yaml.constructor import ConstructorError

    class WithPositions(constructor):
        def construct_object(self, node: Any, deep: bool = False) -> Any:
            try:
                return super().construct_object(node, deep=deep)
            except ValueError as error:
                raise ConstructorError(problem=str(error), problem_mark=node.start_mark) from error

    return WithPositions


def _check_no_nul(content: Values) -> None:
    for key, value in flatten(content):
        if any(
            isinstance(item, str) and "\0" in item for item in (value if isinstance(value, list) else [value])
        ):
            raise ValueError(f"`{key}` holds a NUL, which no path or name can contain")


def typed(kind: type[T], values: Values, *, where: str, prefix: str = "") -> T:
    """Check `values` strictly against a pydantic model or a dataclass.

    Raises:
        ValueError: one line per unknown, missing or wrong key, with its dotted name and, for an unknown
            key, the nearest known name. What a dataclass refuses itself begins with the key's own name.
    """
    model = kind if issubclass(kind, BaseModel) else strict_model(kind)
    try:
        checked = model.model_validate(dict(values))
    except ValidationError as error:
        lines = sorted(explain(error.errors(), values, model, prefix))
        raise ValueError(f"{where}: " + f"\n{where}: ".join(lines)) from error
    if isinstance(checked, kind):
        return checked
    try:
        return kind(**checked.model_dump())
    except ValueError as error:
        raise ValueError(f"{where}: {prefix}{error}") from error


def strict_model(kind: type) -> type[BaseModel]:
    """Make a strict model with the fields of a dataclass, which pydantic itself would check leniently."""
    hints, defaults = get_type_hints(kind, include_extras=True), _defaults(kind)
    fields: dict[str, Any] = {name: (hint, defaults.get(name, ...)) for name, hint in hints.items()
                              if get_origin(hint) is not ClassVar}  # fmt: skip
    return create_model(kind.__name__, __base__=Section, **fields)


def _defaults(kind: type) -> dict[str, Any]:
    """The default of each field of a dataclass that has one."""
    found = {}
    for each in dataclasses.fields(kind):
        if each.default is not dataclasses.MISSING:
            found[each.name] = each.default
        elif each.default_factory is not dataclasses.MISSING:
            found[each.name] = each.default_factory()
    return found


def overlay(base: Values, top: Values) -> dict[str, Any]:
    """Lay `top` over `base`, key by key.

    If the `kind` of a source changes, the whole source is replaced: keys of another kind mean nothing to it.
    So is a range that becomes choices, or the reverse. A head start of another `family` begins with empty
    settings. A head start, a tokenizer or an ensemble that becomes null is taken out.
    """
    merged = dict(base)
    for key, value in top.items():
        below = merged.get(key, {} if key in _NAMED else None)
        if not isinstance(below, Mapping):
            merged[key] = value
        elif isinstance(value, Mapping):
            found = dict(value) if _replaces(value, below, key) else overlay(_kept(below, value), value)
            named = key in _NAMED
            merged[key] = {name: each for name, each in found.items() if not (named and each is None)}
        else:
            merged[key] = value
    return merged


def _replaces(value: Values, below: Values, key: str) -> bool:
    other_kind = key == "source" and _differ(value, below, "kind")
    return other_kind or ("choices" in value and "low" in below) or ("low" in value and "choices" in below)


def _kept(below: Values, value: Values) -> Values:
    """The base that an overlay is merged into; for another family, only the tokenizer of the head start."""
    if not _differ(value, below, "family"):
        return below
    return {key: below[key] for key in ("family", "tokenizer") if key in below}


def _differ(value: Values, below: Values, key: str) -> bool:
    return key in value and key in below and value[key] != below[key]


def flatten(values: Values, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value) for each leaf."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
