"""`headstarts.NAME.embedding_from`: a language model begins with word vectors trained on its own tokens."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pipeline.artifacts.model_folder import load_model
from pipeline.corpus.tokens import ShardWriter, SplitInfo, TokensInfo, write_info
from pipeline.distributed.launch import fit
from pipeline.distributed.session import Session
from pipeline.doctor.needs import needs_of
from pipeline.execution.recipes import stage_fingerprint
from pipeline.figures.cost import Spent
from pipeline.figures.trainings import LanguageModelFigures
from pipeline.project.checked_params import checked
from pipeline.project.params import Params
from pipeline.project.project import Project
from pipeline.settings.loader import overlay, read_yaml
from pipeline.stages import _trained_embedding, pretrain_lm
from pipeline.stages._trained_embedding import filled
from pipeline.training.cards import build_encoder, build_language_model
from pipeline.training.checkpoint import model_tensors
from pipeline.training.context import no_recorder
from pipeline.training.language_model import make_language_model_job
from tests.test_launch import Seen

ROOT = Path(__file__).resolve().parent.parent
EMBEDDING = "encoder.embedding.weight"
TINY: dict[str, Any] = {
    "run": {"workers": 0, "precision": "fp32", "checkpoint_minutes": 1e-12, "log_steps": 1},
    "headstarts": {
        "ulmfit": {
            "embedding_from": "vectors",
            "config": {"embedding_dim": 6, "hidden_dim": 8},
            "pretrain_lm": {"epochs": 1.0, "batch_rows": 5, "bptt": 6},
        },
        "ulmfit_backward": {"embedding_from": None},
        "vectors": {"pretrain_lm": {"epochs": 1.0, "batch_rows": 5, "row_tokens": 8, "subsample": 0.5}},
    },
}


def params_with(top: dict[str, Any]) -> Params:
    return Project.of(
        overlay(overlay(read_yaml(ROOT / "params.yaml"), TINY), top), where="params.yaml"
    ).params


@pytest.fixture(scope="module")
def tokens(tmp_path_factory) -> Path:
    return write_tokens(tmp_path_factory.mktemp("tokens"))


def write_tokens(folder: Path) -> Path:
    """Shards with a vocabulary of 50, of which the ids 5 to 47 occur, between document start and end."""
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(0)
    splits: dict[str, SplitInfo] = {}
    for split, num_documents in (("train", 20), ("validation", 6)):
        with ShardWriter(folder, split, 50) as shard:
            for _ in range(num_documents):
                words = (rng.integers(43) + np.arange(int(rng.integers(5, 20)))) % 43 + 5
                shard.append([np.array([1, *words, 2])], [None])
            splits[split] = shard.info(2 * num_documents, 10 * num_documents)
    specials = {"unk_id": 3, "bos_id": 1, "eos_id": 2, "pad_id": 0}
    write_info(folder, TokensInfo(50, "abc", **specials, label_names=None, splits=splits))
    return folder


def pretrain(folder: Path, tokens: Path, params: Params, **session: Any) -> tuple[LanguageModelFigures, Any]:
    """Run the stage; returns its figures and the exported weights."""
    known: dict[str, Any] = {"open_recorder": no_recorder, "curve": folder / "run" / "curve.jsonl"} | session
    found = pretrain_lm.run(
        Project(params),
        tokens=tokens,
        headstart="ulmfit",
        out=folder / "out",
        session=Session("key", str(folder / "run"), **known),
    )
    return found, load_model(folder / "out")[0]


def drawn(tokens: Path, params: Params) -> dict[str, Tensor]:
    """The weights that the language model starts from without vectors."""
    job = pretrain_lm.job(Project(params).head_starts["ulmfit"], params.run.seed, tokens=tokens, out=tokens)
    torch.manual_seed(params.run.seed)
    return build_language_model(build_encoder(job.card)[0], job.card).state_dict()


def test_rows_of_tokens_that_occur_are_vectors_without_their_mean_at_eight_times_the_spread_of_the_draws():
    draws = torch.tensor([[0.1, -0.1], [0.3, 0.1], [-0.2, 0.2], [0.0, -0.4]])
    vectors = torch.tensor([[9.0, 9.0], [1.0, 5.0], [9.0, 9.0], [3.0, 1.0]])
    found = filled(draws, vectors, torch.tensor([False, True, False, True]))
    assert torch.equal(found[[0, 2]], draws[[0, 2]])
    centred = torch.tensor([[-1.0, 2.0], [1.0, -2.0]])
    torch.testing.assert_close(found[[1, 3]], centred * (8 * draws.std() / centred.std()))


@pytest.mark.parametrize("tie_weights", [True, False])
def test_a_language_model_begins_with_vectors_of_its_own_tokens(tmp_path, tokens, tie_weights):
    """Trained for no step at all, it is what it began with."""
    config = {"tie_weights": tie_weights}
    params = params_with({"headstarts": {"ulmfit": {"config": config, "pretrain_lm": {"epochs": 0.0}}}})
    found, tensors = pretrain(tmp_path, tokens, params)
    recipe = Project(params_with({})).head_starts["vectors"]
    model = recipe.model.model_copy(update={"config": recipe.model.config | {"embedding_dim": 6}})
    job = make_language_model_job(
        recipe.pretrain_lm, model, stage="pretrain_lm", tokens=tokens, start=None, seed=params.run.seed
    )
    alone = fit(job, params.run, Session("alone", str(tmp_path / "alone"), no_recorder))
    wanted = drawn(tokens, params)
    vectors = model_tensors(alone)[EMBEDDING][5:48]
    centred = vectors - vectors.mean(0)
    wanted[EMBEDDING][5:48] = centred / centred.std() * 8 * wanted[EMBEDDING].std()
    assert tensors.keys() == wanted.keys()
    assert ("decoder_weight" in tensors) is not tie_weights
    for name, weight in wanted.items():
        torch.testing.assert_close(tensors[name], weight, msg=name)
    assert found.steps == 0
    assert found.embedding is not None
    assert found.embedding.headstart == "vectors"
    training = found.embedding.training
    assert training.steps == alone.step > 0
    assert training.after["loss"] < training.before["loss"]


def test_the_cost_is_that_of_both_trainings(tmp_path, tokens, monkeypatch):
    own = Spent(seconds=10.0, core_seconds=20.0, gpu_seconds=0.0)
    fit_and_export = _trained_embedding.fit_and_export
    monkeypatch.setattr(
        _trained_embedding,
        "fit_and_export",
        lambda *given: fit_and_export(*given).model_copy(update={"cost": own}),
    )
    found, _ = pretrain(tmp_path, tokens, params_with({}))
    assert found.embedding is not None
    assert found.cost == found.embedding.training.cost + own
    assert found.cost.core_seconds > 20.0


def test_what_it_begins_with_is_trained_further_and_stays_tied(tmp_path, tokens):
    _, tensors = pretrain(tmp_path, tokens, params_with({}))
    start, _ = load_model(tmp_path / "run" / "start")
    assert tensors.keys() == start.keys()
    assert "decoder_weight" not in tensors
    assert not torch.equal(tensors[EMBEDDING], start[EMBEDDING])


@pytest.mark.parametrize("stopped", ["embedding", "language model"])
def test_a_run_that_was_stopped_in_either_training_ends_bit_for_bit_alike(
    tmp_path, tokens, stopped, monkeypatch
):
    params = params_with({})
    _, whole = pretrain(tmp_path / "whole", tokens, params)
    stopping = Seen(stop_at=3).open
    of_embedding, of_model = (stopping, no_recorder) if stopped == "embedding" else (no_recorder, stopping)
    monkeypatch.setattr(_trained_embedding, "no_recorder", of_embedding)
    with pytest.raises(KeyboardInterrupt):
        pretrain(tmp_path, tokens, params, open_recorder=of_model)
    resumed_from: list[int] = []

    def noted(resume_step: int, earlier: bytes | None = None) -> Any:
        resumed_from.append(resume_step)
        return no_recorder(resume_step, earlier)

    monkeypatch.setattr(_trained_embedding, "no_recorder", noted)
    _, resumed = pretrain(tmp_path, tokens, params)
    # The vectors go on, or are found finished.
    assert [step > 0 for step in resumed_from] == ([True] if stopped == "embedding" else [])
    for name, weight in whole.items():
        assert torch.equal(resumed[name], weight), name


def test_only_head_starts_with_it_have_its_code_and_the_family_of_the_vectors_in_their_fingerprint():
    without = params_with({"headstarts": {"ulmfit": {"embedding_from": None}}})
    added = {"pipeline.stages._trained_embedding", "models.word_vectors", "pipeline.objectives.word_vectors"}
    plain = stage_fingerprint("pretrain_lm", Project(without), {"headstart": "ulmfit"}).modules.keys()
    assert not added & plain
    assert (
        added
        <= stage_fingerprint("pretrain_lm", Project(params_with({})), {"headstart": "ulmfit"}).modules.keys()
    )
    for stage, name in (("finetune_lm", "ulmfit"), ("pretrain_lm", "vectors")):
        same = [
            stage_fingerprint(stage, Project(each), {"headstart": name})
            for each in (without, params_with({}))
        ]
        assert same[0] == same[1]


def test_the_doctor_counts_the_training_of_the_embedding():
    def needs(name: str | None) -> list[Any]:
        top = {"run": {"headstarts": ["ulmfit"]}, "headstarts": {"ulmfit": {"embedding_from": name}}}
        return needs_of(Project(params_with(top)), 1)

    first, *rest = needs("vectors")
    assert rest == needs(None)
    assert (first.headstart, first.stage) == ("embedding of ulmfit", "pretrain_lm")
    assert first.num_parameters == 2 * 8000 * 6  # input and output vectors of the pieces


def test_a_family_without_word_vectors_or_a_width_is_refused(monkeypatch):
    both = {"headstarts": {"vectors": {"embedding_from": "ulmfit"}, "ulmfit": {"embedding_from": None}}}
    with pytest.raises(ValueError, match=r"`headstarts\.vectors\.embedding_from` is ulmfit, .* no word vec"):
        Project(params_with(both)).head_starts["vectors"]

    from models import awd_lstm

    @dataclasses.dataclass(frozen=True)
    class Config:
        tie_weights: bool = True

    monkeypatch.setattr(awd_lstm, "FAMILY", dataclasses.replace(awd_lstm.FAMILY, config=Config))
    values = overlay(
        read_yaml(ROOT / "params.yaml"), {"headstarts": {"ulmfit": {"embedding_from": "vectors"}}}
    )
    values["headstarts"]["ulmfit"]["config"] = {}
    with pytest.raises(ValueError, match=r"family awd_lstm has no `embedding_dim`; set it to null"):
        Project(checked(values, where="params.yaml")).head_starts["ulmfit"]
