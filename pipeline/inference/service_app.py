"""The addresses of the HTTP service, as an ASGI application in front of whatever labels."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, replace

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from pipeline.inference.answer import Answer
from pipeline.inference.service import LabelRequest, Limits, RefusedError, check_token, read_request
from pipeline.inference.service_page import page
from pipeline.inference.service_summary import ServiceSummary
from pipeline.inference.thresholds import Guarantees


@dataclass(frozen=True)
class Front:
    """All that the addresses need.

    Attributes:
        label: answers a request. May raise RefusedError, such as 429 where too many wait.
        measures: further measures for Prometheus, of what labels.
        is_up: whether anything can label now.
        check: raises ValueError if the classifier cannot say what is asked for.
        summary: counts and samples all documents; None: nothing does.
    """

    label: Callable[[LabelRequest], Awaitable[list[Answer]]]
    label_names: Sequence[str]
    num_texts: int
    limits: Limits
    token: str | None
    measures: Callable[[], Awaitable[str]]
    is_up: Callable[[], Awaitable[bool]]
    check: Callable[[Guarantees], object]
    summary: ServiceSummary | None = None

    def application(self, host: str) -> ASGIApp:
        """The application, where it listens on `host`.

        Without a token it answers to the names of this machine alone: under another one a page from elsewhere
        could have it answer through its reader's browser (DNS rebinding).
        """
        addresses = _Addresses(self)
        app = Starlette(
            routes=[
                Route("/", addresses.page),
                Route("/health", addresses.health),
                Route("/metrics", addresses.metrics),
                Route("/predict", addresses.predict, methods=["POST"]),
            ],
        )
        return app if self.token is not None else _under_names(app, {host, "localhost", "127.0.0.1", "::1"})


def _under_names(application: ASGIApp, names: Collection[str]) -> ASGIApp:
    async def checked(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            given = Headers(scope=scope).get("host", "")
            name = given[1:].partition("]")[0] if given.startswith("[") else given.partition(":")[0]
            if name not in names:
                await _refusal(RefusedError(400, "this service does not go by that name"))(
                    scope, receive, send
                )
                return
        await application(scope, receive, send)

    return checked


class _Addresses:
    def __init__(self, front: Front) -> None:
        self._front = front
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "headstart_requests", "Requests to predict, by status.", ["status"], registry=self._registry
        )
        self._documents = Counter(
            "headstart_documents", "Documents that were labelled.", ["label"], registry=self._registry
        )
        self._seconds = Histogram(
            "headstart_request_seconds", "Seconds of an answered request.", registry=self._registry
        )

    async def page(self, _: Request) -> Response:
        return HTMLResponse(page(self._front.num_texts, takes_token=self._front.token is not None))

    async def health(self, _: Request) -> Response:
        if not await self._front.is_up():
            return _refusal(RefusedError(503, "no replica is up; try again later"))
        return JSONResponse({"status": "ok", "labels": [*self._front.label_names]})

    async def metrics(self, request: Request) -> Response:
        try:
            check_token(request.headers.get("authorization"), self._front.token)
        except RefusedError as refused:
            return _refusal(refused)
        return PlainTextResponse(generate_latest(self._registry).decode() + await self._front.measures())

    async def predict(self, request: Request) -> Response:
        begun = time.monotonic()
        try:
            answers = await self._answers(request)
            response: Response = JSONResponse({"predictions": [answer.to_json() for answer in answers]})
            self._seconds.observe(time.monotonic() - begun)
        except RefusedError as refused:
            response = _refusal(refused)
        self._requests.labels(str(response.status_code)).inc()
        return response

    async def _answers(self, request: Request) -> list[Answer]:
        front = self._front
        check_token(request.headers.get("authorization"), front.token)
        wanted = read_request(await _body(request, front.limits.body_bytes), front.num_texts, front.limits)
        try:
            front.check(wanted.guarantees)
        except ValueError as error:
            raise RefusedError(400, str(error)) from error
        if front.summary is None:
            answers = await front.label(wanted)
        else:
            draws = front.summary.draws(len(wanted.texts))
            try:
                answers = await front.label(replace(wanted, draws=draws))
            except RefusedError:
                front.summary.withdraw(len(draws))
                raise
            front.summary.add(answers)
        for answer in answers:
            self._documents.labels(answer.label or "").inc()  # "": a document without words
        return answers


def _refusal(refused: RefusedError) -> Response:
    headers = {"Retry-After": "1"} if refused.status in (429, 503) else {}
    return JSONResponse({"error": refused.reason}, refused.status, headers)


async def _body(request: Request, most: int) -> bytes:
    """Read the body, but no more of it than may come."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > most:
            raise RefusedError(413, f"the request is larger than {most:,} bytes; send fewer texts")
    return bytes(body)
