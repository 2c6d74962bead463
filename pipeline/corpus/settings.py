"""Settings of corpora, tokenizer and leakage in params.yaml."""

from __future__ import annotations

from itertools import combinations
from typing import Annotated, Literal, get_args

from pydantic import Field, model_validator

from pipeline.settings.section import Count, CountOrZero, Distinct, Fraction, Positive, Section, Threads

Direction = Literal["forward", "backward"]


class PydocsSource(Section):
    """Docstrings of the locked packages: real text on every machine."""

    kind: Literal["pydocs"]
    """Kind of source: pydocs, files, gettext or aligned."""
    part: Literal["general", "target"]
    """Which documentation: target (ten libraries, which are the labels) or general (all others)."""
    min_words: Count
    """Words; shorter documents are dropped."""
    every: Count = 1
    """Read only every n-th file, for a quick trial; 1 reads all."""


class FilesSource(Section):
    """Any files that polars can scan. Each split is a list of paths, globs or addresses."""

    kind: Literal["files"]
    """Kind of source: pydocs, files, gettext or aligned."""
    format: Literal["parquet", "csv", "ndjson", "text", "auto"] = "auto"
    """File format: parquet, csv, ndjson or text; auto goes by each file's extension."""
    train: Annotated[list[str], Field(min_length=1)]
    """Training files: paths, globs, or addresses (hf://, s3://, https://)."""
    validation: list[str] = []
    """Validation files; if empty, split.validation is split off the training rows."""
    test: list[str] = []
    """Test files; if empty, split.test is split off the training rows."""
    unlabelled: list[str] = []
    """Files of further text for the language models."""
    text_column: str = "text"
    """Column of the text."""
    label_column: str | None = None
    """Column of the label; null: there are no labels."""
    label_names: list[str] | None = None
    """Names of the integer labels 0, 1, ... (-1: no label); null: the values of the column."""
    encoding_errors: Literal["refuse", "replace", "skip"] = "refuse"
    """Treatment of rows that are not valid UTF-8: refuse, replace or skip."""
    text_pair_column: str | None = None
    """Column of a second text of each document, such as a hypothesis; null: there is one text."""
    choice_columns: Annotated[list[str], Field(min_length=2), Distinct] | None = None
    """Columns of answers; the label is the right one's number (from 0) or column; null: there are none."""

    @model_validator(mode="after")
    def _columns_and_names_fit(self) -> FilesSource:
        if self.choice_columns is not None and self.text_pair_column is not None:
            raise ValueError("choice_columns and text_pair_column are both set; set one to null")
        columns = [
            (name, getattr(self, name)) for name in ("text_column", "label_column", "text_pair_column")
        ]
        columns += [("choice_columns", column) for column in self.choice_columns or ()]
        for (one, column), (other, same) in combinations(columns, 2):
            if column is not None and column == same:
                raise ValueError(f"{one} and {other} are both {column!r}")
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
    """Kind of source: pydocs, files, gettext or aligned."""
    language: Annotated[str, Field(pattern=r"^[A-Za-z]{2,3}([_@][A-Za-z]+)*$")]
    """Language of the translations: de, pt_BR, sr@latin, ..."""
    folders: Annotated[list[str], Field(min_length=1)] = ["/usr/share/locale"]
    """Folders that hold LANGUAGE/LC_MESSAGES/*.mo."""
    min_words: Count = 3
    """Words; shorter messages are dropped."""


class AlignedSource(Section):
    """Text files in UTF-8: each line of a source has its translation in that line of another file."""

    kind: Literal["aligned"]
    """Kind of source: pydocs, files, gettext or aligned."""
    sources: Annotated[list[str], Field(min_length=1), Distinct]
    """Text files to translate from, one sentence a line."""
    translations: Annotated[list[str], Field(min_length=1), Distinct]
    """Text files of their translations, line by line, in the order of `sources`."""

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

    validation: Fraction = 0.02
    """Fraction of the training rows for validation, if the source has no validation split."""
    test: Fraction = 0.0
    """Fraction of the training rows for testing, if the source has no test split."""

    @model_validator(mode="after")
    def _leaves_some(self) -> Split:
        if self.validation + self.test >= 1:
            raise ValueError(
                f"validation {self.validation} and test {self.test} leave nothing to train on; together they "
                "must be below 1"
            )
        return self


class Normalise(Section):
    """How characters are unified before anything else reads them."""

    unicode: Literal["NFC", "NFKC", "none"] = "NFC"
    """Unicode normal form: NFC, NFKC or none."""
    html_breaks: bool = True
    """Replace `<br>`, `<br/>` and `<br />` by a space."""
    control_characters: bool = True
    """Replace control characters (C0, delete, C1) by a space; tab and newline stay."""
    collapse_whitespace: bool = True
    """Replace each run of white space by one space, and strip the ends."""
    lowercase: bool = False
    """Lowercase all text."""


