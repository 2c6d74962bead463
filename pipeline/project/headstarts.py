"""The settings of a head start, with the defaults of its family and what params.yaml lays over them."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache, reduce
from pathlib import Path
from typing import Any

from pydantic import BaseModel, create_model

from models.family import Family
from models.objective import Objective
from pipeline.distributed.settings import Range, Tune
from pipeline.evaluation.settings import Probe
from pipeline.objectives.lookup import objective_of
from pipeline.project.params import Params
from pipeline.settings.loader import flatten, overlay, typed
from pipeline.settings.section import Section, Values
from pipeline.training.cards import family_and_config
from pipeline.training.settings import (
    ClassifierTraining,
    DistillationSettings,
    LanguageModelSettings,
    Model,
    Training,
)


@dataclass(frozen=True)
class ResolvedHeadStart:
    """All settings of a head start, checked by its family."""

    name: str
    family: Family
    objective: type[Objective]
    model: Model  # with the defaults of the family's config written out
    weights: Path | None  # from elsewhere; `pretrain_lm` imports them
    # Its model and `pretrain_lm` train the embedding first, at the width of this one's; None: it is drawn.
    embedding_from: ResolvedHeadStart | None
    teacher: ResolvedHeadStart | None  # whose language models those of this one learn from
    distillation: DistillationSettings | None  # how; None without a teacher
    tokenizer: str
    pretrain_lm: LanguageModelSettings
    finetune_lm: LanguageModelSettings
    finetune_classifier: ClassifierTraining
    few_labels: ClassifierTraining
    scratch: ClassifierTraining  # few labels, from scratch
    probe: Probe

    def of_stage(self, stage: str) -> Values:
        """The settings that a training stage depends on, as plain values."""
        found = getattr(self, stage)
        section = found.dump() if isinstance(found, LanguageModelSettings) else found.model_dump()
        embedding = self.embedding_from if stage == "pretrain_lm" else None
        first = {} if embedding is None else {"embedding_from": embedding.of_stage(stage)}
        lesson = {}
        if self.distillation is not None and stage in ("pretrain_lm", "finetune_lm"):
            lesson = {"distillation": self.distillation.model_dump()}
        return {"model": self.model.model_dump(), stage: section, **first, **lesson}

    def folder_of_teacher(self, out: Path) -> Path | None:
        """The folder of the teacher's model, beside that of this one's; None without a teacher.

        Raises ValueError if it is not there.
        """
        if self.teacher is None:
            return None
        folder = out.parent / self.teacher.name
        if not folder.is_dir():
            raise ValueError(
                f"{self.name} learns from {self.teacher.name}, whose model {folder} is not there; run `dvc "
                "repro` for the teacher first"
            )
        return folder

    def searchable(self) -> Values:
        """Values by the keys that `tune.space` names."""
        found = {
            "config": self.model.config,
            "finetune_lm": self.finetune_lm.dump(),
            "finetune_classifier": self.finetune_classifier.model_dump(),
        }
        return dict(flatten(found))


def resolve(params: Params, name: str, head_start: Callable[[str], ResolvedHeadStart]) -> ResolvedHeadStart:
    """Settings of the head start `name`; `head_start` resolves those that it is related to.

    `Project.head_starts` is the one caller. Raises ValueError naming each offending key.
    """
    section = params.headstarts[name]
    key = f"headstarts.{name}"
    family, config = family_and_config(section.model, key)
    objective = objective_of(family)
    model = Model(family=family.name, config=asdict(config))
    embedding_from = None if section.embedding_from is None else head_start(section.embedding_from)
    layers = layers_of(params, name, family)

    def language_model(stage: str) -> LanguageModelSettings:
        base, own, top = (layer.values for layer in layers[stage])
        return language_model_settings(objective, base, own, top, f"{key}.{stage}.")

    def classifier(stage: str) -> ClassifierTraining:
        values = _laid_over(layers[stage])
        return typed(ClassifierTraining, values, where="params.yaml", prefix=f"{key}.{stage}.")

    probe = _laid_over(layers["probe"])
    return ResolvedHeadStart(
        name=name,
        family=family,
        objective=objective,
        model=model,
        weights=None if section.weights is None else Path(section.weights),
        embedding_from=None if embedding_from is None else _at_width_of(model, embedding_from),
        teacher=None if section.teacher is None else head_start(section.teacher),
        distillation=None if section.teacher is None else params.distillation,
        tokenizer=section.tokenizer,
        pretrain_lm=language_model("pretrain_lm"),
        finetune_lm=language_model("finetune_lm"),
        finetune_classifier=classifier("finetune_classifier"),
        few_labels=classifier("few_labels"),
        scratch=classifier("scratch"),
        probe=typed(Probe, probe, where="params.yaml", prefix=f"{key}.probe."),
    )


@dataclass(frozen=True)
class Layer:
    """Settings of a stage that are laid over those of the layers below it."""

    source: str  # what brings them, for a person
    values: Mapping[str, Any]
    key: str | None = None  # of the head start's own settings: where they stand in params.yaml


def layers_of(params: Params, name: str, family: Family) -> dict[str, list[Layer]]:
    """The layers of a head start's settings by stage, the lowest first."""
    section = params.headstarts[name]

    def shared(stage: str) -> Layer:
        return Layer(f"section {stage}", getattr(params, stage).model_dump())

    def brought(stage: str) -> Layer:
        return Layer(f"family {family.name}", family.defaults.get(stage, {}))

    def own(stage: str) -> Layer:
        return Layer("head start", getattr(section, stage), f"headstarts.{name}.{stage}")

    layers = {
        stage: [shared(stage), brought(stage), own(stage)]
        for stage in ("pretrain_lm", "finetune_lm", "finetune_classifier", "probe")
    }
    curve = Layer("sample_efficiency.classifier", params.sample_efficiency.classifier)
    few = [*layers["finetune_classifier"], curve, brought("few_labels"), own("few_labels")]
    scratch = [*few, _from_nothing(_laid_over(few)), brought("scratch"), own("scratch")]
    return {**layers, "few_labels": few, "scratch": scratch}


