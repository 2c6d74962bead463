"""The HTTP service without a Ray: what it accepts, refuses and answers."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uvicorn

from pipeline.__main__ import main
from pipeline.evaluation.trust import Judged
from pipeline.execution import serve
from pipeline.inference.answer import Answer
from pipeline.inference.predict import Prediction, Predictor
from pipeline.inference.service import LabelRequest, Limits, RefusedError, answers, check_token, read_request
from pipeline.inference.service_app import Front
from pipeline.inference.service_page import page
from pipeline.inference.thresholds import Guarantees, thresholds
from tests.test_predict import export

JUDGED = Judged(np.linspace(0.5, 1, 400), np.arange(400) > 30, np.linspace(0.3, 1, 400))
LIMITS = Limits(texts=3, characters=100, texts_with_words=2)


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return export(tmp_path_factory.mktemp("model") / "ulmfit")


@pytest.fixture(scope="module")
def predictor(model) -> Predictor:
    return Predictor.load(model, precision="fp32")


def test_a_request_is_read():
    asked = read_request(b'{"texts": ["a b", "c"], "words": 2}', 1, LIMITS)
    assert (asked.texts, asked.words) == ([["a b"], ["c"]], 2)
    cautious = read_request(b'{"texts": ["a"], "most_wrong": 0.05, "label_sets": 0.9}', 1, LIMITS)
    assert cautious.guarantees == Guarantees(0.05, 0.9)
    assert read_request('{"texts": [["é", "c"]]}'.encode(), 2, LIMITS).words == 0


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        (b"a b", 400, "is no JSON"),
        (b'{"texts": ["\xff"]}', 400, "is no JSON"),
        (b"[" * 50_000, 400, "is no JSON"),
        (b"[]", 400, "should be {"),
        (b'{"text": ["a"]}', 400, "should be {"),
        (b'{"texts": ["a"], "word": 1}', 400, "should be {"),
        (b'{"texts": []}', 400, "`texts` should be a list of one text or more"),
        (b'{"texts": "a"}', 400, "`texts` should be a list of one text or more"),
        (b'{"texts": [1]}', 400, "document 1 is neither a text nor a list of texts"),
        (b'{"texts": ["a", [1]]}', 400, "document 2 is neither a text nor a list of texts"),
        (b'{"texts": ["a"], "words": -1}', 400, "`words` should be a whole number"),
        (b'{"texts": ["a"], "words": true}', 400, "`words` should be a whole number"),
        (b'{"texts": ["a"], "most_wrong": 1}', 400, "`most_wrong` should be a number between 0 and 1"),
        (b'{"texts": ["a"], "label_sets": "0.9"}', 400, "`label_sets` should be a number between 0 and 1"),
        (b'{"texts": ["a"], "label_sets": NaN}', 400, "`label_sets` should be a number between 0 and 1"),
        (b'{"texts": [["a", "b"]]}', 400, "document 1 has 2 texts, but the classifier reads 1 of each"),
        (b'{"texts": ["a", "b", "c", "d"]}', 413, "has 4 texts; at most 3 go"),
        (b'{"texts": ["a", "b", "c"], "words": 1}', 413, "has 3 texts; at most 2 with `words` go"),
        (b'{"texts": ["%s"]}' % (101 * b"a"), 413, "have 101 characters; at most 100 go"),
        (b" " * (LIMITS.body_bytes + 1), 413, "larger than 66,736 bytes"),
    ],
)  # fmt: skip
def test_what_cannot_be_answered_is_refused_with_a_status_and_a_reason(body, status, reason):
    with pytest.raises(RefusedError) as refused:
        read_request(body, 1, LIMITS)
    assert refused.value.status == status
    assert reason in refused.value.reason


def test_a_refusal_does_not_repeat_what_was_sent():
    with pytest.raises(RefusedError) as refused:
        read_request(b'{"texts": [{"secret": "of a customer"}]}', 1, LIMITS)
    assert "customer" not in refused.value.reason


def test_a_body_of_mistakes_is_refused_at_the_first_one():
    body = b'{"texts": [' + b"1," * 200 + b"1]}"
    with pytest.raises(RefusedError, match="document 1 is"):
        read_request(body, 1, Limits(texts=1_000))


def test_the_largest_allowed_request_fits_into_a_body():
    limits = Limits(texts=1, characters=100_000)
    body = json.dumps({"texts": ["\U0001f600" * 100_000]}).encode()
    assert len(body) > 1_200_000  # each is escaped as two halves
    assert read_request(body, 1, limits).texts == [["\U0001f600" * 100_000]]


def test_a_token_is_wanted_if_there_is_one():
    check_token(None, None)
    check_token("Bearer secret", "secret")
    for given in (
        None,
        "",
        "secret",
        "Bearer",
        "Bearer secre",
        "Bearer secret2",
        "Basic secret",
        "Bearer sécret",
    ):
        with pytest.raises(RefusedError, match="Authorization: Bearer TOKEN") as refused:
            check_token(given, "secret")
        assert refused.value.status == 401


def test_requests_are_answered_together_as_each_alone(predictor):
    requests = [
        LabelRequest([["a b c"], [" "]]),
        LabelRequest([["d e f"]], words=2),
        LabelRequest([[""]], words=1),
    ]
    together = [[answer.to_json() for answer in own] for own in answers(predictor, requests)]
    assert together[0][0]["label"] == predictor.predict(["a b c"])[0].label
    assert together[0][1] == {"label": None, "probabilities": None}
    assert together[2] == [{"label": None, "probabilities": None, "words": []}]
    moved = together[1][0]["words"]
    assert abs(moved[0]["by"]) >= abs(moved[1]["by"])
    assert len(moved) == 2
    without = predictor.probabilities(["d e f".replace(moved[0]["words"], "")])
    column = predictor.label_names.index(together[1][0]["label"])
    whole = together[1][0]["probabilities"][together[1][0]["label"]]
    assert moved[0]["by"] == pytest.approx(whole - without[0, column], abs=1e-5)
    for asked, found in zip(requests, together, strict=True):
        (alone,) = answers(predictor, [asked])
        for one, other in zip(alone, found, strict=True):
            assert one.label == other["label"]
            assert one.to_json()["probabilities"] == pytest.approx(other["probabilities"])


def test_the_page_asks_for_each_text_and_for_a_token_where_one_is_wanted():
    assert page(1, takes_token=False).count("<textarea") == 1
    assert 'id="token"' not in page(1, takes_token=False)
    assert page(2, takes_token=True).count("<textarea") == 2
    assert 'id="token"' in page(2, takes_token=True)
    assert "://" not in page(1, takes_token=True)  # nothing from elsewhere


# ---------------------------------------------------------------------------------------- the command


def refusal(capsys, monkeypatch, *words: str) -> str:
    monkeypatch.setattr("sys.argv", ["headstart", "serve", *words])
    with pytest.raises(SystemExit, match="2"):
        main()
    return " ".join(capsys.readouterr().err.split())


@pytest.fixture(autouse=True)
def ray_serve_is_installed(monkeypatch):
    monkeypatch.setattr(serve.importlib.util, "find_spec", lambda name: object())


def test_others_may_only_reach_it_with_a_token(capsys, monkeypatch, model):
    monkeypatch.delenv(serve.TOKEN, raising=False)
    said = refusal(capsys, monkeypatch, "--host", "0.0.0.0", "--model", str(model))
    assert "others can reach 0.0.0.0; set HEADSTART_SERVE_TOKEN or --token-file" in said


@pytest.mark.parametrize(
    ("host", "found"),
    [("127.0.0.1", True), ("127.1.2.3", True), ("::1", True), ("localhost", True), ("0.0.0.0", False),
     ("::", False), ("192.168.1.4", False), ("example.org", False)],
)  # fmt: skip
def test_which_addresses_only_this_machine_reaches(host, found):
    assert serve._is_loopback(host) == found


def test_a_token_file_has_a_token(tmp_path, capsys, monkeypatch, model):
    file = tmp_path / "token"
    file.write_text("\n")
    assert "is empty; write the token into it" in refusal(
        capsys, monkeypatch, "--token-file", str(file), "--model", str(model)
    )
    for content in (b"t\xc3\xb6k\xc3\xa9n", b"two\nlines", b"two words"):
        file.write_bytes(content)
        assert "other letters than ASCII's, or spaces" in refusal(
            capsys, monkeypatch, "--token-file", str(file), "--model", str(model)
        )
    for place in (tmp_path / "missing", tmp_path):
        assert "cannot be read as a token" in refusal(
            capsys, monkeypatch, "--token-file", str(place), "--model", str(model)
        )
    file.write_text("secret\n")
    assert serve._token(file) == "secret"
    monkeypatch.setenv(serve.TOKEN, "other")
    assert serve._token(None) == "other"


def test_a_ray_without_tokens_is_refused(capsys, monkeypatch, model):
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert "RAY_AUTH_MODE is not token" in refusal(capsys, monkeypatch, "--model", str(model))


def test_a_port_that_is_taken_is_named(capsys, monkeypatch, model):
    with serve.socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        said = refusal(capsys, monkeypatch, "--port", str(port), "--model", str(model))
    assert f"cannot listen on 127.0.0.1, port {port}: Address already in use" in said


def test_a_folder_without_a_classifier_is_refused_before_ray_starts(tmp_path, capsys, monkeypatch):
    assert "is no finished checkpoint or model" in refusal(
        capsys, monkeypatch, "--port", "8765", "--model", str(tmp_path)
    )


def test_without_ray_serve_the_extra_is_named(capsys, monkeypatch, model):
    monkeypatch.setattr(serve.importlib.util, "find_spec", lambda name: None)
    assert 'run pip install "headstart[serve]"' in refusal(capsys, monkeypatch, "--model", str(model))


# ---------------------------------------------------------------------------------------- the addresses


@contextlib.contextmanager
def listening(front: Front) -> Iterator[str]:
    """The application behind a real server."""
    with serve._listening("127.0.0.1", 0) as listener:
        server = uvicorn.Server(
            uvicorn.Config(front.application("127.0.0.1"), log_level="warning", lifespan="off")
        )
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


def asked_of(address: str, body: bytes | None = None, **headers: str) -> tuple[int, str, Any]:
    try:
        with urllib.request.urlopen(urllib.request.Request(address, body, headers), timeout=30) as answer:
            return answer.status, answer.read().decode(), answer.headers
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(), error.headers


async def no_measures() -> str:
    return "ray_serve_something 1\n"


def front_of(label: Callable[[LabelRequest], Awaitable[Any]], token: str | None = None) -> Front:
    return Front(
        label, ["no", "yes"], 1, LIMITS, token, no_measures, is_up, partial(thresholds, judged=JUDGED)
    )


async def is_up() -> bool:
    return True


async def always_yes(asked: LabelRequest) -> list[Answer]:
    yes = Prediction("yes", {"no": 0.25, "yes": 0.75})
    return [Answer(yes if text else None) for (text,) in asked.texts]


def test_answers_refusals_and_measures_come_with_their_status():
    with listening(front_of(always_yes)) as address:
        status, body, _ = asked_of(f"{address}/predict", b'{"texts": ["a", ""]}')
        assert (status, [each["label"] for each in json.loads(body)["predictions"]]) == (200, ["yes", None])
        assert asked_of(f"{address}/predict", b"no JSON")[0] == 400
        assert asked_of(f"{address}/predict", b" " * 200_000)[0] == 413
        assert asked_of(f"{address}/predict")[0] == 405
        assert asked_of(f"{address}/nothing")[0] == 404
        assert asked_of(f"{address}/health", Host="elsewhere.example")[0] == 400
        assert asked_of(f"{address}/health", Host="[::1]:8000")[0] == 200
        assert json.loads(asked_of(f"{address}/health")[1]) == {"status": "ok", "labels": ["no", "yes"]}
        assert "<textarea" in asked_of(f"{address}/")[1]
        measures = asked_of(f"{address}/metrics")[1]
    for line in (
        'headstart_requests_total{status="200"} 1.0', 'headstart_requests_total{status="400"} 1.0',
        'headstart_requests_total{status="413"} 1.0', 'headstart_documents_total{label="yes"} 1.0',
        'headstart_documents_total{label=""} 1.0', "headstart_request_seconds_count 1.0",
        "ray_serve_something 1",
    ):  # fmt: skip
        assert f"{line}\n" in measures


def test_health_tells_whether_anything_can_answer():
    async def is_down() -> bool:
        return False

    with listening(dataclasses.replace(front_of(always_yes), is_up=is_down)) as address:
        assert asked_of(f"{address}/health")[0] == 503


def test_too_many_are_told_when_to_come_back():
    async def busy(asked: LabelRequest) -> Any:
        raise RefusedError(429, "too many requests wait; try again in a second")

    with listening(front_of(busy)) as address:
        status, body, headers = asked_of(f"{address}/predict", b'{"texts": ["a"]}')
    assert (status, headers["Retry-After"]) == (429, "1")
    assert "too many requests" in json.loads(body)["error"]


def test_only_holders_of_the_token_are_answered():
    with listening(front_of(always_yes, token="secret")) as address:
        for path, body in (("predict", b'{"texts": ["a"]}'), ("metrics", None)):
            assert asked_of(f"{address}/{path}", body)[0] == 401
            assert asked_of(f"{address}/{path}", body, Authorization="Bearer guess")[0] == 401
            assert asked_of(f"{address}/{path}", body, Authorization="Bearer secret")[0] == 200
        assert asked_of(f"{address}/health", Host="server.example")[0] == 200
        assert 'id="token"' in asked_of(f"{address}/")[1]
