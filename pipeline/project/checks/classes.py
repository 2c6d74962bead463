"""Refusals that need the classes of the target's documents, which `prepare` knows."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.project.arms import curve_arms
from pipeline.project.params import Params
from pipeline.project.project import Project
from pipeline.settings.arm import Use


def check_words_of_classes(params: Params, class_names: Sequence[str]) -> None:
    """Raise ValueError for `zero_shot.labels` of a class that there is not, if any arm reads them."""
    from pipeline.evaluation.in_context import check_labels

    if any(arm.use is Use.IN_CONTEXT for arm in curve_arms(params, params.num_texts)):
        check_labels(params.zero_shot.labels, class_names)


def check_numbers_of_labels(project: Project, num_classes: int) -> None:
    """Raise ValueError for a number of labels below one per class, which a later stage would refuse."""
    for key, number in _numbers_of_labels(project).items():
        if isinstance(number, int) and number < num_classes:
            raise ValueError(f"{key} is {number:,}, fewer than the {num_classes} classes; raise it")


def _numbers_of_labels(project: Project) -> dict[str, int | str | None]:
    """The numbers of labels to train on, by key; those of stages that are switched off are none."""
    params, tune = project.params, project.params.tune
    numbers: dict[str, int | str | None] = {
        "tune.labels": tune.labels if tune.num_trials else None,
        "ablate.labels": params.ablate.labels if params.ablate.seeds else None,
    }
    if tune.num_trials and tune.stage == "finetune_classifier" and tune.labels is None:
        searched = tune.overrides.get("finetune_classifier", {})
        numbers["tune.overrides.finetune_classifier.max_labels"] = searched.get("max_labels")
    for head_start in project.trained:
        own = "max_labels" in params.headstarts[head_start.name].finetune_classifier
        key = f"{f'headstarts.{head_start.name}.' if own else ''}finetune_classifier.max_labels"
        numbers[key] = head_start.finetune_classifier.max_labels
    return numbers
