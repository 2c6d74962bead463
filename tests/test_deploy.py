"""The files in deploy/: parsed, linted, compared with each other; scripts run, with stand-ins for SLURM.

No container is built or started. The linters and schemas come from tests/requirements.txt.
"""

from __future__ import annotations

import fnmatch
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import sysconfig
import time
import tomllib
import urllib.error
import urllib.request
from importlib import metadata
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml

from pipeline.project import presets

REPOSITORY = Path(__file__).parents[1]
DEPLOY = REPOSITORY / "deploy"
LIMIT_S = 300.0  # for what takes seconds on a quiet machine
SECRET = re.compile(r"(PASSWORD|SECRET|TOKEN|KEY)$")
# A variable of compose: ${NAME}, ${NAME:?message}, ${NAME:-default}.
VARIABLE = re.compile(r"\$\{(\w+)(?::([?-])([^}]*))?\}")


def files(*patterns):
    return sorted(path for pattern in patterns for path in DEPLOY.rglob(pattern))


def documents(path):
    return [each for each in yaml.safe_load_all(path.read_text()) if each]


def pins(path):
    """The versions in a lock file, by name."""
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    return {name.lower(): version for name, _, version in (line.partition("==") for line in lines)}


def tool(name):
    """The path of a program, also of those that `make test` installs. Skips if it is missing."""
    folders = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return shutil.which(name, path=folders) or pytest.skip(f"{name} is not installed")


def values(tree, path=()):
    """The leaves of a tree, each with its path."""
    if isinstance(tree, dict | list):
        for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from values(value, (*path, key))
    else:
        yield path, tree


def strings(tree):
    return [value for _, value in values(tree) if isinstance(value, str)]


LOCK = pins(REPOSITORY / "requirements.lock")
IMAGE_TAG = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["version"]
RAY_FOLDERS = ("_private", "_common", "scripts", "train/v2/_internal")  # they read environment variables


# ------------------------------------------------------------------------------------------- all files


@pytest.mark.parametrize("path", files("*.yaml"), ids=lambda path: str(path.relative_to(DEPLOY)))
def test_each_yaml_file_holds_something_and_no_secret(path):
    found = documents(path)
    assert found
    for keys, value in values(found):
        if isinstance(value, str) and keys and SECRET.search(str(keys[-1])):
            assert VARIABLE.fullmatch(value), f"{keys}: a secret in the file"
        assert not re.search(r"AKIA[0-9A-Z]{16}|PRIVATE KEY", str(value)), keys
        assert not re.search(r"://[^/@\s]*:[^/@\s${}]+@", str(value)), f"{keys}: a password in an address"


def test_one_version_of_the_image_and_of_ray_stands_in_all_files():
    text = "\n".join(path.read_text() for path in files("*.yaml", "Dockerfile"))
    tags = set(re.findall(r"\bheadstart:(\d[\w.]*)", text)) | set(re.findall(r"newTag: ([\d.]+)", text))
    assert tags == {IMAGE_TAG}
    rayjob = documents(DEPLOY / "kuberay/base/rayjob.yaml")[0]
    assert rayjob["spec"]["rayClusterSpec"]["rayVersion"] == LOCK["ray"]


