"""Settings as they are read: a key that is unknown, missing or mistyped is refused with its dotted name.

So is a name that names nothing, and what is laid over other settings and does not fit them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from pipeline.project.arms import PAIR, candidates, curve_arms, trained_arms
from pipeline.project.params import Params
from pipeline.settings.arm import RESERVED_NAMES, TFIDF, Arm, Use
from pipeline.settings.loader import overlay, typed
from pipeline.settings.messages import nearest
from pipeline.settings.section import Values
from pipeline.training.settings import ClassifierTraining

_NAME = re.compile(r"[a-z][a-z0-9_]*")


def checked(values: Values, *, where: str) -> Params:
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
    for name in params.run.headstarts:
        _check_known(name, params.headstarts, "run.headstarts")
    for ensemble, members in params.ensembles.items():
        for name in members:
            _check_known(name, params.headstarts, f"ensembles.{ensemble}")
    if params.evaluate.ship is not None:
        _check_known(str(params.evaluate.ship), candidates(params, params.num_texts), "evaluate.ship")
    _check_known(params.tune.headstart, params.headstarts, "tune.headstart")
    _check_known(params.ablate.headstart, params.headstarts, "ablate.headstart")
    if params.scaling.sizes:
        _check_known(params.scaling.headstart, params.headstarts, "scaling.headstart")
    distilled = params.distil_classifier
    if distilled.student is not None:
        _check_known(distilled.student, params.headstarts, "distil_classifier.student")
        check_is_trained(params, distilled.student, "distil_classifier.student")
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
    if not trained_arms(params, params.num_texts):
        if asked := curve_arms(params, params.num_texts):
            raise ValueError(
                f"sample_efficiency.arms has {_listed(asked)} alone, which train nothing; name one more that "
                "is trained, such as tfidf"
            )
        named = _listed(params.sample_efficiency.arms)
        raise ValueError(
            f"sample_efficiency.arms is [{named}]; run.headstarts trains none of them: "
            + ("name one of them" if params.num_texts > PAIR else "name one of them, or tfidf")
        )


def _listed(arms: Iterable[Arm]) -> str:
    return ", ".join(map(str, arms))


def _check_known(name: str, known: Iterable[object], key: str) -> None:
    names = list(map(str, known))
    if name not in names:
        raise ValueError(f"{key} names {name!r}, which there is not; {nearest(name, names)}")


def check_is_trained(params: Params, name: str, key: str) -> None:
    """Raise ValueError, naming `key`, for a head start that `run.headstarts` does not train."""
    if name not in params.run.headstarts:
        raise ValueError(f"{key} is {name}, which run.headstarts does not train; name it there")
