"""Refusals of settings before anything is trained, so that nothing is refused after hours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from models.family import check_chunks
from pipeline.corpus.settings import FilesSource, PydocsSource
from pipeline.evaluation.scaling_law import LEAST_DISTINCT
from pipeline.project.headstarts import ResolvedHeadStart, language_model_settings, stage_space
from pipeline.project.params import Params
from pipeline.project.project import Project
from pipeline.project.relations import check_order
from pipeline.project.sizes import CHECK, sizes_of
from pipeline.settings.arm import Arm, Use
from pipeline.training.cards import family_and_config
from pipeline.training.schedules import check_unfreezing

_BESIDE = "finetune_classifier.beside"
_CLASSIFIERS = ("finetune_classifier", "few_labels", "scratch")

if TYPE_CHECKING:
    from models.family import Encoder


def check(project: Project) -> None:
    """Check all that is known before anything is trained: head starts, search, ablations, probes, texts.

    Raises ValueError naming each offending key.
    """
    params, found = project.params, project.head_starts
    tune, ablate = params.tune, params.ablate
    for section, name, is_wanted in (
        ("tune", tune.headstart, tune.num_trials > 0),
        ("ablate", ablate.headstart, bool(ablate.seeds)),
        ("scaling", params.scaling.headstart, bool(params.scaling.sizes)),
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
    for each in project.trained:
        _check_chunks(each)
        _check_unfreezing(each)
        _check_lesson(each)
        _check_beside(params, each)
        _check_texts(params, each)
    _check_beside_in_sweeps(params)
    if tune.num_trials and tune.stage == "finetune_lm" and searched.teacher is not None:
        raise ValueError(
            f"tune.stage is finetune_lm of {searched.name}, whose trials would learn from no teacher; set "
            "finetune_classifier, or name another head start"
        )
    _check_corpora(params, project.trained)
    for arm in params.arms(params.num_texts):
        if arm.use is Use.IN_CONTEXT:
            assert arm.source is not None
            _check_in_context(arm, found[arm.source], params.num_texts)
    if params.scaling.sizes:
        _check_scaling(project)
    if params.distil_classifier.student is not None:
        _check_distilled(params, found[params.distil_classifier.student])


def _check_beside(params: Params, head_start: ResolvedHeadStart) -> None:
    """Raise ValueError for features of another head start that there are not, or that do not go with this."""
    from pipeline.training.classifier import check_beside

    name = head_start.name
    for section in _CLASSIFIERS:
        settings = getattr(head_start, section)
        if (other := settings.beside) is None:
            continue
        key = f"params.yaml: headstarts.{name}.{section}.beside"
        check_order(params, "too", name, other, key)
        try:
            check_beside(settings, params.num_texts)
        except ValueError as error:
            raise ValueError(f"params.yaml: headstarts.{name}: {error}") from error


def _check_beside_in_sweeps(params: Params) -> None:
    """Raise ValueError for features of another head start that a trial would miss."""
    tune, ablate = params.tune, params.ablate
    overridden, searched = tune.overrides.get("finetune_classifier", {}), tune.space.get(_BESIDE)
    asked: dict[str, tuple[str, list[Any]]] = {
        f"tune.overrides.{_BESIDE}": (tune.headstart, [overridden.get("beside")]),
        f"tune.space, {_BESIDE},": (tune.headstart, [*(searched.choices or [])] if searched else []),
        "ablate.classifier.beside": (ablate.headstart, [ablate.classifier.get("beside")]),
    }
    for where, (name, others) in asked.items():
        for other in others:
            if other is not None and (other == name or other not in params.run.headstarts):
                known = ", ".join(each for each in params.run.headstarts if each != name) or "none"
                raise ValueError(
                    f"params.yaml: {where} is {other!r}, but run.headstarts trains no such head start beside "
                    f"{name}; there is {known}"
                )


def _check_unfreezing(head_start: ResolvedHeadStart) -> None:
    """Raise ValueError for a training that ends before its last layer group joins."""
    encoder = _on_meta(head_start)
    of_encoder = head_start.family.layer_groups(encoder)
    _, config = family_and_config(head_start.model)
    language_model = head_start.objective.build(encoder, config)
    of_language_model = len(head_start.objective.layer_groups(language_model, of_encoder))
    for section in ("pretrain_lm", "finetune_lm", *_CLASSIFIERS):
        found = getattr(head_start, section)
        settings = found if section in _CLASSIFIERS else found.training
        num_groups = of_language_model
        if section in _CLASSIFIERS:  # a fitted head is no group of its own
            num_groups = len(of_encoder) + (settings.method == "plain")
        check_unfreezing(
            settings.unfreeze,
            num_groups,
            epochs=settings.epochs,
            epochs_per_unfreezing=settings.epochs_per_unfreezing,
            section=f"params.yaml: headstarts.{head_start.name}.{section}",
        )


def _check_scaling(project: Project) -> None:
    """Raise ValueError for sizes that cannot be trained, or that determine no law."""
    settings, key = project.params.scaling, "params.yaml: scaling"
    head_start = project.head_starts[settings.headstart]
    if head_start.family.objective != "causal":
        raise ValueError(
            f"{key}.headstart is {head_start.name}, but {head_start.family.name} is not trained to predict "
            "the next token, which the law is of; name a head start that is, such as gpt or ulmfit"
        )
    for name, numbers in (("sizes", list(settings.sizes)), ("tokens", settings.tokens)):
        if len(numbers) < LEAST_DISTINCT:
            raise ValueError(
                f"{key}.{name} has {len(numbers)} ({', '.join(map(str, numbers))}); a law needs "
                f"{LEAST_DISTINCT}, or its floor stays unknown"
            )
    if CHECK in settings.sizes:
        raise ValueError(f"{key}.sizes has {CHECK}, as the run of {key}.check is called; rename it")
    sizes_of(project)


def _check_distilled(params: Params, student: ResolvedHeadStart) -> None:
    """Raise ValueError for a classifier that `distil_classifier` cannot train."""
    top = params.distil_classifier.classifier
    if "max_labels" in top:
        raise ValueError(
            "params.yaml: distil_classifier.classifier.max_labels has no effect, as a student reads all "
            f"text; take it out, or set headstarts.{student.name}.finetune_classifier.max_labels"
        )
    if {**student.finetune_classifier.model_dump(), **top}["method"] == "contrastive":
        raise ValueError(
            f"params.yaml: finetune_classifier.method of {student.name} is contrastive, which learns from "
            "pairs of texts and not from a teacher; set distil_classifier.classifier to {method: plain}"
        )
    if (other := {**student.finetune_classifier.model_dump(), **top}["beside"]) is not None:
        raise ValueError(
            f"params.yaml: finetune_classifier.beside of {student.name} is {other}, but a student learns "
            "from text without labels too, of which no features are kept; set distil_classifier.classifier "
            "to {beside: null}"
        )


def _check_in_context(arm: Arm, head_start: ResolvedHeadStart, num_texts: int) -> None:
    """Raise ValueError for an arm that asks a language model which cannot continue a text."""
    family, key = head_start.family, f"params.yaml: sample_efficiency.arms has {arm}, but"
    if family.objective != "causal":
        raise ValueError(
            f"{key} {family.name} is not trained to predict the next token; name a head start that is, such "
            "as ulmfit or gpt"
        )
    if head_start.model.config.get("direction") == "backward":
        raise ValueError(f"{key} {head_start.name} reads a text from its end; name one that reads forward")
    if num_texts > 1:
        raise ValueError(
            f"{key} the documents of corpus.target have several texts, and zero_shot.template has a place "
            "for one; take the arm out"
        )


def _check_lesson(head_start: ResolvedHeadStart) -> None:
    """Raise ValueError for a teacher that a student cannot learn from as `distillation` says."""
    teacher, name = head_start.teacher, head_start.name
    if teacher is None or head_start.distillation is None:
        return
    weights = head_start.distillation
    if not (weights.soft or weights.hard or weights.cosine):
        raise ValueError(
            f"params.yaml: distillation has no weight above 0, so {name} would learn nothing; set one"
        )
    for stage in ("pretrain_lm", "finetune_lm"):
        if getattr(getattr(head_start, stage).own, "sampled_words", None) is not None:
            raise ValueError(
                f"params.yaml: {stage}.sampled_words of {name} is set, but its teacher {teacher.name} tells "
                "the probabilities of all words; set it to null"
            )
    encoder, taught_by = _on_meta(head_start), _on_meta(teacher)
    for stage in ("pretrain_lm", "finetune_lm"):
        chunk = head_start.objective.size_of_step(getattr(head_start, stage).own, 8, encoder).chunk
        if taught_by.context is not None and chunk > taught_by.context:
            raise ValueError(
                f"params.yaml: {stage} of {name} reads up to {chunk} tokens at once, but config.context of "
                f"its teacher {teacher.name} is {taught_by.context}; lower bptt or row_tokens of {name}"
            )
    ours, theirs = encoder.width, taught_by.width
    if head_start.distillation.cosine and ours != theirs:
        raise ValueError(
            f"params.yaml: distillation.cosine is {head_start.distillation.cosine}, but the features of "
            f"{name} are {ours} wide, and those of its teacher {teacher.name} {theirs}; set it to 0, or make "
            "them alike"
        )


def _check_corpora(params: Params, trained: list[ResolvedHeadStart]) -> None:
    """Raise ValueError for a corpus that there is not, or has no pairs, and for what one makes impossible."""
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
    for each in trained:
        if each.objective.corpus == "general":
            continue
        if each.objective.corpus not in known:
            raise ValueError(
                f"params.yaml: {each.name} learns from corpus.{each.objective.corpus}, which there is not; "
                f"set it, as the preset {each.family.name} does, or take {each.name} out of run.headstarts"
            )
        _check_learns_nothing_of_the_target(params, each)


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


def _check_texts(params: Params, head_start: ResolvedHeadStart) -> None:
    """Raise ValueError if a head start cannot read documents of several texts."""
    from pipeline.training.classifier import check_texts

    if params.num_texts == 1:
        return
    encoder, family = _on_meta(head_start), head_start.family.name
    for section in _CLASSIFIERS:
        key = f"params.yaml: headstarts.{head_start.name}.{section}"
        check_texts(getattr(head_start, section), params.num_texts, family, encoder, key)


def _check_chunks(head_start: ResolvedHeadStart) -> None:
    """Raise ValueError if a classifier would read more tokens at once than the encoder can."""
    encoder = _on_meta(head_start)
    for section in _CLASSIFIERS:
        settings = getattr(head_start, section)
        at_once = encoder.tokens_at_once(settings.bptt, settings.max_tokens)
        check_chunks(at_once, encoder, f"params.yaml: headstarts.{head_start.name}.{section}")


def _on_meta(head_start: ResolvedHeadStart) -> Encoder:
    """The encoder with a tiny vocabulary, without weights."""
    import torch

    from pipeline.training.cards import NoInitialWeights

    _, config = family_and_config(head_start.model)
    with torch.device("meta"), NoInitialWeights():
        return head_start.family.build(config, 8)


def _check_layers(head_start: ResolvedHeadStart) -> None:
    """Raise ValueError if layers are named that the encoder does not have, or cannot sum or mix."""
    chosen = {
        "probe": head_start.probe.layer_choice,
        "finetune_classifier": head_start.finetune_classifier.layer_choice,
        "few_labels": head_start.few_labels.layer_choice,
        "scratch": head_start.scratch.layer_choice,
    }
    if all(choice.is_top for choice in chosen.values()):
        return  # every encoder has it
    widths = _on_meta(head_start).layer_widths
    for section, choice in chosen.items():
        try:
            choice.width(widths, section)
        except ValueError as error:
            raise ValueError(f"params.yaml: headstarts.{head_start.name}.{error}") from error


def max_labels_key(params: Params, head_start: str) -> str:
    """The key that says how many labels a head start's classifier trains on."""
    own = "max_labels" in params.headstarts[head_start].finetune_classifier
    return f"{f'headstarts.{head_start}.' if own else ''}finetune_classifier.max_labels"


