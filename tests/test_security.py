"""The promises of SECURITY.md, held against our source and real stages that are given secrets."""

from __future__ import annotations

import ast
import base64
import csv
import http.server
import json
import os
import pickletools
import random
import secrets
import socket
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, quote_plus

import psutil
import pytest

from pipeline.terminal.redaction import redact
from tests.checkout import copy_checkout

ROOT = Path(__file__).resolve().parent.parent


# --------------------------------------------------------------------------------------- our source

# Our YAML parser is ruamel, which makes plain values unless `typ` says otherwise.
_NO_IMPORTS = {
    "pickle",
    "_pickle",
    "cloudpickle",
    "dill",
    "joblib",
    "marshal",
    "shelve",
    "jsonpickle",
    "yaml",
}
_NO_CALLS = {
    "eval", "exec", "compile", "__import__", "os.system", "os.popen", "torch.save", "tempfile.mktemp",
    "shutil.unpack_archive",
    "ssl._create_unverified_context", "subprocess.getoutput", "subprocess.getstatusoutput",
    "importlib.import_module", "runpy.run_path", "runpy.run_module", "torch.hub.load", "torch.jit.load",
}  # fmt: skip
_NO_METHODS = {"extractall", "extract", "read_pickle", "to_pickle", "tostring_pickle"}
_NO_KEYWORDS = {"shell": False, "allow_pickle": False, "verify": True, "weights_only": True}

# Each with the reason why it is safe.
_ALLOWED = {
    ("models/family.py", "importlib.import_module"),  # the name is one of the files in the folder
    ("pipeline/execution/run_stage.py", "importlib.import_module"),  # the name is a stage of the command line
    # The name is one of the files in the folder.
    ("pipeline/report/sections/studies/__init__.py", "importlib.import_module"),
    ("pipeline/weights/fastai.py", "pickle.UnpicklingError"),  # an error that torch raises
    ("pipeline/execution/lr_find.py", "importlib.import_module"),  # the name is a training stage
    ("pipeline/objectives/lookup.py", "importlib.import_module"),  # the name is one of the files there
    ("benchmarks/scaling.py", "torch.save"),  # three numbers, read with weights_only
}