def test_every_variable_that_is_set_is_read_by_somebody():
    """A misspelt name would have no effect."""
    text = "\n".join(path.read_text() for path in files("*.yaml", "*.sh", "Dockerfile"))
    names = set(re.findall(r"\b(?:AWS|DVC|MLFLOW|RAY)_[A-Z][A-Z0-9_]*\b", text))
    names -= env_example().keys() - {"RAY_AUTH_TOKEN"}
    names -= {"RAY_HEAD_IP"}  # Ray's own, in the commands of `ray up`
    packages = Path(sysconfig.get_paths()["purelib"])
    folders = [REPOSITORY / "pipeline", *(packages / "ray" / name for name in RAY_FOLDERS)]
    read = [path for folder in folders for path in folder.rglob("*.py")]
    read += [packages / "dvc/env.py", packages / "mlflow/environment_variables.py"]
    code = "\n".join(path.read_text() for path in read)
    # click derives variables from the flags of `mlflow server`; AWS documents its own for all its libraries.
    known = {"MLFLOW_BACKEND_STORE_URI", "MLFLOW_ARTIFACTS_DESTINATION"}
    known |= {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL"}
    assert {name for name in names - known if name not in code} == set()
    assert names >= {"RAY_AUTH_MODE", "RAY_TMPDIR", "MLFLOW_TRACKING_URI", "AWS_ENDPOINT_URL"}


def test_the_page_mentions_each_file_and_none_that_is_missing():
    page = (DEPLOY / "README.md").read_text()
    tracked = subprocess.run(["git", "ls-files"], cwd=DEPLOY, check=True, capture_output=True, text=True)
    for name in set(tracked.stdout.split()) - {"README.md", ".gitignore"}:
        folder = str(Path(name).parent)
        assert name in page or (folder != "." and folder in page), name
    for name in re.findall(r"\bdeploy/([\w./-]+\w)", page):
        assert (DEPLOY / name).exists(), name


def test_the_overlay_for_a_cluster_can_be_laid_over_the_settings():
    found = presets.use(str(DEPLOY / "cluster.yaml"), REPOSITORY / "params.yaml", write=False)
    changes = {key: after for key, _, after in found}
    assert changes == {"run.workers": "auto", "run.storage": "s3://headstart/runs"}


# ----------------------------------------------------------------------------------------------- image


def instructions():
    """The Dockerfile's instructions as (name, arguments), with continued lines joined."""
    text = re.sub(r"^\s*#.*\n", "", (DEPLOY / "Dockerfile").read_text(), flags=re.M).replace("\\\n", " ")
    return [tuple(line.split(None, 1)) for line in text.splitlines() if line.strip()]


def copied():
    """The paths that the Dockerfile copies from the repository, in order."""
    sources = [arguments.split()[:-1] for name, arguments in instructions() if name == "COPY"]
    return [each for source in sources if not source[0].startswith("--from") for each in source]


def test_the_image_is_built_from_pinned_packages_and_then_the_code():
    bases = [arguments.split()[0] for name, arguments in instructions() if name == "FROM"]
    assert re.fullmatch(r"python:3\.1[1-9]\.\d+-slim-\w+", bases[0])
    order = copied()
    assert order.index("requirements.lock") < order.index("models") < order.index("pipeline")
    assert all(
        re.search(r"pip install .*(==|--requirement|--no-deps)", arguments)
        for name, arguments in instructions()
        if name == "RUN" and "pip install" in arguments
    )


def test_the_image_copies_exactly_what_the_builder_is_sent():
    rules = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    allowed = {rule[1:] for rule in rules if rule.startswith("!")}
    assert "*" in rules
    assert allowed == set(copied())
    for source in copied():
        assert (REPOSITORY / source).exists(), source
    assert not any(fnmatch.fnmatch(".env", name) or name.startswith((".git", "data")) for name in allowed)


def test_the_image_runs_as_nobody_special():
    users = [arguments for name, arguments in instructions() if name == "USER"]
    assert users == ["1000:1000"]
    assert dict(instructions())["ENTRYPOINT"] == '["tini", "--"]'


def test_the_dockerfile_has_no_lint():
    subprocess.run([tool("hadolint"), DEPLOY / "Dockerfile"], check=True)


def test_the_packages_added_to_the_lock_are_complete_and_those_of_the_tests():
    added, tested = pins(DEPLOY / "requirements.txt"), pins(REPOSITORY / "tests" / "requirements.txt")
    assert added.items() <= tested.items()
    assert not added.keys() & LOCK.keys()
    there = {re.sub(r"[-_.]+", "-", name) for name in (*added, *LOCK)}
    for name in added:
        for needed in metadata.requires(name) or []:
            if "extra ==" not in needed and "python_version <" not in needed:
                needed_name = re.split(r"[^\w.-]", needed, maxsplit=1)[0]
                assert re.sub(r"[-_.]+", "-", needed_name).lower() in there, f"{name} needs {needed}"


# --------------------------------------------------------------------------------------------- compose


def env_example():
    lines = (DEPLOY / ".env.example").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def compose(name="compose.yaml"):
    """The file as Docker reads it, with variables filled in."""

    def fill(match):
        variable, sign, other = match.groups()
        return other if sign == "-" else f"secret-{variable.lower()}"

    return yaml.safe_load(VARIABLE.sub(fill, (DEPLOY / name).read_text()))


SERVICES = compose()["services"]


@pytest.mark.parametrize("name", ["compose.yaml", "compose.auth.yaml"])
def test_the_compose_file_is_valid(name):
    parser = pytest.importorskip("compose_spec", reason="compose-spec is not installed").PyCompose
    parser.from_yaml(yaml.safe_dump(compose(name))).validate()


def test_compose_refuses_to_start_without_a_secret_and_the_example_holds_none():
    text = "".join((DEPLOY / name).read_text() for name in ("compose.yaml", "compose.auth.yaml"))
    used = VARIABLE.findall(text)
    assert {name for name, _, _ in used} == set(env_example())
    for name, sign, _ in used:
        assert sign == ("?" if SECRET.search(name) else "-"), name
        assert not (SECRET.search(name) and env_example()[name]), name


@pytest.mark.parametrize("name", SERVICES)
def test_a_container_has_no_rights_to_spare(name):
    service = SERVICES[name]
    assert service["user"] == "postgres" or service["user"].split(":")[0] not in ("", "0", "root")
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert not service.keys() & {"privileged", "cap_add", "devices", "pid", "ipc"}
    assert set(service["deploy"]["resources"]["limits"]) == {"cpus", "memory"}
    assert not any("docker.sock" in volume for volume in service.get("volumes", []))


def test_ports_are_published_on_this_machine_only():
    ports = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_images_are_pinned_and_servers_restart():
    for name, service in SERVICES.items():
        assert re.search(r":v?\d+\.\d+", service["image"]), name
        assert ("healthcheck" in service) == (service.get("restart") == "unless-stopped"), name


def test_a_service_waits_for_what_can_be_waited_for():
    for name, service in SERVICES.items():
        for other, how in service.get("depends_on", {}).items():
            wanted = (
                "service_healthy" if "healthcheck" in SERVICES[other] else "service_completed_successfully"
            )
            assert how["condition"] == wanted, f"{name} on {other}"


def test_volumes_are_declared_and_used():
    mounted = {volume.split(":")[0] for each in SERVICES.values() for volume in each.get("volumes", [])}
    assert mounted - {".."} == set(compose()["volumes"])


def test_services_call_each_other_by_existing_names_and_ports():
    ports = {"s3": "7070", "mlflow": "5000", "ray-head": "6379", "postgres": "5432"}
    for name in ("s3", "mlflow", "ray-head"):
        assert re.search(rf"--port[= ]:?{ports[name]}\b", " ".join(SERVICES[name]["command"]))
    called = re.findall(r"(?:[@=,/]|^)([a-z][a-z0-9-]*):(\d{4})\b", "\n".join(strings(SERVICES)), re.M)
    assert {host for host, _ in called} == {*ports, "localhost"}
    assert {(host, port) for host, port in called if host != "localhost"} == set(ports.items())
    tracking = urlsplit(SERVICES["driver"]["environment"]["MLFLOW_TRACKING_URI"]).netloc
    for file in ("compose.yaml", "compose.auth.yaml"):
        server = compose(file)["services"]["mlflow"]["command"]
        (hosts,) = [flag.partition("=")[2] for flag in server if flag.startswith("--allowed-hosts=")]
        assert tracking in hosts.split(",")


def test_workers_storage_and_bucket_agree():
    bucket = SERVICES["bucket"]["command"][-1]
    storage = documents(DEPLOY / "cluster.yaml")[0]["run"]["storage"]
    artifacts = SERVICES["mlflow"]["environment"]["MLFLOW_ARTIFACTS_DESTINATION"]
    assert urlsplit(storage).netloc == urlsplit(artifacts).netloc == bucket
    node = SERVICES["ray-worker"]["environment"]
    for name in ("ray-head", "driver"):
        assert node.items() <= SERVICES[name]["environment"].items()
    assert node["RAY_AUTH_MODE"] == "token"


def test_the_bucket_is_made_once_and_found_the_second_time():
    server = pytest.importorskip("moto.server", reason="moto is not installed").ThreadedMotoServer(port=0)
    server.start()
    try:
        host, port = server.get_host_and_port()
        environment = os.environ | {
            "AWS_ENDPOINT_URL": f"http://{host}:{port}",
            "AWS_ACCESS_KEY_ID": "a",
            "AWS_SECRET_ACCESS_KEY": "b",
            "AWS_DEFAULT_REGION": SERVICES["bucket"]["environment"]["AWS_DEFAULT_REGION"],
        }
        for _ in range(2):
            command = [sys.executable, str(DEPLOY / "make_bucket.py"), "headstart"]
            subprocess.run(command, env=environment, check=True)
        listing = urllib.request.urlopen(f"http://{host}:{port}/").read().decode()
        assert listing.count("<Name>headstart</Name>") == 1
    finally:
        server.stop()


@pytest.mark.slow
def test_mlflow_as_the_compose_file_starts_it_answers_by_its_name_and_by_no_other(tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    here = {"--host": "127.0.0.1", "--port": str(port), "--workers": "1"}
    command = [sys.executable, "-m"]
    for word in SERVICES["mlflow"]["command"]:
        flag, _, value = word.partition("=")
        command.append(f"{flag}={here.get(flag, value)}" if value else word)
    environment = os.environ | {
        name: value for name, value in SERVICES["mlflow"]["environment"].items() if name.startswith("MLFLOW_")
    }
    environment |= {
        "MLFLOW_BACKEND_STORE_URI": f"sqlite:///{tmp_path}/mlflow.db",
        "MLFLOW_ARTIFACTS_DESTINATION": str(tmp_path / "artifacts"),
    }

    def status(path, host):
        request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers={"Host": host})
        try:
            return urllib.request.urlopen(request, timeout=LIMIT_S).status
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return None

    server = subprocess.Popen(command, cwd=tmp_path, env=environment, start_new_session=True)
    try:
        deadline = time.monotonic() + LIMIT_S
        while status("/health", "127.0.0.1:5000") != 200:
            assert server.poll() is None, "the server exited"
            assert time.monotonic() < deadline, "the server does not answer"
            time.sleep(0.2)
        experiments = "/api/2.0/mlflow/experiments/get?experiment_id=0"
        assert status(experiments, "mlflow:5000") == 200
        assert status(experiments, "mlflow.example.com") == 403
        assert (tmp_path / "mlflow.db").exists()
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(LIMIT_S)


# --------------------------------------------------------------------------------------------- KubeRay

# The fields of KubeRay's API (ray.io/v1) that we use.
RAYJOB_FIELDS = {
    "activeDeadlineSeconds", "backoffLimit", "entrypoint", "rayClusterSpec", "shutdownAfterJobFinishes",
    "submissionMode", "submitterPodTemplate", "ttlSecondsAfterFinished",
}  # fmt: skip
RAYCLUSTER_FIELDS = {"authOptions", "headGroupSpec", "rayVersion", "workerGroupSpecs"}
HEAD_FIELDS = {"rayStartParams", "serviceType", "template"}
WORKER_FIELDS = {"groupName", "maxReplicas", "minReplicas", "rayStartParams", "replicas", "template"}


def rayjob():
    (job,) = documents(DEPLOY / "kuberay/base/rayjob.yaml")
    return job


def pods(job):
    """The pods of a RayJob by name, as Kubernetes would get them."""
    cluster = job["spec"]["rayClusterSpec"]
    templates = {
        "submitter": job["spec"]["submitterPodTemplate"],
        "head": cluster["headGroupSpec"]["template"],
    }
    templates |= {group["groupName"]: group["template"] for group in cluster["workerGroupSpecs"]}
    return {
        name: {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": template["spec"]}
        for name, template in templates.items()
    }


def containers(pod):
    return [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]


def test_the_rayjob_has_fields_that_kuberay_knows():
    job = rayjob()
    cluster = job["spec"]["rayClusterSpec"]
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    assert job["spec"].keys() <= RAYJOB_FIELDS
    assert cluster.keys() <= RAYCLUSTER_FIELDS
    assert cluster["headGroupSpec"].keys() <= HEAD_FIELDS
    assert all(group.keys() <= WORKER_FIELDS for group in cluster["workerGroupSpecs"])
    assert job["spec"]["submissionMode"] in ("K8sJobMode", "HTTPMode", "InteractiveMode", "SidecarMode")
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    assert all(isinstance(value, str) for group in groups for value in group["rayStartParams"].values())


def test_the_rayjob_protects_its_cluster_and_shuts_it_down():
    spec = rayjob()["spec"]
    cluster = spec["rayClusterSpec"]
    assert cluster["authOptions"] == {"mode": "token"}
    assert cluster["headGroupSpec"]["serviceType"] == "ClusterIP"
    assert cluster["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    assert spec["shutdownAfterJobFinishes"] is True
    assert spec["ttlSecondsAfterFinished"] > 0
    for group in cluster["workerGroupSpecs"]:
        assert 0 < group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]


@pytest.mark.parametrize("name", pods(rayjob()))
def test_a_pod_has_no_rights_to_spare_and_what_it_refers_to(name):
    pod = pods(rayjob())[name]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] == 1000
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    volumes = {volume["name"] for volume in pod["volumes"]}
    for container in containers(pods(rayjob())[name]):
        security = container["securityContext"]
        assert security["allowPrivilegeEscalation"] is False
        assert security["readOnlyRootFilesystem"] is True
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert set(container["resources"]) == {"requests", "limits"}
        assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
        assert {mount["mountPath"] for mount in container["volumeMounts"]} >= {"/tmp", "/home/headstart"}


def test_other_files_or_a_command_on_the_page_make_what_the_pods_refer_to():
    made = [each for path in files("kuberay/base/*.yaml") for each in documents(path)]
    names = {(each["kind"], each["metadata"]["name"]) for each in made if "metadata" in each}
    assert "kubectl create secret generic headstart" in (DEPLOY / "README.md").read_text()
    for pod in pods(rayjob()).values():
        for volume in pod["spec"]["volumes"]:
            if "persistentVolumeClaim" in volume:
                assert ("PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"]) in names
        for source in [source for each in containers(pod) for source in each.get("envFrom", [])]:
            ((kind, reference),) = source.items()
            assert kind == "secretRef" or ("ConfigMap", reference["name"]) in names
            assert reference["name"] == "headstart"


