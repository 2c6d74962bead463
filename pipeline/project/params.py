"""The whole of params.yaml, which names what differs from the defaults.

A default stands with its field, in the type; sections that share a type have theirs in `Params`. What a
family of models brings as its own defaults is in its file (`Family.defaults`). Head starts and tokenizers are
a person's own, so these have to be named.
"""

from __future__ import annotations

from collections.abc import Mapping
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
from pipeline.settings.loader import overlay
from pipeline.settings.section import Distinct, Section, Values
from pipeline.sweeps.settings import Ablate, DistilClassifier, SampleEfficiency, Scaling
from pipeline.training.settings import (
    ClassifierTraining,
    DistillationSettings,
    HeadStart,
    LanguageModelTraining,
    Optimizer,
)


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

    @property
    def num_texts(self) -> int:
        """The texts of a labelled document: one, a pair, or one and its answers."""
        source = self.corpus.target.source
        return len(text_columns(source)) if isinstance(source, FilesSource) else 1


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
