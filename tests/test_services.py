"""The shared Ray and MLflow: records and locks with stand-in servers, then the real servers."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from pipeline import tracking
from pipeline.distributed import cluster, services
from pipeline.machine.process_identity import ProcessIdentity
from pipeline.tracking import StageInfo, stage_run, stores

REPOSITORY = Path(__file__).parents[1]

LIMIT_S = 300.0  # for what takes seconds on a quiet machine

# A server with a child in a process group of its own, like Ray's workers; both ignore SIGTERM.
STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
code = "import os, signal, time; os.setpgid(0, 0); signal.signal(15, signal.SIG_IGN)"
code += "; print('ready', flush=True); time.sleep(900)"
subprocess.Popen([sys.executable, "-c", code])
time.sleep(900)
"""
UP = "import time; print('ready', flush=True); time.sleep(900)"


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A checkout with a Ray token of its own, whose servers may take long to start."""
    for name in ("RAY_ADDRESS", "RAY_AUTH_TOKEN", "MLFLOW_TRACKING_URI", "DVC_STAGE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setattr(services, "START_LIMIT_S", LIMIT_S)
    yield tmp_path
    services.down(tmp_path)
    shutil.rmtree(services._ray_folder(tmp_path), ignore_errors=True)


def stand_in(name, code):
    """A starter of a server that runs `code`."""
    command = [sys.executable, "-c", textwrap.dedent(code)]
    return lambda root, host: services._launch(root, name, command, {}, f"{host}:1", f"http://{host}:2")


def use_stand_ins(monkeypatch, ray=UP):
    """Replace the servers by ones that are up once they have printed `ready`."""
    starters = {"ray": stand_in("ray", ray), "mlflow": stand_in("mlflow", UP)}
    monkeypatch.setattr(services, "STARTERS", starters)
    monkeypatch.setattr(services, "_is_ready", lambda name, service: "ready" in Path(service.log).read_text())


def both_up(root):
    """Ray and MLflow, which have to be running."""
    running = services.status(root)
    return running["ray"], running["mlflow"]


def test_nothing_is_up_at_first_and_down_does_nothing(root):
    assert services.status(root) == {}
    assert services.ray_address(root) is None
    assert services.down(root) == []


def test_ray_address_prefers_the_environment(root, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "cluster:6379")
    assert services.ray_address(root) == "cluster:6379"


def test_up_and_down_are_idempotent_and_leave_no_process(root, monkeypatch):
    monkeypatch.setattr(services, "STOP_LIMIT_S", 0.5)
    use_stand_ins(monkeypatch, STUBBORN)
    assert services.up(root) == ["ray", "mlflow"]
    ray, mlflow = both_up(root)
    assert services.ray_address(root) == ray.address
    assert len(services._members(ray)) == 2
    assert services.up(root) == []
    assert both_up(root) == (ray, mlflow)
    assert services.down(root) == ["ray", "mlflow"]
    assert services._members(ray) == services._members(mlflow) == []
    assert services.down(root) == []


def test_children_that_outlived_the_server_are_stopped(root, monkeypatch):
    monkeypatch.setattr(services, "STOP_LIMIT_S", 0.5)
    use_stand_ins(monkeypatch, STUBBORN)
    services.up(root)
    ray, _ = both_up(root)
    os.kill(ray.pid, signal.SIGKILL)
    os.waitpid(ray.pid, 0)
    assert services.status(root).keys() == {"mlflow"}
    assert len(services._members(ray)) == 1
    assert services.up(root) == ["ray"]
    assert services._members(ray) == []
    assert services.down(root) == ["ray", "mlflow"]


def test_services_are_known_after_the_clock_was_set(root, monkeypatch):
    use_stand_ins(monkeypatch)
    services.up(root)
    before = both_up(root)
    real = psutil.Process.create_time
    monkeypatch.setattr(psutil.Process, "create_time", lambda self: real(self) + 3600)
    assert both_up(root) == before
    assert services.up(root) == []
    assert services.down(root) == ["ray", "mlflow"]


def test_a_copy_of_a_checkout_neither_joins_nor_stops_the_servers_of_the_original(
    root, tmp_path, monkeypatch
):
    use_stand_ins(monkeypatch)
    services.up(root)
    running = both_up(root)
    copied = tmp_path / "copy"
    shutil.copytree(root / ".headstart", copied / ".headstart")
    assert services.status(copied) == {}
    assert services.down(copied) == []
    assert both_up(root) == running


@pytest.mark.parametrize("other", [{"started": "earlier"}, {"namespace": "another boot"}])
def test_a_process_that_got_the_recorded_id_later_is_left_alone(root, other):
    stranger = subprocess.Popen(["sleep", "900"], start_new_session=True)
    try:
        process = replace(ProcessIdentity.of(stranger.pid), **other)
        old = services.Service(process, "127.0.0.1:1", "http://127.0.0.1:2", "log", str(root.resolve()))
        services._write(root, {"ray": old})
        assert services.status(root) == {}
        assert services.down(root) == []
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_a_server_that_exits_while_starting_is_named_with_its_log(root, monkeypatch):
    use_stand_ins(monkeypatch, "raise SystemExit('port 1 is taken')")
    with pytest.raises(RuntimeError, match=r"(?s)ray exited while starting.*ray\.log.*port 1 is taken"):
        services.up(root)
    assert services._read(root) == {}


def test_a_server_that_never_answers_is_stopped(root, monkeypatch):
    monkeypatch.setattr(services, "START_LIMIT_S", 1.0)
    use_stand_ins(monkeypatch, "import time; print('still loading', flush=True); time.sleep(900)")
    start_ray = services.STARTERS["ray"]

    def start_and_wait(root, host):
        start_ray(root, host)
        deadline = time.monotonic() + LIMIT_S
        while "still loading" not in (root / ".headstart/logs/ray.log").read_text():
            assert time.monotonic() < deadline
            time.sleep(0.05)

    monkeypatch.setitem(services.STARTERS, "ray", start_and_wait)
    with pytest.raises(RuntimeError, match=r"(?s)did not answer within 1 s.*still loading"):
        services.up(root)
    assert services._read(root) == {}
    children = (child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE)
    assert not [child for child in children if "still loading" in str(child.cmdline())]


def test_two_ups_at_once_start_one_of_each(root, monkeypatch):
    use_stand_ins(monkeypatch, "import time; time.sleep(0.3); print('ready', flush=True); time.sleep(900)")
    started = []
    threads = [threading.Thread(target=lambda: started.append(services.up(root))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(started) == [[], ["ray", "mlflow"]]


def test_a_broken_record_is_named(root):
    path = services._record_path(root)
    path.parent.mkdir()
    path.write_text('{"ray": {"pid": 1}}')
    with pytest.raises(ValueError, match=r"services\.json"):
        services.status(root)
    path.unlink()  # for the fixture's `down`


def test_free_ports_skip_taken_ones():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert cluster.free_port(port) > port
        assert cluster.free_port(port, step=-1) < port


def test_the_token_is_private_and_not_shown(root, monkeypatch):
    path = root / "token"
    assert not path.exists()
    cluster.ensure_token()
    assert path.stat().st_mode & 0o777 == 0o600
    use_stand_ins(monkeypatch)
    services.up(root)
    assert path.read_text() not in f"{services.status(root)} {services.TOKEN_COMMAND}"


def test_a_token_that_is_there_stays_and_is_closed_to_others(root):
    cluster.ensure_token()
    path = root / "token"
    token = path.read_text()
    path.chmod(0o644)  # as Ray itself writes it
    cluster.ensure_token()
    assert path.read_text() == token
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(path.parent.iterdir()) == [path]


def test_when_many_make_a_token_at_once_one_wins(root):
    tokens = []
    path = root / "token"

    def make():
        cluster.ensure_token()
        tokens.append(path.read_text())

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(tokens) == 8
    assert len(set(tokens)) == 1
    assert len(tokens[0]) == 64


def test_a_stage_asks_for_a_token_unless_told_otherwise_and_then_says_so(root, monkeypatch, caplog):
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    cluster.Cluster()._guard()
    assert (root / "token").exists()
    assert caplog.text == ""
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    cluster.Cluster()._guard()
    assert "can run code as you" in caplog.text


def test_only_an_address_of_this_machine_is_listened_on(root):
    for host in ("0.0.0.0", "::", "198.51.100.7", "localhost", ""):
        with pytest.raises(ValueError, match=r"is no IPv4 address of this machine; there are .*127\.0\.0\.1"):
            services.up(root, host)


def test_a_running_server_does_not_silently_stay_on_another_address(root, monkeypatch):
    use_stand_ins(monkeypatch)
    monkeypatch.setattr(services, "_check_host", lambda host: None)
    services.up(root)
    with pytest.raises(ValueError, match=r"ray is up on 127\.0\.0\.1; to move it, `headstart down` first"):
        services.up(root, "192.0.2.7")


def test_no_heavy_import():
    code = "import sys, pipeline.distributed.services\n"
    code += "sys.exit(bool({'ray', 'mlflow', 'torch'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY).returncode == 0


JOIN = """
import json, os, sys
import ray
ray.init(address=sys.argv[1], log_to_driver=False)
print(json.dumps(ray.get(ray.remote(lambda: 6 * 7).remote())))
"""


def join(address, environment):
    command = [sys.executable, "-c", JOIN, address]
    environment = environment | cluster.LOOPBACK
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S)


def listening(service):
    """(address, port) of each socket that a process of the service listens on."""
    return {
        (connection.laddr.ip.removeprefix("::ffff:"), connection.laddr.port)
        for process in services._members(service)
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    }


def code_of_answer(url, **headers):
    try:
        return urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=LIMIT_S).status
    except urllib.error.HTTPError as error:
        return error.code


# A method of each of Ray's gRPC services, to be called without a token.
GRPC_METHODS = [
    "/ray.rpc.InternalKVGcsService/InternalKVKeys",
    "/ray.rpc.JobInfoGcsService/GetAllJobInfo",
    "/ray.rpc.NodeManagerService/GetNodeStats",
    "/ray.rpc.ObjectManagerService/Pull",
    "/ray.rpc.RayletDriver/Init",
    "/ray.rpc.ReporterService/GetTraceback",
]


def refuses(port):
    """Whether a port of Ray's requires a token, or serves Prometheus metrics and nothing else."""
    try:
        page = urllib.request.urlopen(f"http://127.0.0.1:{port}/api/jobs/", timeout=LIMIT_S).read()
        return page.startswith(b"# HELP")
    except urllib.error.HTTPError as error:
        return error.code == 401
    except (OSError, http.client.HTTPException):
        return "UNAUTHENTICATED" in grpc_codes(port)