@pytest.mark.parametrize("name", ["base", "gpu"])
def test_kubernetes_accepts_what_kustomize_makes(name):
    validate = pytest.importorskip(
        "kubernetes_validate", reason="kubernetes-validate is not installed"
    ).validate
    built = subprocess.run(
        [tool("kubectl"), "kustomize", DEPLOY / "kuberay" / name], check=True, capture_output=True, text=True
    )
    made = {each["kind"]: each for each in yaml.safe_load_all(built.stdout)}
    assert set(made) == {"ConfigMap", "PersistentVolumeClaim", "RayJob"}
    for each in (made["ConfigMap"], made["PersistentVolumeClaim"], *pods(made["RayJob"]).values()):
        validate(each, "1.37", strict=True)
    everything = [each for pod in pods(made["RayJob"]).values() for each in containers(pod)]
    suffix = "-cuda" if name == "gpu" else ""
    assert {each["image"] for each in everything} == {f"registry.example.com/headstart:{IMAGE_TAG}{suffix}"}
    gpus = [each["name"] for each in everything if "nvidia.com/gpu" in each["resources"]["limits"]]
    assert gpus == (["ray-worker"] if name == "gpu" else [])


# ---------------------------------------------------------------------------------------------- ray up


@pytest.mark.parametrize("path", files("ray-cluster-*.yaml"), ids=lambda path: path.stem)
def test_ray_accepts_the_cluster_file_and_requires_the_token(path):
    from ray.autoscaler._private.util import prepare_config, validate_config

    config = documents(path)[0]
    validate_config(prepare_config(config))
    assert "--env=RAY_AUTH_MODE=token" in config["docker"]["run_options"]
    assert "--cap-drop=ALL" in config["docker"]["run_options"]
    assert config["file_mounts"]["~/.ray/auth_token"] == "~/.ray/auth_token"
    start = config["head_start_ray_commands"][-1]
    assert "--dashboard-host=127.0.0.1" in start
    assert "--autoscaling-config=~/ray_bootstrap_config.yaml" in start
    head = config.get("available_node_types", {}).get("head", {})
    assert head.get("resources") == {"CPU": 0} or "--num-cpus=0" in start  # training runs on the workers


