"""Refusals of arms of the label curve."""

from __future__ import annotations

from pipeline.project.arms import curve_arms, head_starts_of
from pipeline.project.headstarts import ResolvedHeadStart
from pipeline.project.project import Project
from pipeline.settings.arm import Arm, Use
from pipeline.training.classifier_rules import check_needs_no_validation

_FINE_TUNED = (Use.NETWORK, Use.GENERAL_LM, Use.TARGET_LM_ALONE, Use.SCRATCH)


def check_arms(project: Project) -> None:
    """Raise ValueError for an arm that cannot be trained or asked."""
    params, num_texts = project.params, project.params.num_texts
    for arm in curve_arms(params, num_texts):
        if arm.use is Use.IN_CONTEXT:
            assert arm.source is not None
            _check_in_context(arm, project.head_starts[arm.source], num_texts)
        elif arm.use in _FINE_TUNED:
            section = "scratch" if arm.use is Use.SCRATCH else "few_labels"
            for name in head_starts_of(arm, params):
                settings = getattr(project.head_starts[name], section)
                check_needs_no_validation(settings, f"params.yaml: headstarts.{name}.{section}")


def _check_in_context(arm: Arm, head_start: ResolvedHeadStart, num_texts: int) -> None:
    """Raise ValueError for an arm that asks a language model which cannot continue a text."""
    family, key = head_start.family, f"params.yaml: sample_efficiency.arms has {arm}, but"
    if family.objective != "causal":
        raise ValueError(
            f"{key} {family.name} is not trained to predict the next token; name a head start that is, such "
            "as ulmfit or gpt"
        )
    if head_start.model.config.get("direction") == "backward":
        raise ValueError(f"{key} {head_start.name} reads a text from its end; name one that reads forward")
    if num_texts > 1:
        raise ValueError(
            f"{key} the documents of corpus.target have several texts, and zero_shot.template has a place "
            "for one; take the arm out"
        )