def grpc_codes(port):
    grpc = pytest.importorskip("grpc")
    codes = set()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        for method in GRPC_METHODS:
            try:
                channel.unary_unary(method)(b"", timeout=LIMIT_S)
                codes.add("OK")
            except grpc.RpcError as error:
                codes.add(error.code().name)
    assert "OK" not in codes
    return codes


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.long
def test_real_services_beside_those_of_another_checkout(root, tmp_path_factory):
    """Both run at once; stopping one leaves the other; no process remains."""
    other = tmp_path_factory.mktemp("other")
    try:
        for each in (root, other):
            assert services.up(each) == ["ray", "mlflow"]
        everything = [*both_up(root), *both_up(other)]
        ray, mlflow, other_ray, _ = everything
        assert len({service.address for service in everything}) == 4
        assert services.up(root) == []
        assert all(services._answers(service.dashboard) for service in everything)

        assert tracking.tracking_uri(root) == mlflow.address
        with stage_run(StageInfo(root, "evaluate", ["evaluate"], {})) as run:
            stores.client(run.uri).log_artifact(run.run_id or "", __file__)
        assert list((root / ".headstart" / "artifacts").rglob(Path(__file__).name))

        environment = {**os.environ, **services.join_environment()}
        joined = join(ray.address, environment)
        assert joined.returncode == 0, joined.stderr
        assert json.loads(joined.stdout) == 42

        assert services.down(root) == ["ray", "mlflow"]
        assert services._members(ray) == services._members(mlflow) == []
        assert join(other_ray.address, environment).returncode == 0
        assert services.down(other) == ["ray", "mlflow"]
        assert [process for service in everything for process in services._members(service)] == []
    finally:
        services.down(other)
        shutil.rmtree(services._ray_folder(other), ignore_errors=True)