def findings(source: str) -> Iterator[str]:
    """Imports and calls in a source that can run code from a file or trust any server."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] in _NO_IMPORTS)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in _NO_IMPORTS:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call):
            yield from findings_in_call(node)


def findings_in_call(node: ast.Call) -> Iterator[str]:
    name = ast.unparse(node.func)
    if name in _NO_CALLS or (isinstance(node.func, ast.Attribute) and node.func.attr in _NO_METHODS):
        yield name
    given = {keyword.arg: keyword.value for keyword in node.keywords}
    for keyword, wanted in _NO_KEYWORDS.items():
        value = given.get(keyword)
        if value is not None and not (isinstance(value, ast.Constant) and value.value is wanted):
            yield f"{name}({keyword}={ast.unparse(value)})"
    if name == "torch.load" and "weights_only" not in given:
        yield "torch.load without weights_only"
    if name.endswith("YAML") and "typ" in given and ast.unparse(given["typ"]) not in ("'safe'", "'rt'"):
        yield f"{name}(typ={ast.unparse(given['typ'])})"


@pytest.mark.parametrize("folder", ["pipeline", "models", "benchmarks"])
def test_our_source_runs_no_code_from_files_and_verifies_its_peers(folder):
    files = sorted((ROOT / folder).rglob("*.py"))
    assert files
    found = {
        (file.relative_to(ROOT).as_posix(), what)
        for file in files
        for what in findings(file.read_text(encoding="utf-8"))
    }
    assert found - _ALLOWED == set()


def test_each_exception_is_still_needed():
    found = {
        (name, what) for name, _ in _ALLOWED for what in findings((ROOT / name).read_text(encoding="utf-8"))
    }
    assert found >= _ALLOWED


@pytest.mark.parametrize(
    "source",
    [
        "import pickle", "from pickle import loads", "import cloudpickle as c", "import joblib",
        "from joblib import load", "import marshal", "import shelve", "torch.save(x, f)", "torch.load(f)",
        "torch.load(f, weights_only=False)", "torch.load(f, weights_only=flag)",
        "np.load(f, allow_pickle=True)", "import yaml", "YAML(typ='unsafe')", "eval(x)", "exec(x)",
        "subprocess.run(x, shell=True)", "os.system(x)", "tar.extractall(p)", "zipfile.ZipFile(f).extract(n)",
        "tempfile.mktemp()", "requests.get(u, verify=False)", "ssl._create_unverified_context()",
        "pd.read_pickle(f)", "importlib.import_module(name)",
    ],
)  # fmt: skip
def test_the_search_finds(source):
    assert list(findings(source))


@pytest.mark.parametrize(
    "source",
    ["torch.load(f, weights_only=True)", "np.load(f, allow_pickle=False)", "YAML(typ='safe')", "model.eval()",
     "re.compile(x)", "subprocess.run(x, shell=False)", "import pickletools"],
)  # fmt: skip
def test_the_search_does_not_find(source):
    assert list(findings(source)) == []


# ---------------------------------------------------------------------------------------- redaction


@pytest.mark.parametrize(
    "text",
    [
        "http://user:SECRETxx@host/x", "postgresql://user:SECRETxx@host:5432/db", "s3://KEY:SECRETxx@bucket/a",
        "postgresql://user:with/SECRETxx@host/db", "https://SECRETxx@host/", "'https://h/a.csv?token=SECRETxx'",
        "https://h/a?x=1&access_token=SECRETxx&y=2", "https://h/a?X-Amz-Signature=SECRETxx",
        "https://h/a?X-Amz-Credential=SECRETxx/2026", "https://blob/a?sv=1&sig=SECRETxx%3D",
        "https://h/a?AWSAccessKeyId=SECRETxx", "two: http://a:SECRETxx@h/ and http://b:SECRETxx@h/",
        "signature of SECRETxx refused",
        "https://user:p@ss/SECRETxx@host/x", "https://user:p@SECRETxx@host/@x",
        "host=db user=me password=SECRETxx dbname=x", "password = 'SECRETxx SECRETxx'",
        "PGPASSWORD=a,SECRETxx", "{'password': 'SECRETxx'}", '{"api_key": "SECRETxx"}',
        "access-token=SECRETxx", "Authorization: Bearer SECRETxx.SECRETxx", "authorization: basic SECRETxx==",
        "{'Authorization': 'Basic SECRETxx'}", "{'Authorization': b'token SECRETxx'}",
    ],
)  # fmt: skip
def test_credentials_are_hidden(text, monkeypatch):
    if text.startswith("signature"):
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "SECRETxx")
    assert "SECRETxx" not in redact(text)
    assert "***" in redact(text)


@pytest.mark.parametrize(
    "text",
    ["https://host/a.csv?page=2", "mail me@example.org: http://host/", "s3://bucket/folder", "a key = b",
     "the password is wrong", "max_tokens=300, token: 5", "PWD=/work/project", "Authorization: it is missing",
     "https://host/a and a mail to me@example.org", "https://host/@a", "loss 6.123456, 123456 words"],
)  # fmt: skip
def test_text_without_credentials_is_unchanged(text, monkeypatch):
    for name in ("PWD", "OLDPWD", "PATH", "DB_PASSES", "MONKEY", "PATTERN", "TOKENS_PER_STEP"):
        monkeypatch.setenv(name, "/work/project")
    assert redact(text) == text


@pytest.mark.parametrize(
    "name",
    ["PASSWORD", "PGPASSWORD", "MYSQL_PWD", "DB_PASS", "SSHPASS", "OPENAI_APIKEY", "GITHUB_PAT", "HF_TOKEN",
     "GITHUBTOKEN", "aws_secret_access_key", "CLIENT_SECRET", "DB_CREDENTIALS"],
)  # fmt: skip
def test_the_value_of_a_variable_named_like_a_secret_is_hidden(name, monkeypatch):
    monkeypatch.setenv(name, "planted1")
    assert redact("driver: planted1x refused") == "driver: ***x refused"


@pytest.mark.parametrize(
    "encode",
    [
        quote,
        lambda secret: quote(secret, safe=""),
        lambda secret: quote(secret, safe="=+"),
        lambda secret: quote(secret, safe="").replace("%2F", "%2f"),
        quote_plus,
    ],
)
def test_a_percent_encoded_secret_is_hidden(encode, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "Ab/é+d ef%==xyz")
    assert redact(f"asked for {encode('Ab/é+d ef%==xyz')}, refused") == "asked for ***, refused"


def test_short_values_are_hidden_only_if_passwords_and_whole_words(monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "hunter2")
    monkeypatch.setenv("DB_PASS", "hidden")
    monkeypatch.setenv("PGPASSWORD", "layer")
    monkeypatch.setenv("SORT_KEY", "general")
    said = "as bob:hunter2, hidden; hidden_dim of a layer of data/general_lm"
    assert redact(said) == "as bob:***, ***; hidden_dim of a layer of data/general_lm"


# ------------------------------------------------------------------------- the Ray that a stage starts

LOCAL_RAY = """
import json, sys, time
import psutil
from pipeline.distributed.cluster import Cluster