# ----------------------------------------------------------------------------------------------- SLURM

# Drops srun's own flags and runs the command once: a job of one node.
SRUN = """#!/bin/bash
while [[ $1 == --* ]]; do shift; done
[[ $1 == ray ]] && echo $$ >"$STAND_INS/step.pid"
exec setsid env --default-signal=INT "$@"
"""
# Sends a signal to all processes of that command.
SCANCEL = """#!/bin/bash
echo "$*" >>"$STAND_INS/scancel.log"
kill -s "${1#--signal=}" -- "-$(cat "$STAND_INS/step.pid")"
"""
# Runs the command after --, as `ray symmetric-run` does on the head.
RAY = """#!/bin/bash
echo "$RAY_ADDRESS|$*" >>"$STAND_INS/ray.log"
until [[ $1 == -- ]]; do shift; done
shift
exec "$@"
"""
RAY_THAT_FAILS = "#!/bin/bash\nexit 0\n"  # as symmetric-run does if `ray start` fails
SLURM = str(DEPLOY / "slurm.sh")
SCONTROL = '#!/bin/bash\necho "$*" >>"$STAND_INS/scontrol.log"\n'

DRIVER = """
import ray, sys, urllib.error, urllib.request
ray.init(log_to_driver=False, logging_level="error")
print("CPUs", ray.cluster_resources()["CPU"])
try:
    urllib.request.urlopen("http://127.0.0.1:8265/api/jobs/")
except urllib.error.HTTPError as error:
    print("without a token", error.code)
# The health checks of KubeRay and the compose file, which have no token.
for address in ("52365/api/local_raylet_healthz", "8265/api/gcs_healthz"):
    print(urllib.request.urlopen(f"http://127.0.0.1:{address}").read().decode())
sys.exit(3)
"""