def _from_nothing(few_labels: Values) -> Layer:
    """Return the settings of a network from scratch: it reads no head start, and all of it trains."""
    values = {"beside": None} | ({"unfreeze": "full"} if few_labels["unfreeze"] == "head" else {})
    return Layer("from scratch", values)


def _laid_over(layers: Iterable[Layer]) -> Values:
    return reduce(overlay, (layer.values for layer in layers), {})


def _at_width_of(model: Model, head_start: ResolvedHeadStart) -> ResolvedHeadStart:
    """The head start that an embedding comes from, as wide as that of `model`."""
    config = dict(head_start.model.config)
    if "embedding_dim" in model.config:
        config["embedding_dim"] = model.config["embedding_dim"]
    return replace(head_start, model=Model(family=head_start.family.name, config=config))


def stage_space(tune: Tune, head_start: ResolvedHeadStart) -> dict[str, Range]:
    """The ranges that the trials of `tune.stage` read. Raises ValueError as `space_of` does."""
    sections = ("config", tune.stage)
    return {key: each for key, each in space_of(tune, head_start).items() if key.split(".")[0] in sections}


def space_of(tune: Tune, head_start: ResolvedHeadStart) -> dict[str, Range]:
    """What `tune` searches, by key of the head start: the family's space with `tune.space` laid over it.

    Raises ValueError for a key that is no setting of the head start.
    """
    own = {
        name: typed(Range, each, where=head_start.family.name)
        for name, each in head_start.family.space.items()
    }
    known = head_start.searchable()
    for name in tune.space:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            hint = f"; did you mean `{near[0]}`?" if near else ""
            raise ValueError(f"tune.space names `{name}`, which is no setting of {head_start.name}{hint}")
    return {name: each for name, each in {**own, **tune.space}.items() if each is not None}


def language_model_settings(
    objective: type[Objective],
    base: Values,
    own: Values,
    top: Values,
    prefix: str,
) -> LanguageModelSettings:
    """Settings for an objective: of the section `base`, the keys that the objective knows."""
    kind = _settings_of(objective)
    values = {name: value for name, value in base.items() if name in kind.model_fields}
    found = typed(kind, overlay(overlay(values, own), top), where="params.yaml", prefix=prefix)
    values = found.model_dump()
    common = {name: values.pop(name) for name in Training.model_fields}
    return LanguageModelSettings(
        typed(Training, common, where="params.yaml", prefix=prefix),
        typed(objective.Settings, values, where="params.yaml", prefix=prefix),
    )


@cache
def _settings_of(objective: type[Objective]) -> type[BaseModel]:
    """The training settings of all objectives and this objective's own, in one section."""
    own = objective.Settings
    if issubclass(own, Section):
        return create_model(own.__name__, __base__=(Training, own))
    from pipeline.settings.loader import strict_model

    added = strict_model(own)
    return create_model(own.__name__, __base__=(Training, added))
