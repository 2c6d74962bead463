"""`headstart serve` as its users meet it: over HTTP and in a browser, with replicas that die."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from typing import Any

import psutil
import pytest

from pipeline.distributed.cluster import free_port
from pipeline.execution.serve import TOKEN
from pipeline.inference.predict import Predictor
from tests.test_predict import export

pytestmark = [pytest.mark.ray, pytest.mark.slow]
pytest.importorskip("grpc_reflection", reason="Ray Serve is not installed whole (make test installs it)")

TEXTS = ["a b c", "d e f g", " ", "h j k", "l m n o p"]
START_S = 180.0


@dataclass(frozen=True)
class Answer:
    status: int
    body: str
    headers: Any

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Running:
    process: subprocess.Popen[str]
    address: str

    def ask(self, path: str, body: bytes | None = None, token: str | None = None) -> Answer:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        request = urllib.request.Request(f"{self.address}/{path}", body, headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return Answer(answer.status, answer.read().decode(), answer.headers)
        except urllib.error.HTTPError as error:
            return Answer(error.code, error.read().decode(), error.headers)

    def label(self, texts: list[str], words: int = 0, token: str | None = None) -> Answer:
        return self.ask("predict", json.dumps({"texts": texts, "words": words}).encode(), token)

    def replicas(self) -> list[psutil.Process]:
        descendants = psutil.Process(self.process.pid).children(recursive=True)
        return [each for each in descendants if "ServeReplica" in " ".join(each.cmdline())]


def serving(model: Path, folder: Path, *more: str, token: str = "") -> Iterator[Running]:
    port = free_port(8400 + os.getpid() % 1000)
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    environment |= {"RAY_AUTH_TOKEN_PATH": str(folder / "ray-token"), TOKEN: token}
    command = [sys.executable, "-m", "pipeline", "serve", "--model", str(model), "--port", str(port)]
    with (folder / "said").open("w+") as said:
        process = subprocess.Popen(
            [*command, "--precision", "fp32", *more], cwd=Path(__file__).parents[1], env=environment,
            text=True, stdout=said, stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            end = time.monotonic() + START_S
            while "labels texts as" not in (folder / "said").read_text():
                assert process.poll() is None, (folder / "said").read_text()
                assert time.monotonic() < end, (folder / "said").read_text()
                time.sleep(0.2)
            yield Running(process, f"http://127.0.0.1:{port}")
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(60)
            finally:
                process.kill()


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return export(tmp_path_factory.mktemp("model") / "ulmfit")


@pytest.fixture(scope="module")
def running(model, tmp_path_factory) -> Iterator[Running]:
    yield from serving(model, tmp_path_factory.mktemp("serving"), "--replicas", "2", "--max-texts", "5")


def test_it_answers_as_predict_does(running, model):
    predictor = Predictor.load(model, precision="fp32")
    found = running.label(TEXTS)
    assert found.status == 200
    expected = predictor.predict(TEXTS)
    for text, one, other in zip(TEXTS, found.json["predictions"], expected, strict=True):
        if text.strip():
            assert one["label"] == other.label
            assert one["probabilities"] == pytest.approx(other.probabilities, abs=1e-5)
        else:
            assert one == {"label": None, "probabilities": None}
    words = running.label(["a b c"], words=2).json["predictions"][0]["words"]
    assert {each["words"] for each in words} <= {"a", "b", "c"}


def test_many_clients_at_once_each_have_their_own_answer(running, model):
    texts = [" ".join(f"{k:06b}".replace("0", "a").replace("1", "c")) for k in range(60)]  # all are different
    expected = Predictor.load(model, precision="fp32").predict(texts)
    with ThreadPoolExecutor(16) as clients:
        found = list(clients.map(lambda text: running.label([text]), texts))
    assert {each.status for each in found} == {200}
    for one, other in zip(found, expected, strict=True):
        assert one.json["predictions"][0]["probabilities"] == pytest.approx(other.probabilities, abs=1e-5)


def test_what_it_refuses_has_a_status_and_a_reason(running):
    refused = running.label(6 * ["a"])
    assert (refused.status, "at most 5" in refused.json["error"]) == (413, True)
    assert running.ask("predict", b"a b c").status == 400


def test_it_tells_its_measures_and_those_of_its_replicas(running):
    running.label(["a b c"])
    end = time.monotonic() + 60
    while "ray_serve_replica_processing" not in (
        said := running.ask("metrics").body
    ):  # Ray collects them now and then
        assert time.monotonic() < end, said
        time.sleep(1)
    assert 'headstart_requests_total{status="200"}' in said


@pytest.mark.skipif(shutil.which("chromium") is None, reason="there is no Chromium here")
def test_a_browser_shows_label_probabilities_and_words(running, tmp_path):
    dom = subprocess.run(
        ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
         "--virtual-time-budget=15000", f"--user-data-dir={tmp_path / 'browser'}", "--dump-dom",
         f"{running.address}/#a%20b%20c"],
        capture_output=True, text=True, timeout=120,
    ).stdout  # fmt: skip
    answer = running.label(["a b c"], words=3).json["predictions"][0]
    assert f'<p id="label">{answer["label"]}</p>' in dom
    highest = max(answer["probabilities"].values())
    assert f"<span>{100 * highest:.1f}%</span>" in dom
    shown = re.search(r'<p class="words">(.*?)</p>', dom)
    assert shown is not None
    assert unescape(re.sub("<.*?>", "", shown[1])) == "a b c"
    assert shown[1].count("<span") == 3


def test_a_replica_that_is_killed_is_replaced_and_no_request_fails(running):
    before = {each.pid for each in running.replicas()}
    assert len(before) == 2
    with ThreadPoolExecutor(8) as clients:
        asked = [clients.submit(running.label, [TEXTS[number % 2]]) for number in range(100)]
        os.kill(min(before), signal.SIGKILL)
        asked += [clients.submit(running.label, [TEXTS[number % 2]]) for number in range(300)]
        assert {each.result().status for each in asked} == {200}
    end = time.monotonic() + 60
    while len({each.pid for each in running.replicas()} - {min(before)}) < 2:  # another one has begun
        assert time.monotonic() < end
        time.sleep(0.5)


def test_it_takes_a_token_and_ends_whole(model, tmp_path):
    service = serving(model, tmp_path, token="secret")
    running = next(service)
    assert running.label(["a"]).status == 401
    assert running.label(["a"], token="secret").status == 200
    processes = psutil.Process(running.process.pid).children(recursive=True)
    with ThreadPoolExecutor(4) as clients:
        long = " ".join("abcdefghjk" * 13)
        asked = [clients.submit(running.label, [long], 5, "secret") for _ in range(4)]
        time.sleep(0.05)  # they are on their way
        with pytest.raises(StopIteration):
            next(service)
        assert {each.result().status for each in asked} == {200}
    assert running.process.returncode == 0
    _, alive = psutil.wait_procs(processes, 30)
    assert alive == []
    assert "secret" not in (tmp_path / "said").read_text()