def job(tmp_path, ray):
    """An environment like SLURM's, with stand-ins for its programs and, if given, for Ray."""
    stand_ins, checkout = tmp_path / "bin", tmp_path / "checkout"
    stand_ins.mkdir()
    checkout.mkdir()
    programs = {"srun": SRUN, "scancel": SCANCEL, "scontrol": SCONTROL} | ({"ray": ray} if ray else {})
    for name, script in programs.items():
        (stand_ins / name).write_text(script)
        (stand_ins / name).chmod(0o755)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return inherited | {
        "PATH": os.pathsep.join([str(stand_ins), str(Path(sys.executable).parent), os.environ["PATH"]]),
        "STAND_INS": str(stand_ins),
        "SLURM_JOB_ID": str(os.getpid()),
        "SLURM_JOB_NUM_NODES": "1",
        "SLURM_CPUS_PER_TASK": "2",
        "SLURM_SUBMIT_DIR": str(checkout),
        "HEADSTART_HEAD_IP": "127.0.0.1",
    }


def left_behind(environment):
    folder = Path(environment["SLURM_SUBMIT_DIR"])
    there = [path for path in folder.rglob("*") if path.is_file()]
    return [*there, *Path("/tmp").glob(f"headstart-{environment['SLURM_JOB_ID']}")]


