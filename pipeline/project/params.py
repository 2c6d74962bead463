"""The whole of params.yaml.

Every setting lives there and none has a default here, except the parts of a `Range`. A key that is
unknown, missing or mistyped is refused with its dotted name.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.corpus.settings import Corpora, Leakage, Tokenizer
from pipeline.distributed.settings import Run, Trials, Tune
from pipeline.evaluation.settings import Evaluate
from pipeline.settings.loader import flatten, overlay, read_yaml, typed
from pipeline.settings.section import Section
from pipeline.sweeps.settings import Ablate, SampleEfficiency
from pipeline.training.settings import ClassifierTraining, LanguageModelTraining, Model


class Params(Section):
    """The whole of params.yaml."""

    run: Run
    corpus: Corpora
    tokenizer: Tokenizer
    model: Model
    pretrain_lm: LanguageModelTraining
    finetune_lm: LanguageModelTraining
    finetune_classifier: ClassifierTraining
    leakage: Leakage
    evaluate: Evaluate
    trials: Trials
    tune: Tune
    sample_efficiency: SampleEfficiency
    ablate: Ablate


def load(path: Path) -> Params:
    """Read and check a params file. Raises ValueError naming each offending key."""
    return checked(read_yaml(path), where=str(path))


def checked(values: Mapping[str, Any], *, where: str) -> Params:
    """Check all settings and what is laid over them. Raises ValueError naming each offending key."""
    params = typed(Params, values, where=where)
    curve, tune = params.sample_efficiency, params.tune
    classifier, lm = params.finetune_classifier.model_dump(), params.pretrain_lm.model_dump()
    few = overlay(classifier, curve.classifier)
    laid_over: list[tuple[str, type[Section], Mapping[str, Any], Mapping[str, Any]]] = [
        ("sample_efficiency.classifier", ClassifierTraining, classifier, curve.classifier),
        ("sample_efficiency.scratch", ClassifierTraining, few, curve.scratch),
        ("ablate.classifier", ClassifierTraining, few, params.ablate.classifier),
        ("ablate.pretrain_lm", LanguageModelTraining, lm, params.ablate.pretrain_lm),
    ]
    for stage, top in tune.overrides.items():
        section = getattr(params, stage)
        laid_over.append((f"tune.overrides.{stage}", type(section), section.model_dump(), top))
    for key, kind, base, above in laid_over:
        typed(kind, overlay(base, above), where=where, prefix=f"{key}.")
    known = dict(flatten(params.model_dump()))
    for key in tune.space:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
            hint = f"; did you mean `{near[0]}`?" if near else ""
            raise ValueError(f"{where}: tune.space names `{key}`, which is no setting{hint}")
        if key.split(".")[0] not in ("model", "finetune_lm", "finetune_classifier"):
            raise ValueError(f"{where}: tune.space names `{key}`, which no trial reads")
    return params
