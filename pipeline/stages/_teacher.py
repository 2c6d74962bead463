"""The teacher of a head start: its models beside the student's own, and what of them a student begins as.

Only head starts with a `teacher` load it, and only theirs have it in their fingerprint.

A student reads the folder of its teacher beside its own. DVC does not know of it: in a stage that runs for
each head start, it cannot look up another one to depend on. What takes its place: `run.headstarts` names the
teacher first, and DVC runs a stage's items in that order; the recipe of the student's stage holds that of the
teacher's; and the key of a run has the content of the teacher's folder.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from models.distillation import Distillation, begin_from_teacher
from pipeline.artifacts.model_folder import ModelFolder
from pipeline.project.headstarts import ResolvedHeadStart
from pipeline.training.cards import ModelCard, build_encoder, build_language_model
from pipeline.training.language_model import Lesson


@dataclass(frozen=True)
class LayersOfTeacher:
    """A starting model of a student: every n-th layer of its teacher, and what has the same shape."""

    path: Path  # of the teacher's model
    model_card: ModelCard
    seed: int

    def card(self) -> ModelCard:
        return self.model_card

    def tensors(self) -> dict[str, Tensor]:
        return self._begun()[0]

    @property
    def share(self) -> float:
        """The part of the student's numbers that are the teacher's."""
        return self._begun()[1]

    def _begun(self) -> tuple[dict[str, Tensor], float]:
        torch.manual_seed(self.seed)
        model = build_language_model(build_encoder(self.model_card)[0], self.model_card)
        return begin_from_teacher(model.state_dict(), ModelFolder.at(self.path).tensors())


def lesson_of(student: ResolvedHeadStart, out: Path) -> Lesson | None:
    """The lesson for the model in `out`: the teacher's model is in the folder beside it."""
    folder = student.folder_of_teacher(out)
    if folder is None or student.distillation is None:
        return None
    values = student.distillation.model_dump()
    return Lesson(ModelFolder.at(folder), Distillation(**values))
