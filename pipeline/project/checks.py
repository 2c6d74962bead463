"""Refusals of settings before anything is trained, so that nothing is refused after hours."""

from __future__ import annotations

from pipeline.project.headstarts import ResolvedHeadStart, language_model_settings, resolve, stage_space
from pipeline.project.params import Params
from pipeline.training.cards import family_and_config


def resolve_all(params: Params) -> list[ResolvedHeadStart]:
    """Resolve all declared head starts, and check search, ablations and probes; return those to train.

    Raises ValueError naming each offending key.
    """
    found = {name: resolve(params, name) for name in params.headstarts}
    tune, ablate = params.tune, params.ablate
    for section, name, is_wanted in (
        ("tune", tune.headstart, tune.num_trials > 0),
        ("ablate", ablate.headstart, bool(ablate.seeds)),
    ):
        if is_wanted and name not in params.run.headstarts:
            raise ValueError(
                f"{section}.headstart is {name}, which run.headstarts does not train; name it there"
            )
    searched, ablated = found[tune.headstart], found[ablate.headstart]
    if not stage_space(tune, searched) and tune.num_trials > 0:
        raise ValueError(
            f"tune.space names no key that a trial of {tune.stage} reads, and the family "
            f"{searched.family.name} brings none: there is nothing to search; name one, with its range, or "
            "set tune.num_trials to 0"
        )
    for key, head_start, below, top in (
        ("tune.overrides.finetune_lm", searched, searched.finetune_lm, tune.overrides.get("finetune_lm", {})),
        ("ablate.pretrain_lm", ablated, ablated.pretrain_lm, ablate.pretrain_lm),
    ):
        language_model_settings(head_start.objective, below.dump(), {}, top, f"{key}.")
    for each in found.values():
        _check_layers(each)
    return [found[name] for name in params.run.headstarts]


def _check_layers(head_start: ResolvedHeadStart) -> None:
    """Raise ValueError if the probe reads layers that the encoder does not have, or cannot sum them."""
    probe = head_start.probe
    if probe.layers == [-1] or (probe.layers == "all" and probe.combine == "concat"):
        return  # every encoder has these
    import torch

    from pipeline.evaluation.probe import token_width

    _, config = family_and_config(head_start.model)
    try:
        token_width(head_start.family.build(config, 8).eval(), probe, torch.device("cpu"))
    except ValueError as error:
        raise ValueError(f"params.yaml: headstarts.{head_start.name}: {error}") from error


def check_numbers_of_labels(params: Params, num_classes: int) -> None:
    """Raise ValueError for a number of labels below one per class, which a later stage would refuse."""
    numbers = {
        "finetune_classifier.max_labels": params.finetune_classifier.max_labels,
        "tune.labels": params.tune.labels if params.tune.num_trials else None,
        "ablate.labels": params.ablate.labels if params.ablate.seeds else None,
    }
    for key, number in numbers.items():
        if isinstance(number, int) and number < num_classes:
            raise ValueError(f"{key} is {number:,}, fewer than the {num_classes} classes; raise it")