@pytest.mark.ray
@pytest.mark.slow
def test_real_services_are_for_this_machine_and_for_token_holders(root):
    services.up(root)
    ray, mlflow = both_up(root)
    sockets = listening(ray)
    assert len(sockets) >= 8
    assert {address for address, _ in sockets | listening(mlflow)} == {"127.0.0.1"}
    assert [port for _, port in sorted(sockets) if not refuses(port)] == []

    token = Path(os.environ["RAY_AUTH_TOKEN_PATH"]).read_text()
    jobs = f"{ray.dashboard}/api/jobs/"
    assert code_of_answer(jobs) == 401
    assert code_of_answer(jobs, Authorization=f"Bearer {'f' * 64}") == 403
    assert code_of_answer(jobs, Authorization=f"Bearer {token}") == 200
    with_another = os.environ | services.join_environment() | {"RAY_AUTH_TOKEN": "f" * 64}
    assert join(ray.address, with_another).returncode != 0

    runs = f"{mlflow.address}/api/2.0/mlflow/experiments/search?max_results=1"
    assert code_of_answer(runs) == 200
    assert code_of_answer(runs, Host="rebound.example") == 403  # a web page that resolves its own name here

    above = services._ray_folder(root).parent
    assert above.stat().st_mode & 0o777 == 0o700  # Ray opens its own folders, below it, to everybody
    left = [file for folder in (services._ray_folder(root), root) for file in folder.rglob("*")]
    files = [file for file in left if file.is_file() and not file.is_symlink() and file != root / "token"]
    assert files
    assert [file for file in files if token.encode() in file.read_bytes()] == []
