"""A family with an objective of its own: one file that describes both, and nothing else is changed."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from models import family as families
from models.family import Family
from pipeline.artifacts.model_folder import ModelFolder, load_model
from pipeline.objectives.lookup import objective_of
from pipeline.project.checked_params import checked
from pipeline.project.checks import check
from pipeline.project.params import Params
from pipeline.project.project import Project
from pipeline.settings.loader import overlay, read_yaml
from pipeline.training.classifier import make_classifier_job
from pipeline.training.context import Context
from pipeline.training.jobs import Job
from pipeline.training.language_model import LanguageModelJob, make_language_model_job
from pipeline.training.loop import train
from pipeline.training.settings import ClassifierTraining, LanguageModelSettings, Model, Training
from tests.bag import FAMILY as BAG
from tests.bag import BagSettings, WordsOfADocument
from tests.training.test_loop import (
    CLASSIFIER,
    LANGUAGE_MODEL,
    NORMALISE,
    OPTIMIZER,
    TRAINING,
    Curve,
    StopTrainingError,
    assert_identical,
    evaluations,
    export_trained,
    run,
    tokens,
)

__all__ = ["tokens"]  # a fixture
PARAMS = Path(__file__).resolve().parents[2] / "params.yaml"


@pytest.fixture(autouse=True)
def bag(monkeypatch) -> None:
    """As if it were in `models/bag.py`."""
    use(monkeypatch, BAG)


def use(monkeypatch: pytest.MonkeyPatch, family: Family) -> None:
    module: Any = ModuleType("models.bag")
    module.FAMILY = family
    known = sorted({*families._known_families(), "bag"})
    monkeypatch.setitem(sys.modules, "models.bag", module)
    monkeypatch.setattr(families, "_known_families", lambda: known)


def bag_job(tokens: Path, start: Path | None = None, **changes: Any) -> LanguageModelJob:
    common = {**TRAINING, **LANGUAGE_MODEL, "optimizer": OPTIMIZER}
    return make_language_model_job(
        LanguageModelSettings(Training(**common), BagSettings(**({"documents": 4} | changes))),
        Model(family="bag", config={"width": 6}),
        stage="finetune_lm" if start else "pretrain_lm",
        tokens=tokens,
        start=ModelFolder.at(start) if start else None,
        seed=7,
    )


def bag_classifier_job(tokens: Path, start: Path) -> Job:
    values = {**TRAINING, **CLASSIFIER, "optimizer": OPTIMIZER, "pooling": "mean"}
    return make_classifier_job(
        ClassifierTraining(**values),
        Model(family="bag", config={"width": 6}),
        NORMALISE,
        tokens=tokens,
        start=ModelFolder.at(start),
        seed=7,
    )


def params_with(**section: Any) -> Params:
    """params.yaml with a head start `mine` of this family."""
    values = read_yaml(PARAMS)
    top = {"family": "bag", "config": {"width": 6}, **section}  # the settings of another family are left out
    mine = overlay(values["headstarts"]["ulmfit"], {"family": "bag", "embedding_from": None})
    return checked(overlay(values, {"headstarts": {"mine": mine | top}}), where="params.yaml")


def test_it_trains_from_stage_to_stage(tokens, tmp_path):
    curve = Curve()
    context = Context(open_recorder=curve.open)
    metrics = train(bag_job(tokens).task(context), context)
    evaluated = evaluations(curve.records)
    assert {frozenset(each) for each in evaluated.values()} == {frozenset({"validation/surprise"})}
    assert metrics["validation/surprise"] < evaluated[0]["validation/surprise"]
    export_trained(bag_job(tokens), tmp_path / "general")
    general, card = load_model(tmp_path / "general")[:2]
    assert (card.family, card.kind, card.direction) == ("bag", "language_model", "forward")
    second = bag_job(tokens, tmp_path / "general")
    for name, weight in second.task(Context()).model.state_dict().items():
        assert torch.equal(weight, general[name]), name
    export_trained(second, tmp_path / "target")
    export_trained(bag_classifier_job(tokens, tmp_path / "target"), tmp_path / "classifier")


@pytest.mark.parametrize("kind", ["language model", "classifier"])
def test_a_run_stopped_at_every_step_ends_bit_for_bit_like_an_undisturbed_one(tokens, tmp_path, kind):
    job: Job = bag_job(tokens)
    if kind == "classifier":
        export_trained(job, tmp_path / "target")
        job = bag_classifier_job(tokens, tmp_path / "target")
    whole_curve, curve = Curve(), Curve()
    whole = run(job, tmp_path / "whole", whole_curve)
    assert whole.step >= 10
    for curve.stop_at in range(2, whole.step + 1):
        with pytest.raises(StopTrainingError):
            run(job, tmp_path / "stopped", curve)
    curve.stop_at = None
    assert_identical(run(job, tmp_path / "stopped", curve), whole)
    assert curve.records == whole_curve.records


def test_losses_of_several_workers_add_up_to_that_of_one(tokens):
    def losses(world: int) -> list[tuple[float, list[Tensor]]]:
        found = []
        for rank in range(world):
            context = Context(rank=rank, world=world)
            task = bag_job(tokens, documents=3).task(context)
            loss = task.objective.loss(2, (), context)
            loss.objective.backward()
            found.append((float(loss.nats), [p.grad for p in task.model.parameters() if p.grad is not None]))
        return found

    ((nats, grads),) = losses(1)
    for world in (2, 4):
        parts = losses(world)
        assert sum(each for each, _ in parts) == pytest.approx(nats, rel=1e-5)
        for number, grad in enumerate(grads):
            torch.testing.assert_close(sum(each[number] for _, each in parts), grad)


def test_its_settings_are_read_from_params_yaml_with_its_own_defaults():
    mine = Project(params_with(finetune_lm={"documents": 9, "epochs": 1.5})).head_starts["mine"]
    assert mine.objective is WordsOfADocument
    assert mine.model.config == {"width": 6, "embedding_dropout": 0.1}
    assert (mine.pretrain_lm.own, mine.pretrain_lm.training.epochs) == (BagSettings(5), 3.0)
    assert (mine.finetune_lm.own, mine.finetune_lm.training.epochs) == (BagSettings(9), 1.5)
    assert mine.finetune_classifier.pooling == "mean"
    assert mine.of_stage("pretrain_lm")["pretrain_lm"].keys() == {*Training.model_fields, "documents"}
    assert mine.searchable()["finetune_lm.documents"] == 9


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"finetune_lm": {"bptt": 70}}, r"unknown key `headstarts\.mine\.finetune_lm\.bptt`"),
        ({"finetune_lm": {"documents": "4"}}, r"`headstarts\.mine\.finetune_lm\.documents`"),
        ({"config": {"width": 0}}, r"headstarts\.mine\.config\.width is 0; it must be at least 1"),
        ({"config": {"width": 6, "depth": 2}}, r"unknown key `headstarts\.mine\.config\.depth`"),
        ({"family": "bags"}, r"headstarts\.mine\.family is 'bags', .* did you mean `bag`\?"),
    ],
)
def test_other_settings_are_refused_by_their_key(section, message):
    with pytest.raises(ValueError, match=message):
        Project(params_with(**section)).head_starts["mine"]


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"ablate": {"headstart": "mine", "pretrain_lm": {"bptt": 9}}}, r"`ablate\.pretrain_lm\.bptt`"),
        ({"ablate": {"pretrain_lm": {"epochs": float("nan")}}}, r"`ablate\.pretrain_lm\.epochs`"),
        (
            {"tune": {"headstart": "mine", "overrides": {"finetune_lm": {"documents": 0.5}}}},
            r"`tune\.overrides\.finetune_lm\.documents`",
        ),
        (
            {"tune": {"overrides": {"finetune_classifier": {"epochs": 0}}}},
            r"`tune\.overrides\.finetune_classifier\.epochs`",
        ),
    ],
)
def test_what_the_search_and_the_ledger_lay_over_is_refused_before_anything_is_trained(section, message):
    with pytest.raises(ValueError, match=message):
        check(Project(checked(overlay(params_with().model_dump(), section), where="params.yaml")))


def test_settings_that_do_not_fit_the_text_are_refused_before_a_worker_starts(tokens):
    with pytest.raises(ValueError, match=r"pretrain_lm\.documents is 25; there are not so many"):
        bag_job(tokens, documents=25)


@pytest.mark.parametrize("objective", ["bags", "lookup", "", None, int])
def test_an_unknown_objective_is_refused_with_those_that_there_are(monkeypatch, tokens, objective):
    use(monkeypatch, replace(BAG, objective=objective))
    message = r"the family bag trains by .* no objective; known: .*causal, .*or a class"
    with pytest.raises(ValueError, match=message):
        bag_job(tokens)
    with pytest.raises(ValueError, match=message):
        Project(params_with()).head_starts["mine"]


def test_the_families_that_come_with_the_project_name_theirs():
    for name in families._known_families():
        if name != "bag":
            family = families.lookup(name)
            assert objective_of(family).__module__ == f"pipeline.objectives.{family.objective}"


def test_the_doctor_estimates_its_memory_by_the_contract(tokens):
    from pipeline.doctor.needs import need_of

    job = bag_job(tokens)
    whole, in_parts = (need_of(job.settings, job.card, 1, micro_rows=rows) for rows in (None, 1))
    assert whole.num_parameters == sum(each.numel() for each in job.task(Context()).model.parameters())
    assert whole.worker_bytes > in_parts.worker_bytes > 4 * whole.num_parameters
