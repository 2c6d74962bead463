"""Refusals of settings before anything is trained, so that nothing is refused after hours.

A rule stands at what it is about; these call them all.

    pipeline/project/checked_params.py  names, and what is laid over other settings: checked as they are read
    pipeline/project/networks.py        the network of a head start
    pipeline/project/relations.py       what a head start needs of another one
    pipeline/project/sizes.py           `scaling`
    corpora.py                          corpora, and what a head start learns from
    sweeps.py                           `tune`, `ablate` and `distil_classifier`
    arms.py                             arms of the label curve
    classes.py                          what only the target's classes can refuse, after `prepare`
"""

from __future__ import annotations

from pipeline.project.checks.arms import check_arms
from pipeline.project.checks.classes import check_numbers_of_labels, check_words_of_classes
from pipeline.project.checks.corpora import check_corpora, check_corpus_of
from pipeline.project.checks.sweeps import check_ablate, check_distil_classifier, check_tune
from pipeline.project.networks import check_layers, check_trainings
from pipeline.project.project import Project
from pipeline.project.relations import RELATIONS
from pipeline.project.sizes import check_scaling

__all__ = ["check", "check_numbers_of_labels", "check_words_of_classes"]


def check(project: Project) -> None:
    """Check all that is known before anything is trained. Raises ValueError naming each offending key."""
    params = project.params
    check_corpora(params)
    for head_start in project.head_starts.values():
        check_layers(head_start)
    for head_start in project.trained:
        check_trainings(head_start, params.num_texts)
        for relation in RELATIONS:
            relation.check(params, head_start)
        check_corpus_of(params, head_start)
    check_tune(project)
    check_arms(project)
    check_ablate(project)
    check_scaling(project)
    check_distil_classifier(project)
