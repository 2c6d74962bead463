"""The answers of bulk labelling: a table with a row for each document, and its forms in JSON and CSV."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl

from pipeline.evaluation.reference import MEASURES
from pipeline.inference import bulk_input
from pipeline.inference.bulk_input import PROBABILITY, Request
from pipeline.inference.predict import Predictor, has_words, in_batches
from pipeline.inference.summary import may_be_sampled
from pipeline.inference.thresholds import NOT_ASKED
from pipeline.inference.word_effects import words_that_moved

# A document's row for the summary, null where it is not in the sample. The output has no such columns.
SUMMARY_COLUMNS = [f"seen:{name}" for name in ("draw", *MEASURES)]
_WORDS = pl.List(pl.Struct({"words": pl.String, "moved": pl.Float64}))


def answer_rows(rows: pl.DataFrame, predictor: Predictor, request: Request, num_before: int) -> pl.DataFrame:
    """Return the rows of the output for rows of the input, which has `num_before` documents before them."""
    texts = ["text", *(f"text_{number}" for number in range(1, predictor.num_texts))]
    documents = [tuple(text or "" for text in row) for row in rows.select(texts).rows()]
    have_words = np.array([has_words(document) for document in documents], dtype=bool)
    probs_NC = np.concatenate([predictor.probabilities(batch) for batch in in_batches(documents)])
    labels = [
        predictor.label_names[index] if has else None
        for index, has in zip(probs_NC.argmax(1), have_words, strict=True)
    ]
    kept = [name for name in rows.columns if name.startswith("kept:")]
    answers = rows.select("file", "row", *(pl.col(name).alias(name.removeprefix("kept:")) for name in kept))
    if request.with_text:
        answers = answers.with_columns(pl.Series("text", ["\t".join(document) for document in documents]))
    answers = answers.with_columns(
        pl.Series("label", labels, dtype=pl.String),
        *_certainty_columns(predictor, request, probs_NC, have_words),
        *(
            pl.Series(f"{PROBABILITY}{name}", np.where(have_words, column, np.nan)).fill_nan(None)
            for name, column in zip(predictor.label_names, probs_NC.T, strict=True)
        ),
    )
    if request.summary is not None:
        columns = _summary_columns(predictor, rows, documents, probs_NC, have_words, num_before)
        answers = answers.with_columns(columns)
    if not request.num_words:
        return answers
    words = [
        None if label is None else _words(predictor, document, label, request.num_words)
        for document, label in zip(documents, labels, strict=True)
    ]
    return answers.with_columns(pl.Series("words", words, dtype=_WORDS))


def _certainty_columns(
    predictor: Predictor, request: Request, probs_NC: np.ndarray, have_words: np.ndarray
) -> list[pl.Series]:
    """Return the columns `sure` and `labels`, if they are asked for; null for a document without words."""
    thresholds = predictor.thresholds(request.guarantees)
    certainties = [
        certainty if has else NOT_ASKED
        for certainty, has in zip(
            thresholds.certainties(probs_NC, predictor.label_names), have_words, strict=True
        )
    ]
    columns = []
    if thresholds.least_confidence is not None:
        sure = [certainty.sure for certainty in certainties]
        columns.append(pl.Series("sure", sure, pl.Boolean))
    if thresholds.least_probability is not None:
        columns.append(
            pl.Series("labels", [certainty.labels for certainty in certainties], pl.List(pl.String))
        )
    return columns


def _summary_columns(
    predictor: Predictor, rows: pl.DataFrame, documents: Sequence[tuple[str, ...]], probs_NC: np.ndarray,
    have_words: np.ndarray, num_before: int,
) -> list[pl.Series]:  # fmt: skip
    """Return the draws and measures of the documents that may be in the summary's sample, null of others."""
    part_rows = bulk_input.PART_ROWS
    file, numbers = rows["file"][0], rows["row"].to_numpy()
    part = (int(numbers[0]) - 1) // part_rows  # a part's draws are its own, whoever labels it
    draws_of_part = np.random.default_rng((zlib.crc32(file.encode()), part)).random(part_rows)
    draws = draws_of_part[(numbers - 1) % part_rows]
    chosen = np.flatnonzero(may_be_sampled(draws, num_before + np.arange(1, len(rows) + 1)) & have_words)
    columns_NM = np.full((len(documents), len(SUMMARY_COLUMNS)), np.nan)
    columns_NM[chosen, 0] = draws[chosen]
    if len(chosen):
        sampled = [documents[int(k)] for k in chosen]
        columns_NM[chosen, 1:] = predictor.measures(sampled, probs_NC[chosen], predictor.reference)
    return [
        pl.Series(name, column).fill_nan(None)
        for name, column in zip(SUMMARY_COLUMNS, columns_NM.T, strict=True)
    ]


def _words(
    predictor: Predictor, document: Sequence[str], label: str, most: int
) -> list[dict[str, str | float]]:
    effects = words_that_moved(predictor, document, label)[:most]
    return [{"words": effect.words, "moved": effect.by} for effect in effects]


def as_json(answers: pl.DataFrame | pl.LazyFrame) -> Any:
    """Put the probabilities into an object, by label, as `headstart predict` prints them."""
    answers = answers.drop(SUMMARY_COLUMNS, strict=False)
    columns = answers.collect_schema().names()
    names = [name for name in columns if name.startswith(PROBABILITY)]
    by_label = pl.struct(pl.col(name).alias(name.removeprefix(PROBABILITY)) for name in names)
    has_label = pl.col("label").is_not_null()
    packed = answers.with_columns(pl.when(has_label).then(by_label).alias("probabilities"))
    return packed.select(pl.exclude(*names, "words"), *(["words"] if "words" in columns else []))


def as_csv(answers: pl.LazyFrame) -> pl.LazyFrame:
    """Write the lists of a document as one text: `price 0.213; poor -0.021`."""
    columns = answers.collect_schema().names()
    if "labels" in columns:
        answers = answers.with_columns(pl.col("labels").list.join("; "))
    if "words" not in columns:
        return answers
    moved = pl.element().struct.field("moved").round(4)
    effect = pl.format("{} {}", pl.element().struct.field("words"), moved)
    return answers.with_columns(pl.col("words").list.eval(effect).list.join("; "))