def check_words_of_classes(params: Params, class_names: Sequence[str]) -> None:
    """Raise ValueError for `zero_shot.labels` of a class that there is not, if any arm reads them."""
    from pipeline.evaluation.in_context import check_labels

    if any(arm.use is Use.IN_CONTEXT for arm in params.arms(params.num_texts)):
        check_labels(params.zero_shot.labels, class_names)


def check_numbers_of_labels(project: Project, num_classes: int) -> None:
    """Raise ValueError for a number of labels below one per class, which a later stage would refuse."""
    params = project.params
    numbers: dict[str, Any] = {
        "tune.labels": params.tune.labels if params.tune.num_trials else None,
        "ablate.labels": params.ablate.labels if params.ablate.seeds else None,
    }
    searched = params.tune.overrides.get("finetune_classifier", {})
    if params.tune.num_trials and params.tune.stage == "finetune_classifier" and params.tune.labels is None:
        numbers["tune.overrides.finetune_classifier.max_labels"] = searched.get("max_labels")
    for each in project.trained:
        numbers[max_labels_key(params, each.name)] = each.finetune_classifier.max_labels
    for key, number in numbers.items():
        if isinstance(number, int) and number < num_classes:
            raise ValueError(f"{key} is {number:,}, fewer than the {num_classes} classes; raise it")
