"""Refusals of what the sweeps `tune` and `ablate` would train, and `distil_classifier`."""

from __future__ import annotations

from pipeline.project.checked_params import check_is_trained
from pipeline.project.headstarts import ResolvedHeadStart, language_model_settings, stage_space
from pipeline.project.params import Params
from pipeline.project.project import Project
from pipeline.project.relations import check_trained
from pipeline.project.student import student_training
from pipeline.settings.section import Values

_BESIDE = "finetune_classifier.beside"


def check_tune(project: Project) -> None:
    """Raise ValueError for a search that cannot be, or over nothing."""
    params, tune = project.params, project.params.tune
    searched = project.head_starts[tune.headstart]
    if tune.num_trials:
        check_is_trained(params, tune.headstart, "tune.headstart")
    if not stage_space(tune, searched) and tune.num_trials:
        raise ValueError(
            f"tune.space names no key that a trial of {tune.stage} reads, and the family "
            f"{searched.family.name} brings none: there is nothing to search; name one, with its range, or "
            "set tune.num_trials to 0"
        )
    over = tune.overrides.get("finetune_lm", {})
    _check_language_model(searched, searched.finetune_lm.dump(), over, "tune.overrides.finetune_lm.")
    if tune.num_trials and tune.stage == "finetune_lm" and searched.teacher is not None:
        raise ValueError(
            f"tune.stage is finetune_lm of {searched.name}, whose trials would learn from no teacher; set "
            "finetune_classifier, or name another head start"
        )
    overridden = tune.overrides.get("finetune_classifier", {}).get("beside")
    _check_beside(params, tune.headstart, overridden, f"tune.overrides.{_BESIDE}")
    if (choices := tune.space.get(_BESIDE)) is not None:
        for other in choices.choices or []:
            _check_beside(params, tune.headstart, other, f"tune.space, {_BESIDE}")


def check_ablate(project: Project) -> None:
    """Raise ValueError for ablations that cannot be trained."""
    params, ablate = project.params, project.params.ablate
    if ablate.seeds:
        check_is_trained(params, ablate.headstart, "ablate.headstart")
    ablated = project.head_starts[ablate.headstart]
    _check_language_model(ablated, ablated.pretrain_lm.dump(), ablate.pretrain_lm, "ablate.pretrain_lm.")
    _check_beside(params, ablate.headstart, ablate.classifier.get("beside"), "ablate.classifier.beside")


def _check_language_model(head_start: ResolvedHeadStart, below: Values, over: Values, prefix: str) -> None:
    """Raise ValueError for a key or value that the objective of a head start does not have."""
    language_model_settings(head_start.objective, below, {}, over, prefix)


def _check_beside(params: Params, name: str, other: object, key: str) -> None:
    """Raise ValueError, naming `key`, for features of another head start that a trial would miss."""
    if other is not None:
        check_trained(params, "too", name, str(other), f"params.yaml: {key}")


def check_distil_classifier(project: Project) -> None:
    """Raise ValueError for a classifier that `distil_classifier` cannot train."""
    params = project.params
    if params.distil_classifier.student is None:
        return
    student = project.head_starts[params.distil_classifier.student]
    if "max_labels" in params.distil_classifier.classifier:
        raise ValueError(
            "params.yaml: distil_classifier.classifier.max_labels has no effect, as a student reads all "
            f"text; take it out, or set headstarts.{student.name}.finetune_classifier.max_labels"
        )
    trained = student_training(params.distil_classifier, student.finetune_classifier)
    if trained.method == "contrastive":
        raise ValueError(
            f"params.yaml: finetune_classifier.method of {student.name} is contrastive, which learns from "
            "pairs of texts and not from a teacher; set distil_classifier.classifier to {method: plain}"
        )
    if trained.beside is not None:
        raise ValueError(
            f"params.yaml: finetune_classifier.beside of {student.name} is {trained.beside}, but a student "
            "learns from text without labels too, of which no features are kept; set "
            "distil_classifier.classifier to {beside: null}"
        )
