"""Settings of `evaluate` in params.yaml."""

from __future__ import annotations

from typing import Annotated

from pydantic import (
    Field,
)

from pipeline.settings.section import CountOrZero, Section


class Evaluate(Section):
    bootstrap_samples: Annotated[int, Field(ge=1, le=1_000_000)]
    confidence: Annotated[float, Field(gt=0, lt=1)]
    calibration_bins: Annotated[int, Field(ge=1, le=10_000)]
    baseline_tfidf: bool
    confident_errors: CountOrZero  # how many to show, with texts and attributions
