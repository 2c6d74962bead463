"""What the HTTP service may be asked, and what it answers; which server carries it is not known here.

A request is a JSON object: `texts`, a list of documents, and `words`, how many of each document's words that
moved its label most the answer should name.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pipeline.inference.occlusion import words_that_moved
from pipeline.inference.predict import Predictor

Document = str | list[str]


@dataclass(frozen=True)
class Limits:
    """Of one request."""

    texts: int = 256
    characters: int = 1_000_000  # of all its texts
    texts_with_words: int = 8  # each costs as many predictions as it has words

    @property
    def body_bytes(self) -> int:
        return 6 * self.characters + 65_536  # a character is at most six bytes of JSON: \u00e9


class RefusedError(Exception):
    """A request that is not answered, with the status of HTTP that says so."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


class Asked(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    texts: list[Document] = Field(min_length=1)
    words: int = Field(default=0, ge=0)


def asked_in(body: bytes, num_texts: int, limits: Limits) -> Asked:
    """Read a request. Raises RefusedError: 400 for what cannot be read, 413 for what is too large.

    Args:
        num_texts: how many texts of a document the classifier reads.
    """
    if len(body) > limits.body_bytes:
        raise RefusedError(413, f"the request is larger than {limits.body_bytes:,} bytes; send fewer texts")
    try:
        asked = Asked.model_validate_json(body)
    except ValidationError as error:
        raise RefusedError(400, _reason(error)) from error
    _check_size(asked, limits)
    for number, document in enumerate(asked.texts, start=1):
        given = 1 if isinstance(document, str) else len(document)
        if given != num_texts:
            raise RefusedError(
                400, f"document {number} has {given} texts, but the classifier reads {num_texts} of each"
            )
    return asked


def _check_size(asked: Asked, limits: Limits) -> None:
    most = limits.texts_with_words if asked.words else limits.texts
    if len(asked.texts) > most:
        beside = " with `words`" if asked.words else ""
        raise RefusedError(
            413, f"the request has {len(asked.texts):,} texts; at most {most:,}{beside} go into one"
        )
    characters = sum(len(each) if isinstance(each, str) else sum(map(len, each)) for each in asked.texts)
    if characters > limits.characters:
        raise RefusedError(
            413, f"the texts have {characters:,} characters; at most {limits.characters:,} go into a request"
        )


def _reason(error: ValidationError) -> str:
    """What is wrong with a request, without repeating what was sent."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    place = ".".join(map(str, first["loc"]))
    said = first["msg"] if not place else f"{place}: {first['msg']}"
    return f'{said}; a request is {{"texts": ["a text", "another"], "words": 3}}, and `words` may be left out'


def check_token(given: str | None, wanted: str | None) -> None:
    """Raise RefusedError (401) unless the header `Authorization` has the token, or none is wanted."""
    if wanted is None:
        return
    if not secrets.compare_digest((given or "").encode(), f"Bearer {wanted}".encode()):
        raise RefusedError(401, "this service takes a token: send the header `Authorization: Bearer TOKEN`")


def answers(predictor: Predictor, requests: Sequence[Asked]) -> list[list[dict[str, Any]]]:
    """Answer some requests with one pass through the classifier: an object for each document of each.

    A document without words has `null` for label and probabilities, as in `headstart predict`.
    """
    documents = [_parts(each) for asked in requests for each in asked.texts]
    predictions = iter(predictor.predict(documents))
    found = []
    for asked in requests:
        found.append([_answer(predictor, _parts(each), next(predictions), asked) for each in asked.texts])
    return found


def _parts(document: Document) -> list[str]:
    return [document] if isinstance(document, str) else document


def _answer(predictor: Predictor, document: list[str], prediction: Any, asked: Asked) -> dict[str, Any]:
    if not all(text.strip() for text in document):
        return {"label": None, "probabilities": None} | ({"words": []} if asked.words else {})
    answer = {"label": prediction.label, "probabilities": prediction.probabilities}
    if asked.words:
        moved = words_that_moved(predictor, document, prediction.label)[: asked.words]
        answer["words"] = [
            {"words": each.words, "text": each.text, "start": each.start, "by": each.by} for each in moved
        ]
    return answer
