"""Settings of corpora, tokenizer and leakage in params.yaml."""

from __future__ import annotations

from itertools import combinations
from typing import Annotated, Literal

from pydantic import (
    Field,
    model_validator,
)

from pipeline.settings.section import Count, CountOrZero, Distinct, Fraction, Positive, Section, Threads

Direction = Literal["forward", "backward"]


class PydocsSource(Section):
    """Docstrings of the locked packages: real text on every machine."""

    kind: Literal["pydocs"]
    part: Literal["general", "target"]
    min_words: Count  # shorter documents are left out
    every: Count  # of the files, only each n-th is read


class FilesSource(Section):
    """Any files that polars can scan. Each split is a list of paths, globs or addresses."""

    kind: Literal["files"]
    format: Literal["parquet", "csv", "ndjson", "text", "auto"]  # auto: by each file's extension
    train: Annotated[list[str], Field(min_length=1)]
    validation: list[str]
    test: list[str]
    unlabelled: list[str]
    text_column: str
    label_column: str | None
    label_names: list[str] | None  # names of the integer labels 0, 1, ...; -1 then stands for no label
    encoding_errors: Literal["refuse", "replace", "skip"]  # rows that are not valid UTF-8
    text_pair_column: str | None = None  # a second text of each document, such as a hypothesis
    # Several answers to each text, of which the label names one: its number, from 0, or its column.
    choice_columns: Annotated[list[str], Field(min_length=2), Distinct] | None = None

    @property
    def further_columns(self) -> list[str]:
        """The columns of a document's texts behind the first one."""
        if self.choice_columns is not None:
            return self.choice_columns
        return [] if self.text_pair_column is None else [self.text_pair_column]

    @model_validator(mode="after")
    def _columns_and_names_fit(self) -> FilesSource:
        kind = "text_pair_column" if self.choice_columns is None else "choice_columns"
        named: list[tuple[str, str | None]] = [
            ("text_column", self.text_column),
            ("label_column", self.label_column),
            *((kind, column) for column in self.further_columns),
        ]
        for (one, column), (other, same) in combinations(named, 2):
            if column == same:
                raise ValueError(f"{one} and {other} are both {column!r}")
        if self.choice_columns is not None and self.text_pair_column is not None:
            raise ValueError("choice_columns and text_pair_column are both set; set one to null")
        if self.choice_columns is not None and self.label_column is None:
            raise ValueError("choice_columns are set, but no label_column, which tells the right one")
        if self.choice_columns is not None and len(self.label_names or self.choice_columns) != len(
            self.choice_columns
        ):
            raise ValueError(
                f"label_names are {len(self.label_names or ())}, for {len(self.choice_columns)} "
                "choice_columns; give one for each, or null"
            )
        if self.label_names is not None and self.label_column is None:
            raise ValueError("label_names are given, but label_column is null; set both or none")
        if self.label_names is not None and len(self.label_names) < 2:
            raise ValueError(f"label_names is {self.label_names}; a classifier needs at least two classes")
        return self


class GettextSource(Section):
    """Messages of installed programs and their translations, of GNU gettext's catalogues."""

    kind: Literal["gettext"]
    language: Annotated[str, Field(pattern=r"^[A-Za-z]{2,3}([_@][A-Za-z]+)*$")]  # de, pt_BR, sr@latin
    folders: Annotated[list[str], Field(min_length=1)]  # below which LANGUAGE/LC_MESSAGES/*.mo are looked for
    min_words: Count  # shorter messages are left out


class AlignedSource(Section):
    """Text files in UTF-8: each line of a source has its translation in that line of another file."""

    kind: Literal["aligned"]
    sources: Annotated[list[str], Field(min_length=1), Distinct]
    translations: Annotated[list[str], Field(min_length=1), Distinct]  # in the order of `sources`

    @model_validator(mode="after")
    def _as_many(self) -> AlignedSource:
        if len(self.sources) != len(self.translations):
            raise ValueError(
                f"sources are {len(self.sources)} files and translations {len(self.translations)}; name one "
                "for each"
            )
        return self


class Split(Section):
    """Fractions split off the training rows if the source gives no such split."""

    validation: Fraction
    test: Fraction

    @model_validator(mode="after")
    def _leaves_some(self) -> Split:
        if self.validation + self.test >= 1:
            raise ValueError(
                f"validation {self.validation} and test {self.test} leave nothing to train on; together they "
                "must be below 1"
            )
        return self


class Normalise(Section):
    unicode: Literal["NFC", "NFKC", "none"]
    html_breaks: bool  # `<br />` becomes a space
    control_characters: bool  # C0 and C1 controls become a space
    collapse_whitespace: bool
    lowercase: bool


class Corpus(Section):
    source: Annotated[PydocsSource | FilesSource | GettextSource | AlignedSource, Field(discriminator="kind")]
    split: Split
    normalise: Normalise
    max_documents: Count | None  # the first n training rows after a seeded shuffle


class Corpora(Section):
    general: Corpus
    target: Corpus
    translation: Corpus | None = None  # pairs of texts that a translator learns from; none by default

    @property
    def names(self) -> list[str]:
        """The corpora that there are, in the order of the route."""
        return [name for name in type(self).model_fields if getattr(self, name) is not None]


CorpusName = Literal["general", "target", "translation"]


class _TokenizerSection(Section):
    vocab_size: Annotated[int, Field(ge=10, le=1_000_000)]  # at most sentencepiece's seed pieces
    sample_mb: Positive  # most text, drawn with the seed, that trains the tokenizer
    threads: Threads  # fixed, as another number may break sentencepiece's ties differently


class SentencepieceTokenizer(_TokenizerSection):
    """Pieces of words, which sentencepiece learns."""

    kind: Literal["unigram", "bpe", "word", "char"]
    corpora: list[CorpusName] = Field(["general"], min_length=1)  # whose training text it learns
    character_coverage: Annotated[float, Field(ge=0.98, le=1)]  # the range that sentencepiece accepts
    byte_fallback: bool


class WordTokenizer(_TokenizerSection):
    """Whole words, numbers and punctuation marks: the most frequent ones of the sample."""

    kind: Literal["words"]
    corpora: list[CorpusName] = Field(["general", "target"], min_length=1)
    lowercase: bool
    min_count: Count  # rarer words are unknown


TrainedTokenizer = SentencepieceTokenizer | WordTokenizer


class ImportedTokenizer(Section):
    """A tokenizer that came with weights from elsewhere."""

    kind: Literal["imported"]
    file: Annotated[str, Field(min_length=1)]  # `tokenizer.json`, sentencepiece's `.model`, or their folder
    threads: Threads  # of sentencepiece


Tokenizer = Annotated[TrainedTokenizer | ImportedTokenizer, Field(discriminator="kind")]


class Leakage(Section):
    """How to handle test documents that occur in training text."""

    action: Literal["label", "drop", "stop"]  # note them beside the result, exclude them, or refuse
    ngram_words: Annotated[int, Field(ge=2, lt=2**31)]
    containment: Annotated[float, Field(gt=0, le=1)]  # of a document's n-grams, to count as a near duplicate
    examples: CountOrZero
