"""The shared Ray and MLflow: records and locks with stand-in servers, then the real ones."""

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
from pathlib import Path

import psutil
import pytest

from pipeline import cluster, services, tracking
from pipeline.tracking import StageInfo, stage_run

REPOSITORY = Path(__file__).parents[1]

# A server with a child in a process group of its own, as Ray's workers are; both ignore a polite end.
STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
code = "import os, signal, time; os.setpgid(0, 0); signal.signal(15, signal.SIG_IGN)"
code += "; print('ready', flush=True); time.sleep(99)"
subprocess.Popen([sys.executable, "-c", code])
time.sleep(99)
"""


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A checkout with a Ray token of its own."""
    for name in ("RAY_ADDRESS", "RAY_AUTH_TOKEN", "MLFLOW_TRACKING_URI", "DVC_STAGE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "token"))
    yield tmp_path
    services.down(tmp_path)
    shutil.rmtree(services._ray_folder(tmp_path), ignore_errors=True)


def stand_in(name, code):
    """What starts a server that runs `code`."""
    command = [sys.executable, "-c", textwrap.dedent(code)]
    return lambda root, host: services._launch(root, name, command, {}, f"{host}:1", f"http://{host}:2")


def use_stand_ins(monkeypatch, ray, mlflow="import time; print('ready', flush=True); time.sleep(99)"):
    """Servers that are up once they have printed `ready`."""
    starters = {"ray": stand_in("ray", ray), "mlflow": stand_in("mlflow", mlflow)}
    monkeypatch.setattr(services, "STARTERS", starters)
    monkeypatch.setattr(services, "_is_ready", lambda name, service: "ready" in Path(service.log).read_text())


def both(status):
    """Ray and MLflow, which have to be up."""
    assert status.ray
    assert status.mlflow
    return status.ray, status.mlflow


def processes_of(service):
    return services._members(service)


def test_nothing_is_up_at_first_and_down_does_nothing(root):
    assert services.status(root).ray is None
    assert services.status(root).mlflow is None
    assert services.ray_address(root) is None
    assert services.down(root).changed == ()


def test_ray_address_prefers_the_environment(root, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "cluster:6379")
    assert services.ray_address(root) == "cluster:6379"


def test_up_and_down_are_idempotent_and_leave_no_process(root, monkeypatch):
    monkeypatch.setattr(services, "STOP_LIMIT_S", 0.5)
    use_stand_ins(monkeypatch, STUBBORN)
    first = services.up(root)
    assert first.changed == ("ray", "mlflow")
    ray, mlflow = both(first.status)
    assert services.ray_address(root) == ray.address
    assert len(processes_of(ray)) == 2
    second = services.up(root)
    assert second == services.Change((), first.status)
    assert services.down(root).changed == ("ray", "mlflow")
    assert processes_of(ray) == processes_of(mlflow) == []
    assert services.down(root).changed == ()


def test_children_that_outlived_the_server_are_ended(root, monkeypatch):
    monkeypatch.setattr(services, "STOP_LIMIT_S", 0.5)
    use_stand_ins(monkeypatch, STUBBORN)
    ray, _ = both(services.up(root).status)
    os.kill(ray.pid, signal.SIGKILL)
    os.waitpid(ray.pid, 0)
    assert services.status(root).ray is None
    assert len(processes_of(ray)) == 1
    again = services.up(root)
    assert again.changed == ("ray",)
    assert processes_of(ray) == []
    assert services.down(root).changed == ("ray", "mlflow")


def test_services_are_known_after_the_clock_was_set(root, monkeypatch):
    use_stand_ins(monkeypatch, "import time; print('ready', flush=True); time.sleep(99)")
    before = services.up(root).status
    real = psutil.Process.create_time
    monkeypatch.setattr(psutil.Process, "create_time", lambda self: real(self) + 3600)
    assert services.status(root) == before
    assert services.up(root).changed == ()
    assert services.down(root).changed == ("ray", "mlflow")


EARLIER = time.time() - 1000


@pytest.mark.parametrize("started", [EARLIER, "another boot/1"], ids=["earlier", "another boot"])
def test_a_process_that_got_the_recorded_id_later_is_left_alone(root, started):
    stranger = subprocess.Popen(["sleep", "99"], start_new_session=True)
    try:
        old = services.Service(stranger.pid, started, "127.0.0.1:1", "http://127.0.0.1:2", "log")
        services._folder(root)
        services._write(root, {"ray": old})
        assert services.status(root).ray is None
        assert services.down(root).changed == ()
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_a_server_that_ends_while_starting_is_told_with_its_log(root, monkeypatch):
    use_stand_ins(monkeypatch, "raise SystemExit('port 1 is taken')")
    with pytest.raises(RuntimeError, match=r"(?s)ray ended while starting.*ray\.log.*port 1 is taken"):
        services.up(root)
    assert services._read(root) == {}


def test_a_server_that_never_answers_is_ended(root, monkeypatch):
    monkeypatch.setattr(services, "START_LIMIT_S", 1.0)
    use_stand_ins(monkeypatch, "import time; print('still loading', flush=True); time.sleep(99)")
    with pytest.raises(RuntimeError, match=r"(?s)did not answer within 1 s.*still loading"):
        services.up(root)
    assert services._read(root) == {}
    children = (child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE)
    assert not [child for child in children if "still loading" in str(child.cmdline())]


def test_two_ups_at_once_start_one_of_each(root, monkeypatch):
    use_stand_ins(monkeypatch, "import time; time.sleep(0.3); print('ready', flush=True); time.sleep(99)")
    changes = []
    threads = [threading.Thread(target=lambda: changes.append(services.up(root))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(change.changed for change in changes) == [(), ("ray", "mlflow")]
    assert changes[0].status == changes[1].status


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
        assert services._free_port(port) > port
        assert services._free_port(port, step=-1) < port


def test_the_token_is_private_and_not_shown(root):
    before = services.status(root).token
    assert not before.exists
    cluster.ensure_token()
    path = Path(before.source)
    assert path.stat().st_mode & 0o777 == 0o600
    after = services.status(root).token
    assert after.exists
    assert path.read_text() not in repr(after)


def test_a_token_that_is_there_stays_and_is_closed_to_others(root):
    cluster.ensure_token()
    path = Path(services.status(root).token.source)
    token = path.read_text()
    path.chmod(0o644)  # as Ray itself writes it
    cluster.ensure_token()
    assert path.read_text() == token
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(path.parent.iterdir()) == [path]


def test_of_many_that_make_a_token_at_once_one_wins(root):
    tokens = []
    path = Path(services.status(root).token.source)

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
    assert services.status(root).token.exists
    assert caplog.text == ""
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    cluster.Cluster()._guard()
    assert "can run code as you" in caplog.text


def test_only_an_address_of_this_machine_is_listened_on(root):
    for host in ("0.0.0.0", "::", "198.51.100.7", "localhost", ""):
        with pytest.raises(ValueError, match=r"is no IPv4 address of this machine; there are .*127\.0\.0\.1"):
            services.up(root, host)


def test_what_is_up_does_not_silently_stay_on_another_address(root, monkeypatch):
    use_stand_ins(monkeypatch, "import time; print('ready', flush=True); time.sleep(99)")
    monkeypatch.setattr(services, "_check_host", lambda host: None)
    services.up(root)
    with pytest.raises(ValueError, match=r"ray is up on 127\.0\.0\.1; to move it, `headstart down` first"):
        services.up(root, "192.0.2.7")


def test_no_heavy_import():
    code = "import sys, pipeline.services; sys.exit(bool({'ray', 'mlflow', 'torch'} & set(sys.modules)))"
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
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)


def listening(service):
    """(address, port) of each socket that a process of the service listens on."""
    return {
        (connection.laddr.ip.removeprefix("::ffff:"), connection.laddr.port)
        for process in processes_of(service)
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    }


def code_of_answer(url, **headers):
    try:
        return urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=5).status
    except urllib.error.HTTPError as error:
        return error.code


# Of those whose port does not speak HTTP: a method of each service that Ray has, asked without a token.
GRPC_METHODS = [
    "/ray.rpc.InternalKVGcsService/InternalKVKeys",
    "/ray.rpc.JobInfoGcsService/GetAllJobInfo",
    "/ray.rpc.NodeManagerService/GetNodeStats",
    "/ray.rpc.ObjectManagerService/Pull",
    "/ray.rpc.RayletDriver/Init",
    "/ray.rpc.ReporterService/GetTraceback",
]


def refuses(port):
    """Whether a port of Ray's wants a token, or tells metrics (of Prometheus) and no more."""
    try:
        page = urllib.request.urlopen(f"http://127.0.0.1:{port}/api/jobs/", timeout=5).read()
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
                channel.unary_unary(method)(b"", timeout=5)
                codes.add("OK")
            except grpc.RpcError as error:
                codes.add(error.code().name)
    assert "OK" not in codes
    return codes


@pytest.mark.ray
@pytest.mark.slow
def test_real_services_beside_those_of_another_checkout(root, tmp_path_factory):
    """Both up at once; ending one leaves the other; nothing remains."""
    other = tmp_path_factory.mktemp("other")
    try:
        ray, mlflow = both(services.up(root).status)
        other_ray, other_mlflow = both(services.up(other).status)
        everything = [ray, mlflow, other_ray, other_mlflow]
        assert len({service.address for service in everything}) == 4
        assert services.up(root).changed == ()
        assert all(services._answers(service.dashboard) for service in everything)

        assert tracking.tracking_uri(root) == mlflow.address
        with stage_run(StageInfo(root, "evaluate", ["evaluate"], {})) as run:
            tracking.log_artifact(run, Path(__file__))
        assert list((root / ".headstart" / "artifacts").rglob(Path(__file__).name))

        environment = {**os.environ, **services.join_environment()}
        joined = join(ray.address, environment)
        assert joined.returncode == 0, joined.stderr
        assert json.loads(joined.stdout) == 42

        assert services.down(root).changed == ("ray", "mlflow")
        assert processes_of(ray) == processes_of(mlflow) == []
        assert join(other_ray.address, environment).returncode == 0
        assert services.down(other).changed == ("ray", "mlflow")
        assert [process for service in everything for process in processes_of(service)] == []
    finally:
        services.down(other)
        shutil.rmtree(services._ray_folder(other), ignore_errors=True)


@pytest.mark.ray
@pytest.mark.slow
def test_real_services_are_for_this_machine_and_for_who_has_the_token(root):
    ray, mlflow = both(services.up(root).status)
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
    assert code_of_answer(runs, Host="rebound.example") == 403  # a page of the web under a name of its own

    above = services._ray_folder(root).parent
    assert above.stat().st_mode & 0o777 == 0o700  # below it Ray opens its folders to everybody
    left = [file for folder in (services._ray_folder(root), root) for file in folder.rglob("*")]
    files = [file for file in left if file.is_file() and not file.is_symlink() and file != root / "token"]
    assert files
    assert [file for file in files if token.encode() in file.read_bytes()] == []