def work():
    import torch, torch.distributed
    torch.distributed.all_reduce(torch.ones(1))

def sockets():
    me = psutil.Process()
    return [c.laddr.ip for p in [me, *me.children(recursive=True)] for c in p.net_connections("inet")
            if c.status == psutil.CONN_LISTEN]

with Cluster(dashboard=True) as cluster:
    cluster.nodes()
    import ray
    ray.get(ray.remote(lambda: 1).remote())
    print(json.dumps([sockets(), ray._private.worker._global_node.get_session_dir_path()]))
"""


@pytest.mark.ray
@pytest.mark.slow
def test_the_ray_of_a_stage_serves_only_this_user_on_this_machine(tmp_path):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment |= {"RAY_AUTH_TOKEN_PATH": str(tmp_path / "token")}
    done = subprocess.run(
        [sys.executable, "-c", LOCAL_RAY],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    addresses, session = json.loads(done.stdout.splitlines()[-1])
    assert len(addresses) >= 8
    assert {address.removeprefix("::ffff:") for address in addresses} == {"127.0.0.1"}
    assert (tmp_path / "token").stat().st_mode & 0o777 == 0o600
    above = [folder for folder in Path(session).parents if folder.name.startswith("headstart-")]
    assert [folder.stat().st_mode & 0o777 for folder in above] == [0o700]


# ------------------------------------------------------------------------------- planted secrets

SECRETS = {name: f"planted{secrets.token_hex(12)}" for name in ("uri", "password", "aws", "session", "query")}
SECRETS["ray"] = secrets.token_hex(32)
USER = "planted-user"

SMALL = """
run: {{workers: 1, log_steps: 5, headstarts: [ulmfit]}}  # one suffices: each kind of stage runs
corpus:
  general:
    source:
      {{kind: files, format: ndjson, train: [in/general.ndjson], validation: [], test: [], unlabelled: [],
       text_column: text, label_column: null, label_names: null, encoding_errors: refuse}}
    split: {{validation: 0.1, test: 0.0}}
  target:
    source:
      {{kind: files, format: csv, train: ["{address}"], validation: [], test: [], unlabelled: [],
       text_column: body, label_column: topic, label_names: null, encoding_errors: refuse}}
    split: {{validation: 0.1, test: 0.2}}
tokenizers: {{pieces: {{vocab_size: 280}}, words: {{vocab_size: 100, min_count: 1}}}}
headstarts:
  ulmfit: {{config: {{embedding_dim: 8, hidden_dim: 12}}}}
  vectors: {{config: {{embedding_dim: 8}}, pretrain_lm: {{epochs: 1.0}}, finetune_lm: {{epochs: 1.0}}}}
pretrain_lm: {{epochs: 1.0, batch_rows: 4, bptt: 20}}
finetune_lm: {{epochs: 1.0, batch_rows: 4, bptt: 20}}
finetune_classifier: {{epochs: 2.0, min_steps: 5, restarts: 0, batch_rows: 16}}
evaluate: {{bootstrap_samples: 20, confident_errors: 2}}
sample_efficiency:
  {{arms: [ulmfit, "ulmfit/probe", tfidf], labels: [30], seeds: [1],
   bootstrap_samples: 20}}
