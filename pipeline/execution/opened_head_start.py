"""A head start's language model and the text that it is compared on, for commands beside the route."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, cast

import torch
from torch import nn

from models.family import Encoder, lookup
from models.heads import LanguageModel
from pipeline.artifacts.links import read_link, tokens_at
from pipeline.artifacts.model_folder import ModelFolder
from pipeline.corpus.tokenizer import Tokenizer
from pipeline.corpus.tokenizer_kinds import load_tokenizer
from pipeline.corpus.tokens import TokensInfo, read_info
from pipeline.evaluation.probe import Reading
from pipeline.execution.lr_find import stage_arguments
from pipeline.project.headstarts import ResolvedHeadStart
from pipeline.project.params import Params
from pipeline.project.project import Project
from pipeline.training.cards import ModelCard, build_encoder, build_language_model

Which = Literal["target_lm", "general_lm"]


@dataclass(frozen=True)
class OpenedHeadStart:
    """A head start whose language model is loaded, with its settings and tokens."""

    params: Params
    settings: ResolvedHeadStart
    link: Path  # to the tokens of the target text, or their folder
    info: TokensInfo
    card: ModelCard
    language_model: nn.Module  # on `device`; what the family's objective trains
    device: torch.device

    @property
    def encoder(self) -> Encoder:
        return cast(Encoder, self.language_model.encoder)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return load_tokenizer(read_link(self.link)["tokenizer"])

    @property
    def folder(self) -> Path:
        """The folder of the token shards."""
        return tokens_at(self.link)

    @property
    def causal_language_model(self) -> LanguageModel:
        """The language model, if it can continue a text.

        Raises ValueError for one that does not predict the next token, and for one that reads from the end.
        """
        if lookup(self.card.family).objective != "causal":
            raise ValueError(
                f"{self.settings.name} is of the family {self.card.family}, which is not trained to predict "
                "the next token; take one that is, such as ulmfit or gpt"
            )
        if self.card.direction == "backward":
            raise ValueError(
                f"{self.settings.name} reads a text from its end, so it cannot continue one; take another"
            )
        return cast(LanguageModel, self.language_model)

    @property
    def reading(self) -> Reading:
        """How a probe of this head start reads a document.

        Raises ValueError for documents of a text and answers, which no probe reads.
        """
        if self.info.num_texts > 2:
            raise ValueError(
                "the documents of corpus.target have answers to choose from, of which a probe makes nothing"
            )
        classifier = self.settings.finetune_classifier
        return Reading.of(classifier.max_tokens, classifier.bptt, self.card, self.info)


def open_head_start(project: Project, name: str, which: Which) -> OpenedHeadStart:
    """Open one of a head start's models, as the route left it.

    Raises ValueError for an unknown head start, and for missing inputs.
    """
    settings = project.head_start(name)
    given = stage_arguments(Path("dvc.yaml"), "finetune_classifier", name)
    link, folder = Path(given["tokens"]), Path(given[which])
    if not folder.exists():
        raise ValueError(f"{folder}: no such folder; run `dvc repro` with {name} in run.headstarts first")
    start = ModelFolder.at(folder)
    card = start.card()
    model = build_language_model(build_encoder(card)[0], card)
    model.load_state_dict(start.tensors())
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    info = read_info(tokens_at(link))
    return OpenedHeadStart(project.params, settings, link, info, card, model.to(device).eval(), device)
