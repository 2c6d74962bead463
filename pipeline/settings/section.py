"""The base class of settings sections, and field types with bounds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

Values = Mapping[str, Any]  # settings as YAML has them: by key a value, or a mapping of more; not yet checked
Overrides = dict[str, Any]  # a setting: values that are laid over those of another section and checked there

Fraction = Annotated[float, Field(ge=0, lt=1)]
Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=1, lt=2**31)]
CountOrZero = Annotated[int, Field(ge=0, lt=2**31)]
Threads = Annotated[int, Field(ge=1, le=1024)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]  # the range that every library here accepts
Epochs = Annotated[float, Field(gt=0, le=100_000)]  # bounded, because every evaluation is planned ahead
EpochsOrZero = Annotated[float, Field(ge=0, le=100_000)]

T = TypeVar("T")


def _distinct(values: list[T]) -> list[T]:
    repeated = dict.fromkeys(str(value) for value in values if values.count(value) > 1)
    if repeated:
        raise ValueError(f"names {', '.join(repeated)} more than once")
    return values


Distinct = AfterValidator(_distinct)  # of a list

# Of an encoder: 0 is the lowest, -1 the top one.
Layers = Annotated[list[int], Field(min_length=1), Distinct] | Literal["all"]

NumLabels = Count | Literal["all"]  # to train on; more than there are: all

Precision = Literal["auto", "fp32", "bf16"]  # of matrix products


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)
