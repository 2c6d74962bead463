"""Relations of head starts: what the training of one needs of another one, or of a file from elsewhere.

Each relation is one entry of `RELATIONS`. From it follow

- the refusal of unknown names, circles and a wrong order, and of settings that do not go with it;
- the settings, modules and families in the recipe of a stage, the hash of a file or of the other's recipe
  there, and the hash of the other's model in the key of the run;
- what `headstart doctor` looks for and counts, and the link by which DVC follows features.

`headstart --help` reads this module, so it imports what is slow inside functions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from pipeline.project.headstarts import ResolvedHeadStart
    from pipeline.project.params import Params

Read = Literal["file", "settings", "model", "features"]
Trained = Literal["or not", "too", "before"]

LANGUAGE_MODELS = ("pretrain_lm", "finetune_lm")
# By these a frozen language model is read, whoever reads its features.
READING = ("model", "probe", "finetune_classifier.max_tokens", "finetune_classifier.bptt")


def _refuses_no_family(head_start: ResolvedHeadStart) -> None:
    pass


def _refuses_nothing(params: Params, head_start: ResolvedHeadStart) -> None:
    pass


@dataclass(frozen=True)
class Relation:
    """A setting of a head start that names another head start, or a file.

    Attributes:
        setting: its key below `headstarts.NAME`.
        stages: the training stages that need it.
        reads: what they read of the other: a file of a person's own, the settings by which it is trained
            there, its model of the same stage, or its features.
        modules: those that only head starts with the relation load, so that others do not depend on them.
        module_of: which of them a head start loads, if there are several.
        own_settings: paths below `headstarts.NAME` that the stages read for the relation; None without it.
        settings_of_other: paths below the other one that they read.
        trains_other: whether the other's family is trained in these stages, so that its code counts.
        other_trained: whether `run.headstarts` trains the other `or not`, `too`, or `before` this one.
        excludes: settings that the head start may not have beside this one.
        other_lacks: settings that the other may not have: so there are no chains, and no circles.
        same: settings in which the two have to agree.
        check_families: raises ValueError for a head start whose family, or that of the other, cannot be
            related so.
        check: raises ValueError for settings of a trained head start that do not go with the relation.
    """

    setting: str
    stages: tuple[str, ...]
    reads: Read
    modules: tuple[str, ...]
    module_of: Callable[[ResolvedHeadStart], str] | None = None
    own_settings: tuple[str, ...] = ()
    settings_of_other: tuple[str, ...] = ()
    trains_other: bool = False
    other_trained: Trained = "or not"
    excludes: tuple[str, ...] = ()
    other_lacks: tuple[str, ...] = ()
    same: tuple[str, ...] = ()
    check_families: Callable[[ResolvedHeadStart], None] = _refuses_no_family
    check: Callable[[Params, ResolvedHeadStart], None] = _refuses_nothing

    def module_for(self, head_start: ResolvedHeadStart) -> str:
        return self.modules[0] if self.module_of is None else self.module_of(head_start)


# ------------------------------------------------------------------------------------------- weights

_NETWORK, _VECTORS = "pipeline.stages._imported_network", "pipeline.stages._imported_vectors"


def _importer(head_start: ResolvedHeadStart) -> str:
    return _NETWORK if head_start.family.imports_networks else _VECTORS


def _check_imports(head_start: ResolvedHeadStart) -> None:
    family = head_start.family
    if head_start.weights is not None and not (family.has_word_vectors or family.imports_networks):
        raise ValueError(
            f"params.yaml: `headstarts.{head_start.name}.weights` is '{head_start.weights}', but the family "
            f"{family.name} imports none; set it to null"
        )


_WEIGHTS = Relation(
    "weights",
    stages=("pretrain_lm",),
    reads="file",
    modules=(_NETWORK, _VECTORS),
    module_of=_importer,
    check_families=_check_imports,
)

# ------------------------------------------------------------------------------------ embedding_from


def _check_has_embedding(head_start: ResolvedHeadStart) -> None:
    if (other := head_start.embedding_from) is None:
        return
    key = f"params.yaml: `headstarts.{head_start.name}.embedding_from` is {other.name}"
    if not other.family.has_word_vectors:
        raise ValueError(
            f"{key}, whose family {other.family.name} has no word vectors; name a head start of another "
            "family, such as word_vectors, or set it to null"
        )
    if "embedding_dim" not in head_start.model.config:
        family = head_start.family.name
        raise ValueError(f"{key}, but the family {family} has no `embedding_dim`; set it to null")


_EMBEDDING_FROM = Relation(
    "embedding_from",
    stages=("pretrain_lm",),
    reads="settings",
    modules=("pipeline.stages._trained_embedding",),
    own_settings=("embedding_from.model", "embedding_from.pretrain_lm"),
    trains_other=True,
    excludes=("weights",),
    other_lacks=("weights", "embedding_from", "teacher"),
    check_families=_check_has_embedding,
)

# ------------------------------------------------------------------------------------------- teacher


def _check_can_be_taught(student: ResolvedHeadStart) -> None:
    teacher, name = student.teacher, student.name
    if teacher is None:
        return
    key, objective = f"params.yaml: `headstarts.{name}.teacher` is {teacher.name}", student.objective
    if not objective.can_be_taught:
        raise ValueError(
            f"{key}, but the objective {objective.__name__} of {name} learns from no teacher; set it to null"
        )
    assert student.distillation is not None
    if teacher.objective is not objective and student.distillation.soft:
        raise ValueError(
            f"{key}, whose objective is {teacher.objective.__name__}, but that of {name} is "
            f"{objective.__name__}: the two predict other tokens, so that only their hidden states compare; "
            "set distillation.soft to 0, or name a teacher of the same objective"
        )
    ours, theirs = (each.model.config.get("direction", "forward") for each in (student, teacher))
    if ours != theirs:
        raise ValueError(f"{key}, which reads {theirs}, but {name} reads {ours}; set one of the two")


def _check_lesson(params: Params, student: ResolvedHeadStart) -> None:
    """Raise ValueError for a teacher that a student cannot learn from as `distillation` says."""
    from pipeline.project.networks import encoder_of

    teacher, weights = student.teacher, student.distillation
    if teacher is None or weights is None:
        return
    name, encoder, taught_by = student.name, encoder_of(student), encoder_of(teacher)
    if not (weights.soft or weights.hard or weights.cosine):
        raise ValueError(
            f"params.yaml: distillation has no weight above 0, so {name} would learn nothing; set one"
        )
    for stage in LANGUAGE_MODELS:
        settings = getattr(student, stage).own
        if getattr(settings, "sampled_words", None) is not None:
            raise ValueError(
                f"params.yaml: {stage}.sampled_words of {name} is set, but its teacher {teacher.name} tells "
                "the probabilities of all words; set it to null"
            )
        chunk = student.objective.size_of_step(settings, 8, encoder).chunk
        if taught_by.context is not None and chunk > taught_by.context:
            raise ValueError(
                f"params.yaml: {stage} of {name} reads up to {chunk} tokens at once, but config.context of "
                f"its teacher {teacher.name} is {taught_by.context}; lower bptt or row_tokens of {name}"
            )
    if weights.cosine and encoder.width != taught_by.width:
        raise ValueError(
            f"params.yaml: distillation.cosine is {weights.cosine}, but the features of {name} are "
            f"{encoder.width} wide, and those of its teacher {teacher.name} {taught_by.width}; set it to 0, "
            "or make them alike"
        )


_TEACHER = Relation(
    "teacher",
    stages=LANGUAGE_MODELS,
    reads="model",
    modules=("pipeline.stages._teacher",),
    own_settings=("distillation",),
    trains_other=True,
    other_trained="before",
    excludes=("weights", "embedding_from"),
    other_lacks=("teacher",),
    same=("tokenizer",),  # they have to read the same tokens
    check_families=_check_can_be_taught,
    check=_check_lesson,
)

# -------------------------------------------------------------------------------------------- beside


def _check_beside(params: Params, head_start: ResolvedHeadStart) -> None:
    """Raise ValueError for features of another head start that there are not."""
    from pipeline.project.networks import CLASSIFIERS

    name = head_start.name
    for section in CLASSIFIERS:  # whose value may be that of another layer, such as a default of the family
        settings = getattr(head_start, section)
        if (other := settings.beside) is not None:
            check_trained(params, "too", name, other, f"params.yaml: headstarts.{name}.{section}.beside")


_BESIDE = Relation(
    "finetune_classifier.beside",
    stages=("finetune_classifier",),
    reads="features",
    modules=("pipeline.stages._frozen_encoder",),
    settings_of_other=READING,
    other_trained="too",
    check=_check_beside,
)

# ---------------------------------------------------------------------------------------------- all

RELATIONS = (_WEIGHTS, _EMBEDDING_FROM, _TEACHER, _BESIDE)
MODULES_OF_RELATIONS = frozenset(module for relation in RELATIONS for module in relation.modules)


def own_settings_of(*stages: str) -> list[str]:
    """What these stages read for all relations below a head start, as `Relation.own_settings` says."""
    needed = (relation for relation in RELATIONS if not {*stages}.isdisjoint(relation.stages))
    return [path for relation in needed for path in relation.own_settings]


def check_relations(params: Params) -> None:
    """Raise ValueError for a head start that is related to none, to itself, in a circle or a wrong order."""
    for name, head_start in params.headstarts.items():
        for relation in RELATIONS:
            # Of a setting below a section, `check` sees all layers.
            if relation.reads == "file" or "." in relation.setting:
                continue
            if (other := getattr(head_start, relation.setting)) is not None:
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
    check_trained(params, relation.other_trained, name, other, key)


def _check_is_another(params: Params, name: str, other: str, key: str) -> None:
    from pipeline.settings.messages import nearest

    if other not in params.headstarts:
        raise ValueError(f"{key} is {other!r}, an unknown head start; {nearest(other, params.headstarts)}")
    if other == name:
        raise ValueError(f"{key} is {name} itself; name another head start, or set it to null")


def check_trained(params: Params, trained: Trained, name: str, other: str, key: str) -> None:
    """Raise ValueError, naming `key`, for an unknown head start, the same one, or one not trained in time."""
    from pipeline.project.checked_params import check_is_trained

    _check_is_another(params, name, other, key)
    if trained == "too":
        check_is_trained(params, other, key)
    order = params.run.headstarts
    if trained == "before" and name in order and other not in order[: order.index(name)]:
        raise ValueError(
            f"{key} is {other}, which run.headstarts does not name before {name}; name it there, so that it "
            "is trained first"
        )
