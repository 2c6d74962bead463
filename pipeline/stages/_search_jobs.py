"""The training jobs of a search: settings from the sections of the searched stage and a trial's values."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from pipeline.artifacts.model_folder import ModelFolder
from pipeline.distributed.search import Values
from pipeline.distributed.settings import Range
from pipeline.project.params import Params
from pipeline.settings.loader import flatten, overlay, typed
from pipeline.stages._points import few_labels
from pipeline.training.classifier import FewLabels, make_classifier_job
from pipeline.training.jobs import Job
from pipeline.training.language_model import make_language_model_job


def space_of(params: Params) -> dict[str, Range]:
    """The ranges in `tune.space` that the trials of this stage read."""
    sections = ("model", params.tune.stage)
    return {key: each for key, each in params.tune.space.items() if key.split(".")[0] in sections}


class Jobs:
    """Makes the training job of a trial from its values. Picklable: trials run in other processes."""

    def __init__(self, params: Params, tokens: Path, general_lm: Path, target_lm: Path) -> None:
        self._params, self._tokens = params, tokens.resolve()
        self._general_lm, self._target_lm = general_lm.resolve(), target_lm.resolve()

    def check(self) -> None:
        """Raises ValueError if there is nothing to search, or if a range ends at an impossible value."""
        space = space_of(self._params)
        if not space:
            raise ValueError(
                f"tune.space names no key that a trial of {self._params.tune.stage} reads: "
                "there is nothing to search; name one, with its range"
            )
        for key, each in space.items():
            for value in _ends(each):
                self.make({key: value})

    def settings(self) -> dict[str, Any]:
        """The settings that all trials share."""
        params = self._with({})
        sections = ("model", self._params.tune.stage)
        few = self._few_labels()
        searched = space_of(params)
        fixed = flatten({name: getattr(params, name).model_dump() for name in sections})
        return {
            "seed": params.run.seed,
            "direction": params.run.directions[0],
            "few_labels": few and asdict(few),
            **{key: value for key, value in fixed if key not in searched},
        }

    def make(self, values: Values) -> Job:
        """The job of a trial. Raises ValueError that names the offending key."""
        params = self._with(values)
        direction = params.run.directions[0]
        if params.tune.stage == "finetune_lm":
            return make_language_model_job(
                params.finetune_lm,
                params.model,
                stage="finetune_lm",
                tokens=self._tokens,
                start=ModelFolder.at(self._general_lm / direction),
                direction=direction,
                seed=params.run.seed,
            )
        starts = {"target_lm": self._target_lm, "general_lm": self._general_lm}
        start = params.finetune_classifier.start
        return make_classifier_job(
            params.finetune_classifier,
            params.model,
            params.corpus.target.normalise,
            tokens=self._tokens,
            start=ModelFolder.at(starts[start] / direction) if start in starts else None,
            direction=direction,
            seed=params.run.seed,
            few_labels=self._few_labels(),
        )

    def _few_labels(self) -> FewLabels | None:
        labels = self._params.tune.labels
        return (
            None
            if labels is None
            else few_labels(self._params.sample_efficiency, labels, full_validation=True, key="tune.labels")
        )

    def _with(self, values: Values) -> Params:
        settings, tune, curve = self._params.model_dump(), self._params.tune, self._params.sample_efficiency
        laid_over = [tune.overrides.get(tune.stage, {})]
        if tune.labels is not None:
            from_scratch = self._params.finetune_classifier.start == "scratch"
            laid_over = [curve.classifier, *([curve.scratch] if from_scratch else [])]
        for top in laid_over:
            settings = overlay(settings, {tune.stage: top})
        return typed(Params, overlay(settings, nested(values)), where="tune")


def nested(values: Values) -> dict[str, Any]:
    """{"a.b": 1} -> {"a": {"b": 1}}"""
    tree: dict[str, Any] = {}
    for key, value in values.items():
        *parents, last = key.split(".")
        place = tree
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = value
    return tree


def _ends(each: Range) -> list[Any]:
    return each.choices if each.choices is not None else [each.low, each.high]
