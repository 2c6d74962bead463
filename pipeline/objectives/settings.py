"""The settings that each objective adds to `pretrain_lm` and `finetune_lm`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from pipeline.settings.section import Count, NonNegative, Positive, Section


class CausalSettings(Section):
    batch_rows: Count  # rows (lanes) of the global batch
    bptt: Annotated[int, Field(ge=2, lt=2**31)]  # mean tokens per row and step
    variable_bptt: bool
    ar_alpha: NonNegative
    tar_beta: NonNegative
    sampled_words: Count | None  # of the training softmax: about so many and the targets; null: all


class MaskedSettings(Section):
    batch_rows: Count  # rows of the global batch
    row_tokens: Annotated[int, Field(ge=8, lt=2**31)]  # of a row, its start and end tokens included
    masked_share: Annotated[float, Field(gt=0, lt=1)]  # of the tokens that are not special
    whole_words: bool  # all tokens of a word are chosen, or none
    next_sentence: bool  # rows are pairs of passages, half of which follow one another


class WordVectorSettings(Section):
    batch_rows: Count  # rows of the global batch
    row_tokens: Count  # tokens of a row, at most; for glove, pairs of words that occur together
    window: Annotated[int, Field(ge=1, le=100)]  # words on either side of a centre, at most
    negatives: Count  # words that each pair is contrasted with; for skip_gram and cbow
    shared_negatives: Count  # words drawn for each block of 32 centres, to stand for these
    subsample: Positive | None  # words of a larger share of the text are dropped at random; null: none
    count_cap: Positive  # for glove: x_max, the count from which on a pair has full weight


class TranslationSettings(Section):
    batch_pairs: Count  # pairs of texts in the global batch
    max_tokens: Annotated[int, Field(ge=3, lt=2**31)]  # of either text, its start and end included


class BidirectionalSettings(Section):
    batch_rows: Count  # rows of the global batch
    row_tokens: Annotated[int, Field(ge=8, lt=2**31)]  # of a row
    sampled_words: Count | None  # of the training softmax: about so many and the targets; null: all
