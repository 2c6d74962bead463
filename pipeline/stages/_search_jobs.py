"""The training jobs of a search: settings of the searched stage of a head start, with a trial's values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pipeline.artifacts.links import tokens_at
from pipeline.artifacts.model_folder import ModelFolder
from pipeline.corpus.tokens import open_shard
from pipeline.distributed.search import Values
from pipeline.distributed.settings import Range
from pipeline.project.headstarts import ResolvedHeadStart, stage_space
from pipeline.project.project import Project
from pipeline.settings.loader import flatten, overlay
from pipeline.training.classifier import FewLabels, make_classifier_job, num_labels_of
from pipeline.training.jobs import Job
from pipeline.training.language_model import make_language_model_job


def space_of(project: Project) -> dict[str, Range]:
    """The ranges that the trials of this stage read, by key of the head start."""
    tune = project.params.tune
    return stage_space(tune, project.head_starts[tune.headstart])


class Jobs:
    """Makes the training job of a trial from its values. Picklable: trials run in other processes."""

    def __init__(
        self, project: Project, tokens: Path, general_lm: Path, target_lm: Path, features: Path
    ) -> None:
        self._project, self._params, self._name = project, project.params, project.params.tune.headstart
        self._tokens = tokens_at(tokens / self._name / "target.json").resolve()
        self._general_lm = (general_lm / self._name).resolve()
        self._target_lm = (target_lm / self._name).resolve()
        self._features = features.resolve()

    def check(self) -> None:
        """Raises ValueError if there is nothing to search, or if a range ends at an impossible value."""
        space = space_of(self._project)
        if not space:
            raise ValueError(
                f"tune.space names no key that a trial of {self._params.tune.stage} reads: "
                "there is nothing to search; name one, with its range"
            )
        for key, each in space.items():
            for value in _ends(each):
                self.make({key: value})

    def settings(self) -> Mapping[str, object]:
        """The settings that all trials share."""
        head_start = self._with({})
        few, searched = self._few_labels(), space_of(self._project)
        found = head_start.of_stage(self.section)
        fixed = {"config": found["model"]["config"], self._params.tune.stage: found[self.section]}
        return {
            "seed": self._params.run.seed,
            "family": head_start.family.name,
            "few_labels": few and asdict(few),
            **{key: value for key, value in flatten(fixed) if key not in searched},
        }

    @property
    def section(self) -> str:
        """The settings of a head start that a trial trains with, and that its best values go into."""
        tune = self._params.tune
        if tune.labels is None:
            return tune.stage
        head_start = self._project.head_starts[self._name]
        return "scratch" if head_start.finetune_classifier.start == "scratch" else "few_labels"

    def make(self, values: Values) -> Job:
        """The job of a trial. Raises ValueError that names the offending key."""
        params, head_start = self._params, self._with(values)
        if params.tune.stage == "finetune_lm":
            return make_language_model_job(
                head_start.finetune_lm,
                head_start.model,
                stage="finetune_lm",
                tokens=self._tokens,
                start=ModelFolder.at(self._general_lm),
                seed=params.run.seed,
            )
        starts = {"target_lm": self._target_lm, "general_lm": self._general_lm}
        classifier = getattr(head_start, self.section)
        return make_classifier_job(
            classifier,
            head_start.model,
            params.corpus.target.normalise,
            tokens=self._tokens,
            start=ModelFolder.at(starts[classifier.start]) if classifier.start in starts else None,
            seed=params.run.seed,
            few_labels=self._few_labels(),
            features=self._features,
        )

    @property
    def beside(self) -> list[str]:
        """The other head starts whose features a trial may read."""
        if self._params.tune.stage == "finetune_lm":
            return []
        settings = getattr(self._with({}), self.section)
        searched = space_of(self._project).get("finetune_classifier.beside")
        found = [settings.beside, *(searched.choices or () if searched else ())]
        return sorted({str(other) for other in found if other is not None})

    def _few_labels(self) -> FewLabels | None:
        tune = self._params.tune
        num_labels = self.num_labels
        return None if num_labels is None else FewLabels(num_labels, tune.evaluations, key="tune.labels")

    @property
    def num_labels(self) -> int | None:
        """The labels that a trial of a search for the label curve trains on."""
        wanted = self._params.tune.labels
        return None if wanted is None else num_labels_of(wanted, open_shard(self._tokens, "train"))

    def _with(self, values: Values) -> ResolvedHeadStart:
        """The head start with the settings of a trial."""
        tune = self._params.tune
        tree = nested(values)
        if tune.labels is None:
            tree = overlay({tune.stage: tune.overrides.get(tune.stage, {})}, tree)
        elif tune.stage in tree:
            tree[self.section] = tree.pop(tune.stage)
        return self._project.varied(self._name, tree, where="tune").head_starts[self._name]


def nested(values: Values) -> dict[str, Any]:
    """{"a.b": 1} -> {"a": {"b": 1}}"""
    tree: dict[str, Any] = {}
    for key, value in values.items():
        *parents, last = key.split(".")
        branch = tree
        for parent in parents:
            branch = branch.setdefault(parent, {})
        branch[last] = value
    return tree


def _ends(each: Range) -> list[Any]:
    return each.choices if each.choices is not None else [each.low, each.high]
