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

from pipeline.inference.occlusion import words_that_moved
from pipeline.inference.predict import Prediction, Predictor
from pipeline.inference.thresholds import NO_GUARANTEES, Guarantees

MEASURED = "measured"  # in an answer: a row for the summary, which is no client's
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
class Asked:
    texts: Sequence[Sequence[str]]  # of each document
    words: int = 0
    guarantees: Guarantees = NO_GUARANTEES
    draws: Sequence[float | None] = ()  # a number for each document that is to be measured for a summary


def asked_in(body: bytes, num_texts: int, limits: Limits) -> Asked:
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
    documents = [_document(number, each, num_texts) for number, each in enumerate(texts, start=1)]
    characters = sum(len(text) for document in documents for text in document)
    if characters > limits.characters:
        raise RefusedError(
            413, f"the texts have {characters:,} characters; at most {limits.characters:,} go into a request"
        )
    return Asked(documents, words, Guarantees(_share(content, "most_wrong"), _share(content, "label_sets")))


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
    if not isinstance(texts, list) or not all(isinstance(each, str) for each in texts):
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


def answers(predictor: Predictor, requests: Sequence[Asked]) -> list[list[dict[str, Any]]]:
    """Answer some requests with one pass through the classifier: an object for each document of each.

    A document with a draw has its row for the summary under `MEASURED`.

    A document without words has `null` for label and probabilities, as in `headstart predict`.
    """
    probs = predictor.probabilities([each for asked in requests for each in asked.texts])
    ends = np.cumsum([len(asked.texts) for asked in requests])[:-1]
    return [
        _of_request(predictor, asked, part)
        for asked, part in zip(requests, np.split(probs, ends), strict=True)
    ]


def _of_request(predictor: Predictor, asked: Asked, probs: np.ndarray) -> list[dict[str, Any]]:
    said = predictor.thresholds(asked.guarantees).said(probs, predictor.label_names)
    answers_N = [
        _answer(predictor, document, predictor.prediction(row), each, asked.words)
        for document, row, each in zip(asked.texts, probs, said, strict=True)
    ]
    drawn = [
        k for k, draw in enumerate(asked.draws) if draw is not None and answers_N[k]["label"] is not None
    ]
    if drawn:
        measures = predictor.measures([asked.texts[k] for k in drawn], probs[drawn], predictor.known)
        for k, row in zip(drawn, measures, strict=True):
            answers_N[k][MEASURED] = (asked.draws[k], *map(float, row))
    return answers_N


def _answer(
    predictor: Predictor, document: Sequence[str], prediction: Prediction, said: dict[str, Any], words: int
) -> dict[str, Any]:
    if not all(text.strip() for text in document):
        nothing = {"label": None, **dict.fromkeys(said), "probabilities": None}
        return nothing | ({"words": []} if words else {})
    answer: dict[str, Any] = {"label": prediction.label, **said, "probabilities": prediction.probabilities}
    if words:
        moved = words_that_moved(predictor, document, prediction.label)[:words]
        answer["words"] = [
            {"words": each.words, "text": each.text, "start": each.start, "by": each.by} for each in moved
        ]
    return answer
