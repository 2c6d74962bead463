"""The sizes of a head start that `scaling` trains, and what it refuses."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pipeline.evaluation.scaling_law import LEAST_DISTINCT
from pipeline.project.checked_params import check_is_trained
from pipeline.project.headstarts import ResolvedHeadStart
from pipeline.project.project import Project
from pipeline.settings.loader import overlay
from pipeline.sweeps.settings import Size as SizeSettings

CHECK = "check"  # the name of the size that checks the law


@dataclass(frozen=True)
class Size:
    """A head start with other settings, whose language model is trained for as long as a run wants."""

    name: str
    key: str  # in params.yaml
    _head_start: ResolvedHeadStart

    @property
    def head_start_name(self) -> str:
        return self._head_start.name

    def of_epochs(self, epochs: float) -> ResolvedHeadStart:
        settings = self._head_start.pretrain_lm
        training = settings.training.model_copy(update={"epochs": epochs})
        return replace(self._head_start, pretrain_lm=replace(settings, training=training))


def sizes_of(project: Project) -> tuple[list[Size], Size | None]:
    """The sizes of the sweep, and the one that the law is checked by.

    Raises ValueError naming each offending key.
    """
    settings = project.params.scaling
    found = [_size(project, name, f"scaling.sizes.{name}", each) for name, each in settings.sizes.items()]
    larger = settings.check
    return found, None if larger is None else _size(project, CHECK, "scaling.check", larger)


def _size(project: Project, name: str, key: str, own: SizeSettings) -> Size:
    settings = project.params.scaling
    head_start = settings.headstart
    top = {"config": own.config, "pretrain_lm": overlay(settings.pretrain_lm, own.pretrain_lm)}
    try:
        return Size(name, key, project.varied(head_start, top))
    except ValueError as error:
        raise ValueError(f"{key}, laid over the head start {head_start}: {error}") from error


def check_scaling(project: Project) -> None:
    """Raise ValueError for sizes that cannot be trained, or that determine no law."""
    settings, key = project.params.scaling, "params.yaml: scaling"
    if not settings.sizes:
        return
    check_is_trained(project.params, settings.headstart, "scaling.headstart")
    head_start = project.head_starts[settings.headstart]
    if head_start.family.objective != "causal":
        raise ValueError(
            f"{key}.headstart is {head_start.name}, but {head_start.family.name} is not trained to predict "
            "the next token, which the law is of; name a head start that is, such as gpt or ulmfit"
        )
    for name, numbers in (("sizes", list(settings.sizes)), ("tokens", settings.tokens)):
        if len(numbers) < LEAST_DISTINCT:
            raise ValueError(
                f"{key}.{name} has {len(numbers)} ({', '.join(map(str, numbers))}); a law needs "
                f"{LEAST_DISTINCT}, or its floor stays unknown"
            )
    if CHECK in settings.sizes:
        raise ValueError(f"{key}.sizes has {CHECK}, as the run of {key}.check is called; rename it")
    sizes_of(project)
