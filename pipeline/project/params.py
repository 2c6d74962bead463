"""The whole of params.yaml, which names what differs from the defaults.

A default stands with its field, in the type; sections that share a type have theirs in `Params`. What a
family of models brings as its own defaults is in its file (`Family.defaults`). Head starts and tokenizers are
a person's own, so these have to be named. A key that is unknown, missing or mistyped is refused with its
dotted name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Annotated, Any

from pydantic import Field, model_validator

from pipeline.corpus.settings import (
    Corpora,
    Corpus,
    FilesSource,
    Leakage,
    PydocsSource,
    Split,
    Tokenizer,
)
from pipeline.corpus.text_columns import text_columns
from pipeline.distributed.settings import Run, Trials, Tune
from pipeline.evaluation.settings import Card, Evaluate, Probe, ZeroShot
from pipeline.settings.arm import BLEND, RESERVED_NAMES, TFIDF, Arm, Use
from pipeline.settings.loader import overlay, typed
from pipeline.settings.messages import nearest
from pipeline.settings.section import Distinct, Section, Values
from pipeline.sweeps.settings import Ablate, DistilClassifier, SampleEfficiency, Scaling
from pipeline.training.settings import (
    ClassifierTraining,
    DistillationSettings,
    HeadStart,
    LanguageModelTraining,
    Optimizer,
)

PAIR = 2  # texts of a document; more: one and answers to choose from
_NAME = re.compile(r"[a-z][a-z0-9_]*")


class Params(Section):
    """The whole of params.yaml."""

    run: Run
    """Where and how to run, and which head starts to train."""
    corpus: Corpora = Corpora(
        general=Corpus(source=PydocsSource(kind="pydocs", part="general", min_words=5)),
        target=Corpus(
            source=PydocsSource(kind="pydocs", part="target", min_words=15),
            split=Split(validation=0.05, test=0.1034),  # about 3,000 documents
        ),
    )
    """The text: general, target and, for translators, translation."""
    tokenizers: Annotated[dict[str, Tokenizer], Field(min_length=1)]
    """Tokenizers by a name of your own; each is trained and applied once for all head starts that name it."""
    headstarts: Annotated[dict[str, HeadStart], Field(min_length=1)]
    """What a classifier may start from, by a name of your own."""
    distillation: DistillationSettings = DistillationSettings()
    """How a head start with a `teacher` learns from it."""
    ensembles: dict[str, Annotated[list[str], Field(min_length=2), Distinct]] = {}
    """Head starts whose probabilities are averaged, and whose frozen features one probe reads, by name."""
    pretrain_lm: LanguageModelTraining = LanguageModelTraining(
        epochs=0.3,
        optimizer=Optimizer(lr=0.02, weight_decay=0.01, clip_norm=0.25, discriminative_factor=1.0),
        dropout=0.1,
        ar_alpha=1.0,
        tar_beta=0.5,
    )
    """Training of a language model on general text, where the head start's family has no defaults."""
    finetune_lm: LanguageModelTraining = LanguageModelTraining(
        epochs=0.4,
        optimizer=Optimizer(lr=0.02, weight_decay=0.01, clip_norm=0.25, discriminative_factor=1.3),
        dropout=0.3,
        ar_alpha=2.0,
        tar_beta=1.0,
    )
    """Training of that language model on the target's text, where the family has no defaults."""
    finetune_classifier: ClassifierTraining = ClassifierTraining()
    """Training of the classifier, where the family has no defaults."""
    probe: Probe = Probe()
    """Features of a frozen network, for logistic regression on top."""
    leakage: Leakage = Leakage()
    """Test documents that occur in training text."""
    evaluate: Evaluate = Evaluate()
    """How the test documents are judged, and what ships."""
    trials: Trials = Trials()
    """Resources of each training of tune, sample_efficiency, ablate and scaling."""
    tune: Tune = Tune()
    """Search for better settings of one stage."""
    sample_efficiency: SampleEfficiency = SampleEfficiency()
    """The label curve: error against number of labels."""
    zero_shot: ZeroShot = ZeroShot()
    """Arms NAME/in_context: a causal language model answers a prompt, without training."""
    ablate: Ablate = Ablate()
    """The ledger of tricks: trainings with and without each."""
    scaling: Scaling = Scaling()
    """The law of loss by size and tokens, for `headstart plan`."""
    distil_classifier: DistilClassifier = DistilClassifier()
    """Distillation of what ships into the classifier of one head start."""
    card: Card = Card()
    """What only people know, for the model card."""
    presets: list[str] = []
    """Presets and files that `headstart use` laid over this file; only `headstart settings` reads this."""

    @model_validator(mode="before")
    @classmethod
    def _with_defaults(cls, values: Any) -> Any:
        return with_defaults(values) if isinstance(values, Mapping) else values

    def trained_ensembles(self) -> dict[str, list[str]]:
        """The ensembles whose members the route trains."""
        trained = set(self.run.headstarts)
        return {name: members for name, members in self.ensembles.items() if trained.issuperset(members)}

    @property
    def num_texts(self) -> int:
        """The texts of a labelled document: one, a pair, or one and its answers."""
        source = self.corpus.target.source
        return len(text_columns(source)) if isinstance(source, FilesSource) else 1

    def candidates(self, num_texts: int) -> list[Arm]:
        """The candidates that `evaluate` chooses from. What reads a document as one text tells no answers
        apart, so with answers there are networks alone.
        """
        networks = [Arm(name) for name in self.run.headstarts]
        ensembles = [Arm(name) for name in self.trained_ensembles()]
        if num_texts > PAIR:
            return [*networks, *ensembles, BLEND]
        single = [*networks, *(arm.using(Use.PROBE) for arm in (*networks, *ensembles))]
        if self.evaluate.baseline_tfidf:
            single += [TFIDF, *(arm.using(Use.WITH_TFIDF) for arm in (*networks, *ensembles))]
        return [*single, *ensembles, BLEND]

    def head_starts_of(self, arm: Arm) -> list[str]:
        """The head starts that an arm of the label curve trains: none, one, or the members of an ensemble."""
        return [] if arm.source is None else self.ensembles.get(arm.source, [arm.source])

    def arms(self, num_texts: int) -> list[Arm]:
        """The arms of the label curve that can be trained: those of head starts that the route trains.

        With answers to choose from there are networks alone, as in `candidates`.
        """
        trained = {*self.run.headstarts, *self.trained_ensembles(), None}
        arms = [arm for arm in self.sample_efficiency.arms if arm.source in trained]
        if num_texts > PAIR:
            arms = [arm for arm in arms if not (arm.use.is_frozen or arm.use.reads_tfidf)]
        return arms

    def trained_arms(self, num_texts: int) -> list[Arm]:
        """The arms that train something on each number of labels."""
        return [arm for arm in self.arms(num_texts) if arm.use is not Use.IN_CONTEXT]


