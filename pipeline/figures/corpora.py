"""The figures of the stages that make corpora and tokenizers."""

from __future__ import annotations

from pipeline.figures.estimates import Figure


class TextSize(Figure):
    """The size of a split: white-space words and UTF-8 bytes of the normalised text."""

    num_documents: int
    num_words: int
    num_bytes: int


class PrepareFigures(Figure):
    """The figures of `prepare`."""

    num_classes: int
    splits: dict[str, TextSize]
    skipped: dict[str, int]  # rows that were left out, by reason
    repaired: dict[str, int]
    remarks: list[str]
    origins: dict[str, int]  # rows by where they come from, the most first


class TokenizerFigures(Figure):
    """The figures of `train_tokenizer`. An imported tokenizer has no sample."""

    kind: str
    vocab_size: int
    sha256: str
    sample_documents: int | None = None
    sample_bytes: int | None = None
    train_documents: int | None = None
    train_bytes: int | None = None


class TokenizedSize(TextSize):
    num_tokens: int


class VocabularyFigures(Figure):
    """How a tokenizer fits a text, document start and end aside."""

    byte_share: float  # share of tokens that are bytes of an unknown character
    bytes_per_token: float
    tokens_per_word: float
    unknown_share: float  # share of unknown tokens; 0 with byte fallback
    vocabulary_used: float  # share of pieces that occur, special ones aside


class EncodeFigures(Figure):
    """The figures of `encode`."""

    splits: dict[str, TokenizedSize]
    vocabulary: VocabularyFigures


class LeakCounts(Figure):
    """Test documents that are also in a text."""

    num_leaked: int
    num_exact: int  # word for word
    num_near: int


class LeakExample(Figure):
    """A test document, and the training document that is nearly the same."""

    source: str
    containment: float
    test_text: str
    training_text: str


class LeakFigures(LeakCounts):
    """The figures of `find_leaks`."""

    num_test_documents: int
    share: float
    sources: dict[str, LeakCounts]
    examples: list[LeakExample]
