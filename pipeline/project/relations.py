"""Relations of head starts: what the training of one needs of another one, or of a file from elsewhere.

Each relation is one entry of `RELATIONS`. From it follow the refusal of circles and of a wrong order, the
modules and families in the fingerprint of a stage, and what of the other one its recipe holds. What only a
family knows of a relation is checked where it is resolved, in `pipeline.project.headstarts`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pipeline.project.params import Params
from pipeline.project.stages import READING
from pipeline.settings.messages import nearest

if TYPE_CHECKING:
    from pipeline.project.headstarts import ResolvedHeadStart

Needs = Literal["file", "settings", "model", "features"]
Trained = Literal["no matter", "too", "before"]


@dataclass(frozen=True)
class Relation:
    """A setting of a head start that names another head start, or a file.

    Attributes:
        setting: its key below `headstarts.NAME`.
        needs: what a stage reads of the other: a file of a person's own, the settings that it is trained by,
            its model of the same stage, or its features.
        stages: the training stages that need it.
        code: modules that only head starts with the relation load, so that others do not depend on them.
        trains: whether the other's family is trained in these stages, so that its code counts.
        trained: whether `run.headstarts` has to train the other too, or before this one.
        settings: those of the other that the stages read, too, beside what they need of it.
        excludes: settings that the head start may not have beside this one.
        other_lacks: settings that the other may not have: so there are no chains, and no circles.
        same: settings in which the two have to agree.
    """

    setting: str
    needs: Needs
    stages: tuple[str, ...]
    code: Callable[[ResolvedHeadStart], str]
    trains: bool = False
    trained: Trained = "no matter"
    settings: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()
    other_lacks: tuple[str, ...] = ()
    same: tuple[str, ...] = ()


def _importer(head_start: ResolvedHeadStart) -> str:
    return f"pipeline.stages._imported_{'network' if head_start.family.imports_networks else 'vectors'}"


RELATIONS = (
    Relation("weights", needs="file", stages=("pretrain_lm",), code=_importer),
    Relation(
        "embedding_from",
        needs="settings",
        stages=("pretrain_lm",),
        code=lambda head_start: "pipeline.stages._trained_embedding",
        trains=True,
        excludes=("weights",),
        other_lacks=("weights", "embedding_from", "teacher"),
    ),
    Relation(
        "teacher",
        needs="model",
        stages=("pretrain_lm", "finetune_lm"),
        code=lambda head_start: "pipeline.stages._teacher",
        trains=True,
        trained="before",
        excludes=("weights", "embedding_from"),
        other_lacks=("teacher",),
        same=("tokenizer",),  # they have to read the same tokens
    ),
    Relation(
        "finetune_classifier.beside",
        needs="features",
        stages=("finetune_classifier",),
        code=lambda head_start: "pipeline.stages._frozen_encoder",
        trained="too",
        settings=READING,
    ),
)


def check_relations(params: Params) -> None:
    """Raise ValueError for a head start that is related to none, to itself, in a circle or a wrong order."""
    for name in params.headstarts:
        for relation in RELATIONS:
            if relation.needs not in ("settings", "model"):
                continue
            other = getattr(params.headstarts[name], relation.setting)
            if other is not None:
                _check(params, relation, name, other)


def _check(params: Params, relation: Relation, name: str, other: str) -> None:
    key = f"headstarts.{name}.{relation.setting}"
    _check_is_another(params, name, other, key)
    ours, theirs = params.headstarts[name], params.headstarts[other]
    for setting in relation.excludes:
        if getattr(ours, setting) is not None:
            raise ValueError(
                f"{key} is {other}, but headstarts.{name}.{setting} is set, too; set one to null"
            )
    for setting in relation.other_lacks:
        if getattr(theirs, setting) is not None:
            raise ValueError(
                f"{key} is {other}, which has its own `{setting}`; name a head start without one, or set "
                "this key to null"
            )
    for setting in relation.same:
        if (own := getattr(ours, setting)) != (others := getattr(theirs, setting)):
            raise ValueError(
                f"{key} is {other}, whose {setting} is {others}, but that of {name} is {own}; set one of "
                "the two"
            )
    check_order(params, relation.trained, name, other, key)


def _check_is_another(params: Params, name: str, other: str, key: str) -> None:
    if other not in params.headstarts:
        raise ValueError(f"{key} is {other!r}, an unknown head start; {nearest(other, params.headstarts)}")
    if other == name:
        raise ValueError(f"{key} is {name} itself; name another head start, or set it to null")


def check_order(params: Params, trained: Trained, name: str, other: str, key: str) -> None:
    """Raise ValueError, naming `key`, for an unknown head start, the same one, or one not trained in time."""
    _check_is_another(params, name, other, key)
    order = params.run.headstarts
    if trained == "too" and other not in order:
        raise ValueError(f"{key} is {other}, which run.headstarts does not train; name it there")
    if trained == "before" and name in order and other not in order[: order.index(name)]:
        raise ValueError(
            f"{key} is {other}, which run.headstarts does not name before {name}; name it there, so that it "
            "is trained first"
        )
