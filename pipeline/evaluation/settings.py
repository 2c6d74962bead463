"""Settings of `evaluate` and of the probe in params.yaml."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from pipeline.evaluation.template import checked_template, named_by_text
from pipeline.settings.arm import ArmSetting
from pipeline.settings.section import Count, CountOrZero, Distinct, Layers, Section

if TYPE_CHECKING:
    from models.mixing import LayerChoice

ProperFraction = Annotated[float, Field(gt=0, lt=1)]
Pooling = Literal["mean", "idf_mean", "max", "first", "last"]


class Evaluate(Section):
    bootstrap_samples: Annotated[int, Field(ge=1, le=1_000_000)]
    confidence: Annotated[float, Field(gt=0, lt=1)]
    calibration_bins: Annotated[int, Field(ge=1, le=10_000)]
    baseline_tfidf: bool
    confident_errors: CountOrZero  # how many to show, with texts and attributions
    ship: ArmSetting | None  # a candidate; null: the one with the least error on validation documents
    # Errors for which a threshold of confidence is chosen on validation documents and checked on test ones.
    most_wrong: Annotated[list[ProperFraction], Distinct]
    # Each is the share of label sets that should hold the right label.
    label_sets: Annotated[list[ProperFraction], Distinct]


class Card(Section):
    """The facts about a classifier that only people know; the model card says which of them are null."""

    title: str | None
    purpose: str | None  # what it is for, and for whom
    not_for: str | None
    owner: str | None
    contact: str | None
    licence: str | None  # of the classifier
    data_licence: str | None  # of the text that it was trained on


class ZeroShot(Section):
    """How a language model is asked for the class of a text: by what it thinks likely behind it."""

    template: Annotated[str, AfterValidator(checked_template)]
    # The words for a class; for one that is not here, its name.
    labels: Annotated[dict[str, str], BeforeValidator(named_by_text)]
    calibrate: bool  # by inputs without content (Zhao et al. 2021)
    examples: Annotated[list[CountOrZero], Field(min_length=1), Distinct]  # labelled texts before the text
    example_tokens: Count  # of the text of each; a longer one is cut at its end
    text_tokens: Count  # of the text to classify; fewer where the context has no room for them


class Probe(Section):
    """Which features of a frozen encoder are read: layers, put together at each token, then pooled.

    As BERT's table 7 (Devlin et al. 2019) names them: the last layer is `layers: [-1]`, the second-to-last
    `[-2]`; the sum or concatenation of the last four is `[-4, -3, -2, -1]` with `combine: sum` or `concat`.
    """

    layers: Layers
    combine: Literal["sum", "concat"]  # of several layers; a sum needs layers of one width
    pooling: Annotated[list[Pooling], Field(min_length=1), Distinct]

    @property
    def layer_choice(self) -> LayerChoice:
        from models.mixing import LayerChoice

        return LayerChoice("all" if self.layers == "all" else tuple(self.layers), self.combine)
