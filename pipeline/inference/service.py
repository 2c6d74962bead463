"""The requests of the HTTP service and their answers; this module knows no server.

A request is a JSON object: `texts`, a list of documents; `words`, how many of each document's words that
moved its label most the answer should name; `most_wrong` and `label_sets`, which docs/serving.md explains.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.inference.answer import Answer
from pipeline.inference.predict import Predictor, has_words
from pipeline.inference.summary import Row
from pipeline.inference.thresholds import NO_GUARANTEES, Guarantees
from pipeline.inference.word_effects import WordEffect, words_that_moved

_FIELDS = {"texts", "words", "most_wrong", "label_sets"}
_FORM = (
    '{"texts": ["a text", "another"], "words": 3}, where `words` may be left out, and `most_wrong` and '
    "`label_sets` added"
)


@dataclass(frozen=True)
class Limits:
    """The limits of one request."""

    texts: int = 256
    characters: int = 1_000_000  # of all its texts
    texts_with_words: int = 8  # each costs as many predictions as it has words

    @property
    def body_bytes(self) -> int:
        return 12 * self.characters + 65_536  # a character is at most twelve bytes of JSON: \ud83d\ude00


class RefusedError(Exception):
    """A request that is not answered, with the status of HTTP that says so."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


@dataclass(frozen=True)
class LabelRequest:
    texts: Sequence[Sequence[str]]  # of each document
    words: int = 0
    guarantees: Guarantees = NO_GUARANTEES
    draws: Sequence[float | None] = ()  # a number for each document that is to be measured for a summary


def read_request(body: bytes, num_texts: int, limits: Limits) -> LabelRequest:
    """Read a request. Raises RefusedError: 400 for what cannot be read, 413 for what is too large.

    It ends at the first mistake, and a refusal does not repeat what was sent.

    Args:
        num_texts: how many texts of a document the classifier reads.
    """
    if len(body) > limits.body_bytes:
        raise RefusedError(413, f"the request is larger than {limits.body_bytes:,} bytes; send fewer texts")
    try:
        content = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RefusedError(400, f"the request is no JSON; it should be {_FORM}") from error
    if not isinstance(content, dict) or not {"texts"} <= content.keys() <= _FIELDS:
        raise RefusedError(400, f"the request should be {_FORM}")
    texts, words = content["texts"], content.get("words", 0)
    if not isinstance(texts, list) or not texts:
        raise RefusedError(400, f"`texts` should be a list of one text or more, as in {_FORM}")
    if not isinstance(words, int) or isinstance(words, bool) or words < 0:
        raise RefusedError(400, f"`words` should be a whole number, 0 or more, as in {_FORM}")
    _check_number(len(texts), words, limits)
    documents = [_document(number, given, num_texts) for number, given in enumerate(texts, start=1)]
    characters = sum(len(text) for document in documents for text in document)
    if characters > limits.characters:
        raise RefusedError(
            413, f"the texts have {characters:,} characters; at most {limits.characters:,} go into a request"
        )
    return LabelRequest(
        documents, words, Guarantees(_share(content, "most_wrong"), _share(content, "label_sets"))
    )


def _share(content: dict[str, Any], name: str) -> float | None:
    share = content.get(name)
    if share is not None and (type(share) is not float or not 0 < share < 1):
        raise RefusedError(400, f"`{name}` should be a number between 0 and 1")
    return share


def _check_number(count: int, words: int, limits: Limits) -> None:
    most = limits.texts_with_words if words else limits.texts
    if count > most:
        beside = " with `words`" if words else ""
        raise RefusedError(413, f"the request has {count:,} texts; at most {most:,}{beside} go into one")


def _document(number: int, given: Any, num_texts: int) -> list[str]:
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise RefusedError(400, f"document {number} is neither a text nor a list of texts")
    if len(texts) != num_texts:
        raise RefusedError(
            400, f"document {number} has {len(texts)} texts, but the classifier reads {num_texts} of each"
        )
    return texts


def check_token(given: str | None, wanted: str | None) -> None:
    """Raise RefusedError (401) unless the header `Authorization` has the token, or none is wanted."""
    if wanted is None:
        return
    if not secrets.compare_digest((given or "").encode(), f"Bearer {wanted}".encode()):
        raise RefusedError(401, "this service takes a token: send the header `Authorization: Bearer TOKEN`")


def answers(predictor: Predictor, requests: Sequence[LabelRequest]) -> list[list[Answer]]:
    """Answer some requests with one pass through the classifier: an answer for each document of each."""
    probs_NC = predictor.probabilities([document for request in requests for document in request.texts])
    ends = np.cumsum([len(request.texts) for request in requests])[:-1]
    return [
        _of_request(predictor, request, probs)
        for request, probs in zip(requests, np.split(probs_NC, ends), strict=True)
    ]


def _of_request(predictor: Predictor, request: LabelRequest, probs_NC: np.ndarray) -> list[Answer]:
    certainties = predictor.thresholds(request.guarantees).certainties(probs_NC, predictor.label_names)
    measured = _measured(predictor, request, probs_NC)
    answers = []
    for k, document in enumerate(request.texts):
        prediction = predictor.prediction(probs_NC[k]) if has_words(document) else None
        words: list[WordEffect] | None = [] if request.words else None
        if request.words and prediction:
            words = words_that_moved(predictor, document, prediction.label)[: request.words]
        answers.append(Answer(prediction, certainties[k], words, measured.get(k)))
    return answers


def _measured(predictor: Predictor, request: LabelRequest, probs_NC: np.ndarray) -> dict[int, Row]:
    """Return the rows for the summary, by document, of those that have a draw and words."""
    draws = {
        k: draw for k, draw in enumerate(request.draws) if draw is not None and has_words(request.texts[k])
    }
    if not draws:
        return {}
    chosen = [*draws]
    measures = predictor.measures([request.texts[k] for k in chosen], probs_NC[chosen], predictor.reference)
    return {k: (draws[k], *map(float, row)) for k, row in zip(chosen, measures, strict=True)}
