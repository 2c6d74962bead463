"""An arm of the label curve or a candidate of `evaluate`: a head start, and how it becomes a classifier."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated

from pydantic import BeforeValidator, PlainSerializer

from pipeline.settings.messages import nearest


class Use(StrEnum):
    """How a classifier is made of what an arm starts from."""

    NETWORK = "network"  # fine-tuned, from the language model of the target text
    GENERAL_LM = "general_lm"  # fine-tuned, from the general language model
    TARGET_LM_ALONE = "target_lm_alone"  # fine-tuned, from a language model of the target text alone
    SCRATCH = "scratch"  # the same network, from random weights
    PROBE = "probe"  # logistic regression on frozen features
    WITH_TFIDF = "with_tfidf"  # logistic regression on frozen features and TF-IDF together
    PROBE_CHOSEN = "probe_chosen"  # the last two with labels that are chosen, not drawn at random
    WITH_TFIDF_CHOSEN = "with_tfidf_chosen"
    IN_CONTEXT = "in_context"  # a causal language model answers a prompt, without training
    TFIDF = "tfidf"  # logistic regression on TF-IDF, without a head start
    BLEND = "blend"  # a weighted mean of all candidates

    @property
    def is_frozen(self) -> bool:
        """Whether it reads features of a frozen network."""
        return self.drawn in (Use.PROBE, Use.WITH_TFIDF)

    @property
    def chooses_labels(self) -> bool:
        return self in _DRAWN

    @property
    def drawn(self) -> Use:
        """The same use with labels that are drawn at random."""
        return _DRAWN.get(self, self)

    @property
    def reads_tfidf(self) -> bool:
        return self.drawn in (Use.WITH_TFIDF, Use.TFIDF)


_DRAWN = {Use.PROBE_CHOSEN: Use.PROBE, Use.WITH_TFIDF_CHOSEN: Use.WITH_TFIDF}
_HOW = "write the name of a head start or ensemble, or NAME/USE, such as vectors/probe"
_WITHOUT_SOURCE = (Use.TFIDF, Use.BLEND)
FURTHER_USES = tuple(use for use in Use if use not in (Use.NETWORK, *_WITHOUT_SOURCE))  # after `NAME/`
RESERVED_NAMES = tuple(str(use) for use in _WITHOUT_SOURCE)  # no head start or ensemble has one of these


@dataclass(frozen=True)
class Arm:
    """A way to get a classifier from labels: what it starts from, and how that is used.

    Its one spelling, in YAML, figures and tables: `ulmfit`, `ulmfit/scratch`, `tfidf`.
    """

    source: str | None  # a head start or an ensemble; None: no head start
    use: Use = Use.NETWORK

    def __post_init__(self) -> None:
        assert (self.source is None) == (self.use in _WITHOUT_SOURCE), (self.source, self.use)

    def __str__(self) -> str:
        if self.source is None:
            return str(self.use)
        return self.source if self.use is Use.NETWORK else f"{self.source}/{self.use}"

    def using(self, use: Use) -> Arm:
        """The arm of the same source with another use."""
        return replace(self, use=use)

    @staticmethod
    def parse(text: str) -> Arm:
        """Read the spelling of an arm. Raises ValueError for one that cannot be."""
        if ":" in text:
            raise ValueError(f"{text} has a colon; write {text.replace(':', '/')}")
        source, slash, use = text.partition("/")
        if not source:
            raise ValueError(f"{text!r} names no head start; {_HOW}")
        if text in RESERVED_NAMES:
            return Arm(None, Use(text))
        if source in RESERVED_NAMES:
            raise ValueError(f"{text} is not an arm: {source} has no head start; write {source} alone")
        if not slash:
            return Arm(source)
        if use not in FURTHER_USES:
            raise ValueError(f"{text} has an unknown use {use!r}; {nearest(use, FURTHER_USES)}")
        return Arm(source, Use(use))


TFIDF = Arm(None, Use.TFIDF)
BLEND = Arm(None, Use.BLEND)


def _arm(value: object) -> Arm:
    if isinstance(value, Arm):
        return value
    if not isinstance(value, str):
        raise ValueError(f"this is not an arm; {_HOW}")
    return Arm.parse(value)


ArmSetting = Annotated[Arm, BeforeValidator(_arm), PlainSerializer(str)]