def with_defaults(values: Values) -> dict[str, Any]:
    """Lay settings over the defaults of their sections.

    A key that is left out below a given one, such as `finetune_lm.optimizer.momentum`, then has the default
    of its section, and not one of its type.
    """
    return overlay(_defaults(), values)


@cache
def _defaults() -> dict[str, Any]:
    fields = Params.model_fields.items()
    return {name: field.default.model_dump() for name, field in fields if isinstance(field.default, Section)}


def checked(values: Values, *, where: str) -> Params:
    """Check all settings but those that only a family knows, which `Project.head_starts` checks.

    Raises ValueError naming each offending key.
    """
    params = typed(Params, values, where=where)
    try:
        _check_names(params)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error
    classifier = params.finetune_classifier.model_dump()
    few = overlay(classifier, params.sample_efficiency.classifier)
    laid_over = [("sample_efficiency.classifier", classifier, params.sample_efficiency.classifier)]
    for name, head_start in params.headstarts.items():
        key = f"headstarts.{name}"
        own = overlay(few, head_start.few_labels)
        laid_over += [
            (f"{key}.finetune_classifier", classifier, head_start.finetune_classifier),
            (f"{key}.few_labels", few, head_start.few_labels),
            (f"{key}.scratch", own, head_start.scratch),
        ]
    laid_over.append(("ablate.classifier", few, params.ablate.classifier))
    if (student := params.distil_classifier.student) is not None:
        own = overlay(classifier, params.headstarts[student].finetune_classifier)
        laid_over.append(("distil_classifier.classifier", own, params.distil_classifier.classifier))
    if "finetune_classifier" in params.tune.overrides:
        top = params.tune.overrides["finetune_classifier"]
        laid_over.append(("tune.overrides.finetune_classifier", classifier, top))
    for key, base, above in laid_over:
        typed(ClassifierTraining, overlay(base, above), where=where, prefix=f"{key}.")
    return params


