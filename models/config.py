"""The base of the families' settings: bounds are declared with the fields, and checked in one place.

@dataclass(frozen=True)
class Config(FamilyConfig):
    num_layers: Count = 2
    controller: Literal["lstm", "feedforward"] = "lstm"
    input_dropout: Dropout = 0.1
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Annotated, Any, Literal, NamedTuple, Self, get_args, get_origin, get_type_hints


class Bound(NamedTuple):
    words: str
    holds: Callable[[float], bool]


def at_least(least: int) -> Bound:
    return Bound(f"at least {least}", lambda number: number >= least)


_PROBABILITY = Bound("0 <= p < 1", lambda number: 0 <= number < 1)

Count = Annotated[int, at_least(1)]
CountOrZero = Annotated[int, at_least(0)]
Positive = Annotated[float, Bound("positive", lambda number: number > 0)]
Dropout = Annotated[float, _PROBABILITY]


@dataclass(frozen=True)
class FamilyConfig:
    """A family that reads in either direction has a `direction`, too: forward or backward.

    One whose embedding may begin as word vectors has its width as `embedding_dim`.
    """

    def __post_init__(self) -> None:
        """Raise ValueError, beginning with the field's name, for a value out of bounds."""
        for name, hint in self._hints().items():
            value = getattr(self, name)
            for bound in _bounds(hint):
                if not bound.holds(value):
                    raise ValueError(f"{name} is {value}; it must be {bound.words}")
            if get_origin(hint) is Literal and value not in get_args(hint):
                raise ValueError(f"{name} is {value!r}; choose one of {', '.join(get_args(hint))}")

    def scaled_dropout(self, factor: float) -> Self:
        """Return this config with each dropout probability multiplied by `factor`, at most 0.95."""
        dropouts = [name for name, hint in self._hints().items() if _PROBABILITY in _bounds(hint)]
        return replace(self, **{name: min(0.95, getattr(self, name) * factor) for name in dropouts})

    @classmethod
    @cache
    def _hints(cls) -> dict[str, Any]:
        return get_type_hints(cls, include_extras=True)


def _bounds(hint: Any) -> list[Bound]:
    return [part for part in getattr(hint, "__metadata__", ()) if isinstance(part, Bound)]