class Corpus(Section):
    """The source of a corpus's text, and its treatment by `prepare`."""

    source: Annotated[PydocsSource | FilesSource | GettextSource | AlignedSource, Field(discriminator="kind")]
    """Source of the text."""
    split: Split = Split()
    """Fractions split off the training rows, where the source gives no such split."""
    normalise: Normalise = Normalise()
    """How characters are unified."""
    max_documents: Count | None = None
    """Keep the first n training rows of a seeded shuffle; null keeps all."""


def keys_of_source(kind: str | None) -> frozenset[str]:
    """The settings of a kind of source; none of a kind that there is not."""
    for source in get_args(Corpus.model_fields["source"].annotation):
        if get_args(source.model_fields["kind"].annotation) == (kind,):
            return frozenset(source.model_fields)
    return frozenset()


class Corpora(Section):
    """The corpora by name."""

    general: Corpus
    """General text, from which tokenizers and language models are trained."""
    target: Corpus
    """Text of your own domain, with labels."""
    translation: Corpus | None = None
    """Pairs of texts that a translator learns from; null: there are none."""

    @property
    def names(self) -> list[str]:
        """The corpora that there are, in the order of the route."""
        return [name for name in type(self).model_fields if getattr(self, name) is not None]


CorpusName = Literal["general", "target", "translation"]


VocabSize = Annotated[int, Field(ge=10, le=1_000_000)]  # at most sentencepiece's seed pieces


class _TokenizerSection(Section):
    vocab_size: VocabSize
    """Size of the vocabulary, in tokens; of whole words: at most."""
    sample_mb: Positive
    """Megabytes of training text, drawn with the seed, that the tokenizer learns from, at most."""
    threads: Threads = 2
    """Threads; fixed, because another number may break sentencepiece's ties differently."""


class SentencepieceTokenizer(_TokenizerSection):
    """Pieces of words, which sentencepiece learns."""

    vocab_size: VocabSize = 8000
    sample_mb: Positive = 20.0
    kind: Literal["unigram", "bpe", "word", "char"]
    """Kind of tokenizer: unigram, bpe, word or char (sentencepiece), words, or imported."""
    corpora: list[CorpusName] = Field(["general"], min_length=1)
    """Corpora whose training and unlabelled text it learns from."""
    character_coverage: Annotated[float, Field(ge=0.98, le=1)] = 0.9995
    """Fraction of the text's characters that the vocabulary covers, from 0.98 to 1."""
    byte_fallback: bool = True
    """Encode characters outside the vocabulary as bytes instead of one unknown token."""


class WordTokenizer(_TokenizerSection):
    """Whole words, numbers and punctuation marks: the most frequent ones of the sample."""

    vocab_size: VocabSize = 30_000
    sample_mb: Positive = 100.0
    kind: Literal["words"]
    """Kind of tokenizer: unigram, bpe, word or char (sentencepiece), words, or imported."""
    corpora: list[CorpusName] = Field(["general", "target"], min_length=1)
    """Corpora whose training and unlabelled text the words are taken from."""
    lowercase: bool = True
    """Lowercase words."""
    min_count: Count = 2
    """Occurrences in the sample; rarer words are unknown."""


TrainedTokenizer = SentencepieceTokenizer | WordTokenizer


class ImportedTokenizer(Section):
    """A tokenizer that came with weights from elsewhere."""

    kind: Literal["imported"]
    """Kind of tokenizer: unigram, bpe, word or char (sentencepiece), words, or imported."""
    file: Annotated[str, Field(min_length=1)]
    """`tokenizer.json`, sentencepiece's `.model`, or the folder of either."""
    threads: Threads = 2
    """Threads of sentencepiece."""


Tokenizer = Annotated[TrainedTokenizer | ImportedTokenizer, Field(discriminator="kind")]


class Leakage(Section):
    """How to handle test documents that occur in training text."""

    action: Literal["label", "drop", "stop"] = "label"
    """Treatment: label (a note beside the result), drop (they are excluded) or stop (no evaluation)."""
    ngram_words: Annotated[int, Field(ge=2, lt=2**31)] = 8
    """Words of an n-gram."""
    containment: Annotated[float, Field(gt=0, le=1)] = 0.5
    """Fraction of a document's n-grams in one training document that makes it a near duplicate."""
    examples: CountOrZero = 5
    """Leaked documents to list."""