"""


@dataclass(frozen=True)
class Planted:
    """A project in which the route has run with secrets, with everything it printed and left."""

    folder: Path
    server: Path  # of MLflow
    sessions: list[Path]  # of Ray
    said: str = field(repr=False)
    environment: dict[str, str] = field(repr=False)


def run_in(folder: Path, environment: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).parent / words[0]), *words[1:]]
    return subprocess.run(command, cwd=folder, env=environment, text=True, capture_output=True, timeout=900)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Planted]:
    folder, server = tmp_path_factory.mktemp("planted"), tmp_path_factory.mktemp("mlflow")
    copy_checkout(folder)
    write_corpora(folder / "in")
    with serving_files(folder / "in") as corpus, mlflow_server(server) as tracking:
        address = f"{corpus}/target.csv?token={SECRETS['query']}"
        (folder / "small.yaml").write_text(SMALL.format(address=address), encoding="utf-8")
        left_out = ("RAY_ADDRESS", "RAY_AUTH_TOKEN_PATH")
        environment = {name: value for name, value in os.environ.items() if name not in left_out} | {
            "OMP_NUM_THREADS": "1",
            "DVC_NO_ANALYTICS": "1",
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "MLFLOW_TRACKING_URI": tracking.replace("//", f"//{USER}:{SECRETS['uri']}@"),
            "MLFLOW_TRACKING_USERNAME": USER,
            "MLFLOW_TRACKING_PASSWORD": SECRETS["password"],
            "AWS_ACCESS_KEY_ID": "AKIAPLANTED",
            "AWS_SECRET_ACCESS_KEY": SECRETS["aws"],
            "AWS_SESSION_TOKEN": SECRETS["session"],
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": SECRETS["ray"],
        }
        begun = time.time()
        said = ""
        for command in ("headstart use small.yaml", "dvc repro", "headstart report --markdown"):
            done = run_in(folder, environment, *command.split())
            assert done.returncode == 0, redact(done.stdout + done.stderr)
            said += done.stdout + done.stderr
        found = Path(f"/tmp/headstart-{os.getuid()}/stages").glob("session_*")
        sessions = [each for each in found if not each.is_symlink() and each.stat().st_mtime >= begun - 1]
        yield Planted(folder, server, sessions, said, environment)


def write_corpora(folder: Path) -> None:
    folder.mkdir()
    draw = random.Random(1)
    words = {
        "sea": ["wave", "tide", "sail", "gull", "reef"],
        "garden": ["seed", "soil", "rose", "leaf", "bee"],
    }
    every = [word for each in words.values() for word in each]
    with (folder / "general.ndjson").open("w", encoding="utf-8") as file:
        for _ in range(300):
            file.write(json.dumps({"text": " ".join(draw.choices(every, k=20))}) + "\n")
    with (folder / "target.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["body", "topic"])
        for row in range(200):
            topic = ("sea", "garden")[row % 2]
            writer.writerow([" ".join(draw.choices(words[topic] + every, k=15)), topic])


class serving_files:  # noqa: N801  a context, as functions of contextlib are
    """Serves a folder over HTTP to clients that give the token."""

    def __init__(self, folder: Path) -> None:
        class Handler(http.server.BaseHTTPRequestHandler):
            def log_message(self, *words: object) -> None:
                pass

            def do_HEAD(self) -> None:
                self.answer(with_body=False)

            def do_GET(self) -> None:
                self.answer(with_body=True)

            def answer(self, *, with_body: bool) -> None:
                name, _, query = self.path.partition("?")
                if query != f"token={SECRETS['query']}" or not (folder / name.strip("/")).exists():
                    self.send_error(404)
                    return
                content = (folder / name.strip("/")).read_bytes()
                first, last = 0, len(content) - 1
                if given := self.headers.get("Range"):
                    begin, end = given.removeprefix("bytes=").split("-")
                    first, last = int(begin), min(int(end or last), last)
                self.send_response(206 if given else 200)
                self.send_header("Content-Range", f"bytes {first}-{last}/{len(content)}")
                self.send_header("Content-Length", str(last + 1 - first))
                self.send_header("Accept-Ranges", "bytes")
                self.send_header("Last-Modified", self.date_time_string(0))
                self.end_headers()
                if with_body:
                    self.wfile.write(content[first : last + 1])

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    def __enter__(self) -> str:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{self._server.server_port}"

    def __exit__(self, *failure: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class mlflow_server:  # noqa: N801
    """Runs a real MLflow server, with its log beside its database."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._port = folder, free_port()

    def __enter__(self) -> str:
        command = [sys.executable, "-m", "mlflow", "server", "--host=127.0.0.1", f"--port={self._port}"]
        command += ["--workers=1", f"--backend-store-uri=sqlite:///{self._folder}/mlflow.db"]
        command += [f"--default-artifact-root={self._folder.as_uri()}/artifacts"]
        quiet = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
        self._log = (self._folder / "log").open("wb")
        self._process = subprocess.Popen(
            command,
            env=os.environ | quiet,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        address = f"http://127.0.0.1:{self._port}"
        deadline = time.monotonic() + 300
        while not self._answers():
            assert self._process.poll() is None, (self._folder / "log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.3)
        return address

    def _answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self._port)) == 0

    def __exit__(self, *failure: object) -> None:
        leader = psutil.Process(self._process.pid)
        everything = [leader, *leader.children(recursive=True)]
        leader.terminate()
        for process in psutil.wait_procs(everything, timeout=10)[1]:
            process.kill()
        self._process.wait()
        self._log.close()


