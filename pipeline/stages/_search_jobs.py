"""The training jobs of a search: settings of the searched stage of a head start, with a trial's values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pipeline.artifacts.model_folder import ModelFolder
from pipeline.corpus.settings import Normalise
from pipeline.corpus.tokens import open_shard
from pipeline.distributed.search import Values
from pipeline.distributed.settings import Range, Tune
from pipeline.project.headstarts import ResolvedHeadStart
from pipeline.settings.loader import flatten, overlay
from pipeline.training.classifier import FewLabels, make_classifier_job, num_labels_of
from pipeline.training.jobs import Job
from pipeline.training.language_model import make_language_model_job


@dataclass(frozen=True)
class Jobs:
    """Makes the training job of a trial from its values. Picklable: trials run in other processes."""

    tune: Tune  # its space is what the trials read
    head_start: ResolvedHeadStart
    vary: Callable[[Mapping[str, Any]], ResolvedHeadStart]  # the head start, with settings laid over it
    normalise: Normalise  # of the target's text
    seed: int
    tokens: Path  # of the head start, as the others
    general_lm: Path
    target_lm: Path
    features: Path  # folder, by head start

    def check(self) -> None:
        """Raises ValueError if there is nothing to search, or if a range ends at an impossible value."""
        if not self.tune.ranges:
            raise ValueError(
                f"tune.space names no key that a trial of {self.tune.stage} reads: "
                "there is nothing to search; name one, with its range"
            )
        for key, each in self.tune.ranges.items():
            for value in _ends(each):
                self.make({key: value})

    def settings(self) -> Mapping[str, object]:
        """The settings that all trials share."""
        head_start = self._with({})
        few, found = self._few_labels(), head_start.of_stage(self.section)
        fixed = {"config": found["model"]["config"], self.tune.stage: found[self.section]}
        return {
            "seed": self.seed,
            "family": head_start.family.name,
            "few_labels": few and asdict(few),
            **{key: value for key, value in flatten(fixed) if key not in self.tune.ranges},
        }

    @property
    def section(self) -> str:
        """The settings of a head start that a trial trains with, and that its best values go into."""
        if self.tune.labels is None:
            return self.tune.stage
        return "scratch" if self.head_start.finetune_classifier.start == "scratch" else "few_labels"

    def make(self, values: Values) -> Job:
        """The job of a trial. Raises ValueError that names the offending key."""
        head_start = self._with(values)
        if self.tune.stage == "finetune_lm":
            return make_language_model_job(
                head_start.finetune_lm,
                head_start.model,
                stage="finetune_lm",
                tokens=self.tokens,
                start=ModelFolder.at(self.general_lm),
                seed=self.seed,
            )
        starts = {"target_lm": self.target_lm, "general_lm": self.general_lm}
        classifier = getattr(head_start, self.section)
        return make_classifier_job(
            classifier,
            head_start.model,
            self.normalise,
            tokens=self.tokens,
            start=ModelFolder.at(starts[classifier.start]) if classifier.start in starts else None,
            seed=self.seed,
            few_labels=self._few_labels(),
            features=self.features,
        )

    @property
    def beside(self) -> list[str]:
        """The other head starts whose features a trial may read."""
        if self.tune.stage == "finetune_lm":
            return []
        settings = getattr(self._with({}), self.section)
        searched = self.tune.ranges.get("finetune_classifier.beside")
        found = [settings.beside, *(searched.choices or () if searched else ())]
        return sorted({str(other) for other in found if other is not None})

    def _few_labels(self) -> FewLabels | None:
        num_labels = self.num_labels
        return None if num_labels is None else FewLabels(num_labels, self.tune.evaluations, key="tune.labels")

    @property
    def num_labels(self) -> int | None:
        """The labels that a trial of a search for the label curve trains on."""
        wanted = self.tune.labels
        return None if wanted is None else num_labels_of(wanted, open_shard(self.tokens, "train"))

    def _with(self, values: Values) -> ResolvedHeadStart:
        """The head start with the settings of a trial."""
        tune, tree = self.tune, nested(values)
        if tune.labels is None:
            tree = overlay({tune.stage: tune.overrides.get(tune.stage, {})}, tree)
        elif tune.stage in tree:
            tree[self.section] = tree.pop(tune.stage)
        return self.vary(tree)


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
