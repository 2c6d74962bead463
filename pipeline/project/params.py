"""The whole of params.yaml.

Every setting lives there and none has a default here, except the parts of a `Range` and a `Size`. What a
family of models brings as its own defaults is in its file (`Family.defaults`). A key that is unknown, missing
or mistyped is refused with its dotted name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from pydantic import Field

from pipeline.corpus.settings import Corpora, FilesSource, Leakage, Tokenizer
from pipeline.distributed.settings import Run, Trials, Tune
from pipeline.evaluation.settings import Card, Evaluate, Probe, ZeroShot
from pipeline.settings.arm import BLEND, RESERVED_NAMES, TFIDF, Arm, Use
from pipeline.settings.loader import overlay, typed
from pipeline.settings.messages import nearest
from pipeline.settings.section import Distinct, Section
from pipeline.sweeps.settings import Ablate, DistilClassifier, SampleEfficiency, Scaling
from pipeline.training.settings import (
    ClassifierTraining,
    DistillationSettings,
    HeadStart,
    LanguageModelTraining,
)

PAIR = 2  # texts of a document; more: one and answers to choose from
_NAME = re.compile(r"[a-z][a-z0-9_]*")


class Params(Section):
    """The whole of params.yaml."""

    run: Run
    corpus: Corpora
    tokenizers: Annotated[dict[str, Tokenizer], Field(min_length=1)]
    headstarts: Annotated[dict[str, HeadStart], Field(min_length=1)]
    distillation: DistillationSettings  # of head starts that have a teacher
    # Head starts whose probabilities are averaged, or whose frozen features one probe reads. One
    # whose members are not all trained is left out.
    ensembles: dict[str, Annotated[list[str], Field(min_length=2), Distinct]]
    pretrain_lm: LanguageModelTraining
    finetune_lm: LanguageModelTraining
    finetune_classifier: ClassifierTraining
    probe: Probe
    leakage: Leakage
    evaluate: Evaluate
    trials: Trials
    tune: Tune
    sample_efficiency: SampleEfficiency
    zero_shot: ZeroShot
    ablate: Ablate
    scaling: Scaling
    distil_classifier: DistilClassifier
    card: Card

    def trained_ensembles(self) -> dict[str, list[str]]:
        """The ensembles whose members the route trains."""
        trained = set(self.run.headstarts)
        return {name: members for name, members in self.ensembles.items() if trained.issuperset(members)}

    @property
    def num_texts(self) -> int:
        """The texts of a labelled document: one, a pair, or one and its answers."""
        source = self.corpus.target.source
        return 1 + len(source.further_columns) if isinstance(source, FilesSource) else 1

    def candidates(self, num_texts: int) -> list[Arm]:
        """The candidates that `evaluate` chooses from. What reads a document as one text tells no answers
        apart, so with answers there are networks alone.
        """
        networks = [Arm(name) for name in self.run.headstarts]
        ensembles = [Arm(name) for name in self.trained_ensembles()]
        if num_texts > PAIR:
            return [*networks, *ensembles, BLEND]
        single = [*networks, *(arm.using(Use.PROBE) for arm in (*networks, *ensembles))]
        if self.evaluate.baseline_tfidf:
            single += [TFIDF, *(arm.using(Use.WITH_TFIDF) for arm in (*networks, *ensembles))]
        return [*single, *ensembles, BLEND]

    def head_starts_of(self, arm: Arm) -> list[str]:
        """The head starts that an arm of the label curve trains: none, one, or the members of an ensemble."""
        return [] if arm.source is None else self.ensembles.get(arm.source, [arm.source])

    def arms(self, num_texts: int) -> list[Arm]:
        """The arms of the label curve that can be trained: those of head starts that the route trains.

        With answers to choose from there are networks alone, as in `candidates`.
        """
        trained = {*self.run.headstarts, *self.trained_ensembles(), None}
        arms = [arm for arm in self.sample_efficiency.arms if arm.source in trained]
        if num_texts > PAIR:
            arms = [arm for arm in arms if not (arm.use.is_frozen or arm.use.reads_tfidf)]
        return arms

    def trained_arms(self, num_texts: int) -> list[Arm]:
        """The arms that train something on each number of labels."""
        return [arm for arm in self.arms(num_texts) if arm.use is not Use.IN_CONTEXT]


def checked(values: Mapping[str, Any], *, where: str) -> Params:
    """Check all settings but those that only a family knows, which `Project.head_starts` checks.

    Raises ValueError naming each offending key.
    """
    params = typed(Params, values, where=where)
    try:
        _check_names(params)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error
    classifier = params.finetune_classifier.model_dump()
    few = overlay(classifier, params.sample_efficiency.classifier)
    laid_over = [("sample_efficiency.classifier", classifier, params.sample_efficiency.classifier)]
    for name, head_start in params.headstarts.items():
        key = f"headstarts.{name}"
        own = overlay(few, head_start.few_labels)
        laid_over += [
            (f"{key}.finetune_classifier", classifier, head_start.finetune_classifier),
            (f"{key}.few_labels", few, head_start.few_labels),
            (f"{key}.scratch", own, head_start.scratch),
        ]
    laid_over.append(("ablate.classifier", few, params.ablate.classifier))
    if (student := params.distil_classifier.student) is not None:
        own = overlay(classifier, params.headstarts[student].finetune_classifier)
        laid_over.append(("distil_classifier.classifier", own, params.distil_classifier.classifier))
    if "finetune_classifier" in params.tune.overrides:
        top = params.tune.overrides["finetune_classifier"]
        laid_over.append(("tune.overrides.finetune_classifier", classifier, top))
    for key, base, above in laid_over:
        typed(ClassifierTraining, overlay(base, above), where=where, prefix=f"{key}.")
    return params


def _check_names(params: Params) -> None:
    """Raise ValueError for a name that cannot be one, and for one that names nothing."""
    for section in ("tokenizers", "headstarts", "ensembles"):
        for name in getattr(params, section):
            if not _NAME.fullmatch(name) or name in RESERVED_NAMES:
                raise ValueError(
                    f"{section} has {name!r}; a name has lower-case letters, digits and _, begins with a "
                    f"letter, and is not {' or '.join(RESERVED_NAMES)}"
                )
    both = sorted(params.headstarts.keys() & params.ensembles.keys())
    if both:
        raise ValueError(f"{', '.join(both)}: a head start and an ensemble have the same name; rename one")
    for name, head_start in params.headstarts.items():
        _check_known(head_start.tokenizer, params.tokenizers, f"headstarts.{name}.tokenizer")
        _check_embedding(name, params.headstarts)
        _check_teacher(name, params)
    for name in params.run.headstarts:
        _check_known(name, params.headstarts, "run.headstarts")
    for ensemble, members in params.ensembles.items():
        for name in members:
            _check_known(name, params.headstarts, f"ensembles.{ensemble}")
    if params.evaluate.ship is not None:
        candidates = map(str, params.candidates(params.num_texts))
        _check_known(str(params.evaluate.ship), candidates, "evaluate.ship")
    _check_known(params.tune.headstart, params.headstarts, "tune.headstart")
    _check_known(params.ablate.headstart, params.headstarts, "ablate.headstart")
    if params.scaling.sizes:
        _check_known(params.scaling.headstart, params.headstarts, "scaling.headstart")
    distilled = params.distil_classifier
    if distilled.student is not None:
        _check_known(distilled.student, params.headstarts, "distil_classifier.student")
        if distilled.student not in params.run.headstarts:
            raise ValueError(
                f"distil_classifier.student is {distilled.student}, which run.headstarts does not train; "
                "name it there"
            )
        if not (distilled.soft or distilled.hard):
            raise ValueError("distil_classifier has no weight above 0: set soft or hard")
    for arm in params.sample_efficiency.arms:
        if arm.source is None:
            if arm.use is not Use.TFIDF:
                raise ValueError(
                    f"sample_efficiency.arms has {arm}, which `evaluate` alone makes; take it out"
                )
            continue
        if arm.source in params.ensembles and not (arm.use is Use.NETWORK or arm.use.is_frozen):
            frozen = " or ".join(f"/{use}" for use in Use if use.is_frozen)
            raise ValueError(
                f"sample_efficiency.arms has {arm}, but {arm.source} is an ensemble, which is an arm by "
                f"itself or with {frozen}"
            )
        _check_known(arm.source, [*params.headstarts, *params.ensembles, TFIDF], "sample_efficiency.arms")
    if not params.trained_arms(params.num_texts):
        if asked := params.arms(params.num_texts):
            raise ValueError(
                f"sample_efficiency.arms has {_listed(asked)} alone, which train nothing; name one more that "
                "is trained, such as tfidf"
            )
        named = _listed(params.sample_efficiency.arms)
        raise ValueError(
            f"sample_efficiency.arms is [{named}]; run.headstarts trains none of them: "
            + ("name one of them" if params.num_texts > PAIR else "name one of them, or tfidf")
        )


def _check_embedding(name: str, headstarts: Mapping[str, HeadStart]) -> None:
    """Raise ValueError for an `embedding_from` that cannot be; its family is checked by `resolve`."""
    other = headstarts[name].embedding_from
    if other is None:
        return
    key = f"headstarts.{name}.embedding_from"
    _check_known(other, headstarts, key)
    if other == name:
        raise ValueError(f"{key} is {name} itself; name another head start, or set it to null")
    if headstarts[name].weights is not None:
        raise ValueError(f"{key} is {other}, but headstarts.{name}.weights is set, too; set one to null")
    for setting in ("weights", "embedding_from"):
        if getattr(headstarts[other], setting) is not None:
            raise ValueError(
                f"{key} is {other}, which has {setting} of its own; name one whose {setting} is null, or set "
                "this key to null"
            )


def _check_teacher(name: str, params: Params) -> None:
    """Raise ValueError for a `teacher` that cannot be; its family is checked by `resolve`."""
    student = params.headstarts[name]
    if (other := student.teacher) is None:
        return
    key = f"headstarts.{name}.teacher"
    _check_known(other, params.headstarts, key)
    if other == name:
        raise ValueError(f"{key} is {name} itself; name another head start, or set it to null")
    for setting in ("weights", "embedding_from"):
        if getattr(student, setting) is not None:
            raise ValueError(
                f"{key} is {other}, but headstarts.{name}.{setting} is set, too, and a student begins as its "
                "teacher's layers; set one to null"
            )
    teacher = params.headstarts[other]
    if teacher.teacher is not None:
        raise ValueError(f"{key} is {other}, which has a teacher of its own; name one without a teacher")
    if teacher.tokenizer != student.tokenizer:
        raise ValueError(
            f"{key} is {other}, whose tokenizer is {teacher.tokenizer}, but that of {name} is "
            f"{student.tokenizer}; they have to read the same tokens: set one of the two"
        )
    trained = params.run.headstarts
    if name in trained and other not in trained[: trained.index(name)]:
        raise ValueError(
            f"{key} is {other}, which run.headstarts does not name before {name}; name it there, so that it "
            "is trained first"
        )


def _listed(arms: Iterable[Arm]) -> str:
    return ", ".join(map(str, arms))


def _check_known(name: str, known: Iterable[object], key: str) -> None:
    names = list(map(str, known))
    if name not in names:
        raise ValueError(f"{key} names {name!r}, which there is not; {nearest(name, names)}")