def forms(secret: str) -> tuple[bytes, bytes]:
    """The forms in which a file may hold a secret: plain, or as in a request's header."""
    return secret.encode(), base64.b64encode(f"{USER}:{secret}".encode())[:-4]


def files_below(*folders: Path) -> list[Path]:
    return [
        file for folder in folders for file in folder.rglob("*") if file.is_file() and not file.is_symlink()
    ]


def may_hold_settings(file: Path, folder: Path) -> bool:
    """Whether it is params.yaml, a file laid over it, or DVC's record of its settings."""
    name = file.relative_to(folder).as_posix() if file.is_relative_to(folder) else ""
    return name in ("params.yaml", "small.yaml", "dvc.lock") or name.startswith(
        (".dvc/cache/runs/", ".dvc/tmp/")
    )


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.long
def test_a_run_prints_and_leaves_no_secret(planted):
    assert planted.sessions
    files = files_below(planted.folder, planted.server, *planted.sessions)
    assert len(files) > 100
    found = [
        f"{name} in {file}"
        for file in files
        for content in [file.read_bytes()]
        for name, secret in SECRETS.items()
        if any(form in content for form in forms(secret))
        and not (name == "query" and may_hold_settings(file, planted.folder))
    ]
    assert not found, "\n".join(found)
    assert [name for name, secret in SECRETS.items() if secret in planted.said] == []


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.long
def test_the_search_for_secrets_finds_a_planted_one(planted):
    """params.yaml holds the token of the corpus for the stages, so DVC's records hold it too."""
    assert SECRETS["query"].encode() in (planted.folder / "params.yaml").read_bytes()
    assert SECRETS["query"].encode() in (planted.folder / "dvc.lock").read_bytes()


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.long
def test_a_failing_stage_prints_and_leaves_no_secret(planted):
    """The corpus and MLflow are both gone, so error messages name both addresses."""
    before = set(files_below(planted.folder))
    (planted.folder / "in/target.csv").unlink()
    gone = f"http://{USER}:{SECRETS['uri']}@127.0.0.1:{free_port()}"
    environment = planted.environment | {"MLFLOW_TRACKING_URI": gone}
    done = run_in(planted.folder, environment, "dvc", "repro", "-f", "-s", "prepare@target")
    assert done.returncode != 0
    assert "target.csv" in done.stderr
    assert "Traceback" not in done.stderr
    said = done.stdout + done.stderr
    assert [name for name, secret in SECRETS.items() if secret in said] == []
    for file in set(files_below(planted.folder)) - before:
        if not may_hold_settings(file, planted.folder):
            content = file.read_bytes()
            assert [name for name, secret in SECRETS.items() if secret.encode() in content] == [], file


def is_pickle(content: bytes) -> bool:
    """Whether these bytes are pickle instructions from first to last."""
    try:
        *_, (instruction, _, place) = pickletools.genops(content)
    except ValueError:
        return False
    return instruction.name == "STOP" and place == len(content) - 1 and len(content) > 2


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.long
def test_none_of_our_files_is_or_contains_a_pickle(planted):
    import pickle

    import torch

    kept = planted.folder / ".headstart"
    files = files_below(planted.folder / "data", planted.folder / "reports", kept, planted.server)
    ours = [file for file in files if "ray" not in file.relative_to(file.anchor).parts[-4:-1]]
    endings = {file.suffix for file in ours}
    assert {".safetensors", ".json", ".npy", ".jsonl", ".csv", ".html", ".png", ".model"} <= endings
    for file in ours:
        content = file.read_bytes()
        assert not is_pickle(content), file
        assert not zipfile.is_zipfile(file), file
        if file.suffix == ".npy":
            assert b"'|O'" not in content[:200], file
    for sample in ([1], {"a": "b"}, torch.zeros(2)):
        assert all(is_pickle(pickle.dumps(sample, protocol)) for protocol in range(6))
