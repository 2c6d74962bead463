"""Refusals of corpora, and of what a head start would learn from them."""

from __future__ import annotations

from pipeline.corpus.settings import FilesSource, PydocsSource
from pipeline.project.headstarts import ResolvedHeadStart
from pipeline.project.params import Params
from pipeline.settings.arm import Arm, Use


def check_corpora(params: Params) -> None:
    """Raise ValueError for a tokenizer's corpus that there is not, and for translations without pairs."""
    known = params.corpus.names
    for name, tokenizer in params.tokenizers.items():
        for corpus in getattr(tokenizer, "corpora", ()):
            if corpus not in known:
                raise ValueError(
                    f"params.yaml: tokenizers.{name}.corpora names {corpus}, but there is no "
                    f"corpus.{corpus}; set it, or take the tokenizer out"
                )
    source = None if params.corpus.translation is None else params.corpus.translation.source
    if isinstance(source, PydocsSource):
        raise ValueError(
            "params.yaml: corpus.translation.source.kind is pydocs, which has no translations; set it to "
            "gettext, aligned or files"
        )
    if isinstance(source, FilesSource) and source.text_pair_column is None:
        raise ValueError(
            "params.yaml: corpus.translation.source.text_pair_column is null; name the column of translations"
        )


def check_corpus_of(params: Params, head_start: ResolvedHeadStart) -> None:
    """Raise ValueError if a trained head start learns from a corpus that there is not, or cannot use."""
    corpus, name = head_start.objective.corpus, head_start.name
    if corpus == "general":
        return
    if corpus not in params.corpus.names:
        raise ValueError(
            f"params.yaml: {name} learns from corpus.{corpus}, which there is not; set it, as the preset "
            f"{head_start.family.name} does, or take {name} out of run.headstarts"
        )
    _check_learns_nothing_of_the_target(params, head_start)


def _check_learns_nothing_of_the_target(params: Params, head_start: ResolvedHeadStart) -> None:
    """Raise ValueError for what would train a language model of target text that it cannot learn from."""
    name, why = head_start.name, f"the target's text is nothing that {head_start.family.name} learns from"
    tune, ablate = params.tune, params.ablate
    if head_start.finetune_lm.training.epochs:
        raise ValueError(
            f"params.yaml: headstarts.{name}.finetune_lm.epochs is above 0, but {why}; set it to 0"
        )
    if (arm := Arm(name, Use.TARGET_LM_ALONE)) in params.sample_efficiency.arms:
        raise ValueError(f"params.yaml: sample_efficiency.arms has {arm}, but {why}")
    if ablate.seeds and ablate.headstart == name:
        raise ValueError(f"params.yaml: ablate.headstart is {name}, but {why}; name another")
    if tune.num_trials and tune.stage == "finetune_lm" and tune.headstart == name:
        raise ValueError(
            f"params.yaml: tune.stage is finetune_lm of {name}, but {why}; set finetune_classifier"
        )
