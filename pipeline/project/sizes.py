"""The sizes of a head start that `scaling` trains."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pipeline.project.headstarts import ResolvedHeadStart, resolve
from pipeline.project.params import Params
from pipeline.settings.loader import overlay, typed
from pipeline.sweeps.settings import Size as SizeSettings

CHECK = "check"  # the name of the size that checks the law


@dataclass(frozen=True)
class Size:
    """A head start with other settings, whose language model is trained for as long as a run wants."""

    name: str
    key: str  # in params.yaml
    _head_start: ResolvedHeadStart

    def of_epochs(self, epochs: float) -> ResolvedHeadStart:
        settings = self._head_start.pretrain_lm
        training = settings.training.model_copy(update={"epochs": epochs})
        return replace(self._head_start, pretrain_lm=replace(settings, training=training))


def sizes_of(params: Params) -> tuple[list[Size], Size | None]:
    """The sizes of the sweep, and the one that the law is checked by.

    Raises ValueError naming each offending key.
    """
    settings = params.scaling
    found = [_size(params, name, f"scaling.sizes.{name}", each) for name, each in settings.sizes.items()]
    larger = settings.check
    return found, None if larger is None else _size(params, CHECK, "scaling.check", larger)


def _size(params: Params, name: str, key: str, own: SizeSettings) -> Size:
    head_start = params.scaling.headstart
    top = {"config": own.config, "pretrain_lm": overlay(params.scaling.pretrain_lm, own.pretrain_lm)}
    laid_over = overlay(params.model_dump(), {"headstarts": {head_start: top}})
    try:
        return Size(name, key, resolve(typed(Params, laid_over, where="params.yaml"), head_start))
    except ValueError as error:
        raise ValueError(f"{key}, laid over the head start {head_start}: {error}") from error