def test_the_slurm_script_has_no_lint_and_its_settings_come_first():
    script = DEPLOY / "slurm.sh"
    subprocess.run(["bash", "-n", script], check=True)
    lines = script.read_text().splitlines()
    first_command = next(number for number, line in enumerate(lines) if line and not line.startswith("#"))
    assert all(number < first_command for number, line in enumerate(lines) if line.startswith("#SBATCH"))
    assert "#SBATCH --exclusive" in lines  # symmetric-run ends with `ray stop`, also for other jobs
    assert os.access(script, os.X_OK)
    subprocess.run([tool("shellcheck"), script], check=True)


def test_a_slurm_job_runs_its_command_with_its_own_token_and_returns_its_exit_code(tmp_path):
    environment = job(tmp_path, RAY)
    look = 'stat -c %a "$RAY_AUTH_TOKEN_PATH"; wc -c <"$RAY_AUTH_TOKEN_PATH"'
    look += '; echo "$RAY_AUTH_MODE $RAY_ADDRESS $PWD $1"; exit 7'
    command = [SLURM, "bash", "-c", look, "x", "an  argument"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 7, done.stderr
    mode, size, rest = done.stdout.splitlines()
    assert mode == "600"
    assert int(size) > 32
    assert rest == f"token 127.0.0.1:6379 {environment['SLURM_SUBMIT_DIR']} an  argument"
    address, _, arguments = (tmp_path / "bin/ray.log").read_text().strip().partition("|")
    assert not address  # else `ray start` would join a Ray there
    assert arguments.startswith(
        "symmetric-run --address 127.0.0.1:6379 --min-nodes 1 --num-cpus 2 --dashboard-host 127.0.0.1 -- "
    )
    assert not left_behind(environment)


def test_a_slurm_job_whose_ray_did_not_start_fails(tmp_path):
    environment = job(tmp_path, RAY_THAT_FAILS)
    done = subprocess.run([SLURM, "true"], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "Ray did not start" in done.stderr
    assert not left_behind(environment)


@pytest.mark.parametrize(("in_time", "code"), [(False, 1), (True, 0)])
def test_a_slurm_job_near_its_time_limit_stops_cleanly_and_is_requeued(tmp_path, in_time, code):
    environment = job(tmp_path, RAY)
    identity = environment["SLURM_JOB_ID"]
    answer = f"trap 'echo told; exit {0 if in_time else 255}' INT; echo began; while :; do sleep 0.05; done"
    command = [SLURM, "bash", "-c", answer]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "began\n"
        running.send_signal(signal.SIGUSR1)
        assert running.stdout.readline() == "told\n"
    assert running.returncode == code
    assert (tmp_path / "bin/scancel.log").read_text() == f"--signal=INT {identity}.0\n"
    asked = tmp_path / "bin/scontrol.log"
    assert (asked.read_text() if asked.exists() else "") == ("" if in_time else f"requeue {identity}\n")
    assert not left_behind(environment)


@pytest.mark.ray
@pytest.mark.slow
def test_a_slurm_job_starts_a_real_ray_that_requires_the_token_and_leaves_nothing_behind(tmp_path):
    """In its own process namespace: `ray symmetric-run` ends with a `ray stop` of every Ray that it sees."""
    alone = ["unshare", "--pid", "--net", "--fork", "--mount-proc", "--kill-child"]
    loopback = [shutil.which("ip") or "ip", "link", "set", "lo", "up"]
    if subprocess.run([*alone, *loopback], capture_output=True, check=False).returncode:
        pytest.skip("namespaces cannot be made here, and in ours every Ray of this machine would be stopped")
    environment = job(tmp_path, None)
    inside = f'{" ".join(loopback)}; "$@"; code=$?; ps -eo stat,args | grep -v ^Z | grep -c "[r]aylet/raylet"'
    command = [*alone, "bash", "-c", f"{inside}; exit $code", "x"]
    command += [SLURM, sys.executable, "-c", DRIVER]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=2 * LIMIT_S, check=False
    )
    lines = done.stdout.splitlines()
    assert done.returncode == 3, done.stdout + done.stderr
    assert "CPUs 2.0" in lines
    assert "without a token 401" in lines
    assert lines.count("success") == 2
    assert lines[-1] == "0"  # surviving raylets
    assert not left_behind(environment)


def test_only_the_scripts_are_executable():
    executable = [path.name for path in files("*") if path.is_file() and path.stat().st_mode & stat.S_IXUSR]
    assert executable == ["slurm.sh"]
