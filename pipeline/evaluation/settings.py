"""Settings of `evaluate` and of the probe in params.yaml."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from pipeline.evaluation.template import checked_template, named_by_text
from pipeline.settings.arm import ArmSetting
from pipeline.settings.section import Count, CountOrZero, Distinct, Layers, Section

ProperFraction = Annotated[float, Field(gt=0, lt=1)]
Pooling = Literal["mean", "idf_mean", "max", "first", "last"]


class Evaluate(Section):
    """How the test documents are judged, and what ships."""

    bootstrap_samples: Annotated[int, Field(ge=1, le=1_000_000)] = 1000
    """Bootstrap samples of the test documents, for intervals."""
    confidence: Annotated[float, Field(gt=0, lt=1)] = 0.95
    """Confidence level of intervals, and of the thresholds of `most_wrong`."""
    calibration_bins: Annotated[int, Field(ge=1, le=10_000)] = 15
    """Bins of the calibration error and of its diagram."""
    baseline_tfidf: bool = True
    """Also train TF-IDF with logistic regression, as a baseline and a candidate."""
    confident_errors: CountOrZero = 8
    """Most confident errors to show, with their texts and the tokens that misled the classifier."""
    ship: ArmSetting | None = None
    """Candidate that ships: vectors, vectors/with_tfidf, blend, ...; null: the best on validation text."""
    most_wrong: Annotated[list[ProperFraction], Distinct] = [0.02, 0.05, 0.1]
    """Errors for which thresholds of confidence are chosen on validation documents, as fractions."""
    label_sets: Annotated[list[ProperFraction], Distinct] = [0.9, 0.95, 0.99]
    """Fractions of sets of labels that should contain the right label."""


class Card(Section):
    """The facts about a classifier that only people know; the model card says which of them are null."""

    title: str | None = None
    """Name of the classifier."""
    purpose: str | None = None
    """Intended use and users of the classifier."""
    not_for: str | None = None
    """Uses that the classifier is unfit for."""
    owner: str | None = None
    """Who answers for the classifier."""
    contact: str | None = None
    """How to reach the owner."""
    licence: str | None = None
    """Licence of the classifier."""
    data_licence: str | None = None
    """Licence of the text that it was trained on."""


class ZeroShot(Section):
    """How a language model is asked for the class of a text: by what it thinks likely behind it."""

    template: Annotated[str, AfterValidator(checked_template)] = "{text} This is about {label}"
    """Prompt, with {text} once and {label} at its end."""
    labels: Annotated[dict[str, str], BeforeValidator(named_by_text)] = {}
    """Words for a class, by its name, such as Sci/Tech: science and technology; by default its name."""
    calibrate: bool = True
    """Calibrate by the model's answers to inputs without content (Zhao et al. 2021)."""
    examples: Annotated[list[CountOrZero], Field(min_length=1), Distinct] = [0, 4]
    """Labelled texts in the prompt; each is a number of labels on the curve."""
    example_tokens: Count = 30
    """Tokens of each labelled text; longer ones are truncated."""
    text_tokens: Count = 120
    """Tokens of the text to classify; fewer where the model's context has no room for them."""


class Probe(Section):
    """Which features of a frozen encoder are read: layers, put together at each token, then pooled.

    As BERT's table 7 (Devlin et al. 2019) names them: the last layer is `layers: [-1]`, the second-to-last
    `[-2]`; the sum or concatenation of the last four is `[-4, -3, -2, -1]` with `combine: sum` or `concat`.
    """

    layers: Layers = [-1]
    """Layers whose features are read: 0 the lowest, -1 the top one; or all."""
    combine: Literal["sum", "concat"] = "concat"
    """How several layers are combined: concat, or sum (of layers of one width)."""
    pooling: Annotated[list[Pooling], Field(min_length=1), Distinct] = ["mean", "idf_mean"]
    """Poolings over tokens: any of mean, idf_mean (by inverse document frequency), max, first, last."""