def _check_names(params: Params) -> None:
    """Raise ValueError for a name that cannot be one, and for one that names nothing."""
    for section in ("tokenizers", "headstarts", "ensembles"):
        for name in getattr(params, section):
            if not _NAME.fullmatch(name) or name in RESERVED_NAMES:
                raise ValueError(
                    f"{section} has {name!r}; a name has lower-case letters, digits and _, begins with a "
                    f"letter, and is not {' or '.join(RESERVED_NAMES)}"
                )
    both = sorted(params.headstarts.keys() & params.ensembles.keys())
    if both:
        raise ValueError(f"{', '.join(both)}: a head start and an ensemble have the same name; rename one")
    for name, head_start in params.headstarts.items():
        _check_known(head_start.tokenizer, params.tokenizers, f"headstarts.{name}.tokenizer")
    for name in params.run.headstarts:
        _check_known(name, params.headstarts, "run.headstarts")
    for ensemble, members in params.ensembles.items():
        for name in members:
            _check_known(name, params.headstarts, f"ensembles.{ensemble}")
    if params.evaluate.ship is not None:
        candidates = map(str, params.candidates(params.num_texts))
        _check_known(str(params.evaluate.ship), candidates, "evaluate.ship")
    _check_known(params.tune.headstart, params.headstarts, "tune.headstart")
    _check_known(params.ablate.headstart, params.headstarts, "ablate.headstart")
    if params.scaling.sizes:
        _check_known(params.scaling.headstart, params.headstarts, "scaling.headstart")
    distilled = params.distil_classifier
    if distilled.student is not None:
        _check_known(distilled.student, params.headstarts, "distil_classifier.student")
        check_is_trained(params, distilled.student, "distil_classifier.student")
        if not (distilled.soft or distilled.hard):
            raise ValueError("distil_classifier has no weight above 0: set soft or hard")
    for arm in params.sample_efficiency.arms:
        if arm.source is None:
            if arm.use is not Use.TFIDF:
                raise ValueError(
                    f"sample_efficiency.arms has {arm}, which `evaluate` alone makes; take it out"
                )
            continue
        if arm.source in params.ensembles and not (arm.use is Use.NETWORK or arm.use.is_frozen):
            frozen = " or ".join(f"/{use}" for use in Use if use.is_frozen)
            raise ValueError(
                f"sample_efficiency.arms has {arm}, but {arm.source} is an ensemble, which is an arm by "
                f"itself or with {frozen}"
            )
        _check_known(arm.source, [*params.headstarts, *params.ensembles, TFIDF], "sample_efficiency.arms")
    if not params.trained_arms(params.num_texts):
        if asked := params.arms(params.num_texts):
            raise ValueError(
                f"sample_efficiency.arms has {_listed(asked)} alone, which train nothing; name one more that "
                "is trained, such as tfidf"
            )
        named = _listed(params.sample_efficiency.arms)
        raise ValueError(
            f"sample_efficiency.arms is [{named}]; run.headstarts trains none of them: "
            + ("name one of them" if params.num_texts > PAIR else "name one of them, or tfidf")
        )


def _listed(arms: Iterable[Arm]) -> str:
    return ", ".join(map(str, arms))


def _check_known(name: str, known: Iterable[object], key: str) -> None:
    names = list(map(str, known))
    if name not in names:
        raise ValueError(f"{key} names {name!r}, which there is not; {nearest(name, names)}")


def check_is_trained(params: Params, name: str, key: str) -> None:
    """Raise ValueError, naming `key`, for a head start that `run.headstarts` does not train."""
    if name not in params.run.headstarts:
        raise ValueError(f"{key} is {name}, which run.headstarts does not train; name it there")
