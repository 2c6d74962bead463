"""The settings that each objective adds to `pretrain_lm` and `finetune_lm`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from pipeline.settings.section import Count, NonNegative, Section


class CausalSettings(Section):
    batch_rows: Count  # rows (lanes) of the global batch
    bptt: Annotated[int, Field(ge=2, lt=2**31)]  # mean tokens per row and step
    variable_bptt: bool
    ar_alpha: NonNegative
    tar_beta: NonNegative
    sampled_words: Count | None  # of the training softmax: about so many and the targets; null: all
