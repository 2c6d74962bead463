"""The settings that each objective adds to `pretrain_lm` and `finetune_lm`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from pipeline.settings.section import Count, NonNegative, Positive, Section


class CausalSettings(Section):
    """Of language models that predict the next token."""

    batch_rows: Count = 64
    """Rows (lanes) of the global batch."""
    bptt: Annotated[int, Field(ge=2, lt=2**31)] = 70
    """Tokens per row and step through which gradients flow; their mean if variable_bptt is true."""
    variable_bptt: bool = True
    """Draw the tokens of each step around bptt, and scale the learning rate with them."""
    ar_alpha: NonNegative
    """Weight of activation regularisation (AR)."""
    tar_beta: NonNegative
    """Weight of temporal activation regularisation (TAR)."""
    sampled_words: Count | None = None
    """Words of the training softmax, drawn each step, plus the targets; null: all words."""


class MaskedSettings(Section):
    """Of language models that predict masked tokens."""

    batch_rows: Count
    """Rows of the global batch."""
    row_tokens: Annotated[int, Field(ge=8, lt=2**31)]
    """Tokens of a row, its start and end tokens included."""
    masked_share: Annotated[float, Field(gt=0, lt=1)]
    """Fraction of the tokens, without special ones, that is to be predicted."""
    whole_words: bool
    """Mask all tokens of a word or none."""
    next_sentence: bool
    """Train on pairs of passages, half of which follow one another, to tell which do."""


class WordVectorSettings(Section):
    """Of word vectors: skip-gram, CBOW and GloVe."""

    batch_rows: Count
    """Rows of the global batch."""
    row_tokens: Count
    """Tokens of a row, at most; glove: pairs of words that occur together."""
    window: Annotated[int, Field(ge=1, le=100)]
    """Words on either side of a centre, at most."""
    negatives: Count
    """Words that each pair is contrasted with, for skip_gram and cbow."""
    shared_negatives: Count
    """Words drawn for each block of 32 centres, which stand for its negatives."""
    subsample: Positive | None
    """Fraction of the text above which a word's occurrences are dropped at random; null: none are."""
    count_cap: Positive
    """glove: count from which a pair has full weight (x_max)."""


class TranslationSettings(Section):
    """Of translators."""

    batch_pairs: Count
    """Pairs of texts in the global batch."""
    max_tokens: Annotated[int, Field(ge=3, lt=2**31)]
    """Tokens of either text, its start and end included; longer ones are truncated."""


class BidirectionalSettings(Section):
    """Of language models that read in both directions, word by word."""

    batch_rows: Count
    """Rows of the global batch."""
    row_tokens: Annotated[int, Field(ge=8, lt=2**31)]
    """Tokens of a row, which are characters."""
    sampled_words: Count | None
    """Words of the training softmax, drawn each step, plus the targets; null: all words."""
