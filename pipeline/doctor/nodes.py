"""Asking every node, and what its answers mean."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

from pipeline.doctor.findings import Finding, failure, in_background, ok, size, warning
from pipeline.doctor.needs import FACTOR, PROCESS_BYTES, Need
from pipeline.doctor.probe import DRIVER, Errand, Facts, Probe, StorageAnswer, Trouble
from pipeline.launch import Placement, reason_of

START_S = 60.0  # for a process on a node to be there
LIMITS_S = {"facts": 40.0, "storage": 30.0, "tracking": 20.0}
CLEAR_S = 10.0  # to remove a few files, to tell the time
HANGS = "see why it hangs: network, storage, or a busy machine"
SKEW_S = 2.0  # between two clocks, from which on it is told
ENOUGH_TEMP_BYTES = 1e9
ENOUGH_SHM_BYTES = 1e9


class Node(Protocol):
    """Where questions of `Probe` can be asked."""

    name: str
    resources: Mapping[str, float]  # as Ray was told

    def ask(self, question: str, *about: Any) -> Future[Any]: ...


class ThisProcess:
    """The driver; all there is where no Ray is used."""

    def __init__(self, errand: Errand) -> None:
        self.name = DRIVER
        self.resources: Mapping[str, float] = {}
        self._probe = Probe(DRIVER, errand)

    def ask(self, question: str, *about: Any) -> Future[Any]:
        return in_background(lambda: getattr(self._probe, question)(*about))


@dataclass(frozen=True)
class Answers:
    """Of one node. `Trouble` stands for what could not be answered."""

    node: str
    resources: Mapping[str, float]
    skew_s: float  # of its clock against the driver's; certain to within `skew_within_s`
    skew_within_s: float
    facts: Facts | Trouble
    storage: StorageAnswer | Trouble | None  # None: not asked, as the driver could not write
    tracking: str | Trouble
    seen: bool | Trouble | None = None  # whether the driver sees what it wrote

    @property
    def cpus(self) -> int:
        return int(self.resources.get("CPU", 0))

    @property
    def gpus(self) -> int:
        return int(self.resources.get("GPU", 0))


def visit(errand: Errand, nodes: Sequence[Node]) -> tuple[Answers, list[Answers], list[Finding]]:
    """The answers of the driver and of all nodes, asked at once; what is wrong with nodes that say nothing.

    All that the errand wrote is removed again.
    """
    driver = ThisProcess(errand)
    present, findings = _present(nodes)
    everybody: list[Node] = [driver, *present]
    try:
        announced = _answer(driver.ask("announce"), LIMITS_S["storage"], "storage")
        answers = _ask_all(everybody, driver, announced)
    finally:
        # The driver last: what others see of the same folder is gone by then.
        for some in (present, [driver]):
            for cleared in [each.ask("clear") for each in some]:
                _answer(cleared, CLEAR_S, "removing")
    return answers[0], answers[1:], findings


def _present(nodes: Sequence[Node]) -> tuple[list[Node], list[Finding]]:
    """Nodes that a process could be started on."""
    waiting = [(node, node.ask("clock")) for node in nodes]
    began = time.monotonic()
    present, findings = [], []
    for node, future in waiting:
        told = _answer(future, began + START_S - time.monotonic(), "a process there")
        if isinstance(told, Trouble):
            findings.append(failure("nodes", f"{node.name}: {told.found}", told.to_do))
        else:
            present.append(node)
    return present, findings


def _ask_all(nodes: Sequence[Node], driver: Node, announced: Trouble | None) -> list[Answers]:
    skews = [_skew(node) for node in nodes]
    questions = [question for question in LIMITS_S if announced is None or question != "storage"]
    asked = [{question: node.ask(question) for question in questions} for node in nodes]
    began = time.monotonic()
    answers = []
    for node, (skew_s, within_s), futures in zip(nodes, skews, asked, strict=True):
        told: dict[str, Any] = {"storage": announced if node is driver else None}
        for question, future in futures.items():
            told[question] = _answer(future, began + LIMITS_S[question] - time.monotonic(), question)
        if isinstance(told["storage"], StorageAnswer) and node is not driver:
            told["seen"] = _answer(driver.ask("sees", node.name), LIMITS_S["storage"], "storage")
        answers.append(Answers(node.name, node.resources, skew_s, within_s, **told))
    return answers


def _answer(future: Future[Any], limit_s: float, what: str) -> Any:
    """What was answered; `Trouble` where nothing was in time, or the process there failed."""
    try:
        return future.result(max(limit_s, 0.1))
    except TimeoutError:
        return Trouble(f"{what} did not answer within {limit_s:.0f} s", HANGS)
    except Exception as error:  # of Ray, or of other libraries there
        return Trouble(f"{what} failed: {reason_of(error)}", "see Ray's logs of that node (`ray logs`)")


def _skew(node: Node) -> tuple[float, float]:
    """Of its clock against this one's, and half the time that asking took."""
    before = time.time()
    there = _answer(node.ask("clock"), CLEAR_S, "its clock")
    after = time.time()
    return (0.0, 0.0) if isinstance(there, Trouble) else (there - (before + after) / 2, (after - before) / 2)


# ------------------------------------------------------------------------------------------- judging


def judge(
    driver: Answers, answers: Sequence[Answers], placement: Placement | None, needs: Sequence[Need]
) -> Iterator[Finding]:
    """All that follows from what the driver and the nodes told. Without nodes the driver trains."""
    everybody = [driver, *answers]
    yield from _troubles("facts", {each.node: each.facts for each in everybody})
    known = [each for each in answers or [driver] if isinstance(each.facts, Facts)]
    if isinstance(driver.facts, Facts):
        yield from versions(known, driver.facts)
    if answers:
        yield from clocks(answers)
    yield from machines(known)
    if placement is not None:
        yield from memory(known, placement, needs)
    yield from storage(everybody)
    yield from tracking(everybody)


def versions(answers: Sequence[Answers], wanted: Facts) -> Iterator[Finding]:
    """Python, libraries and this code have to be the driver's."""
    fine = True
    for each in answers:
        facts = _facts(each)
        others = {
            name: (facts.versions.get(name), version)
            for name, version in wanted.versions.items()
            if facts.versions.get(name) != version
        }
        if others:
            fine = False
            told = ", ".join(f"{name} {found}, here {mine}" for name, (found, mine) in others.items())
            yield failure(
                "versions",
                f"{each.node} has {told}",
                "install requirements.lock in the environment of that node",
            )
        if facts.code != wanted.code:
            fine = False
            yield failure(
                "versions",
                f"{each.node} has other code of this project than here",
                "check out the same commit there, and start its Ray again",
            )
    if answers and fine:
        told = ", ".join(f"{name} {version}" for name, version in wanted.versions.items())
        yield ok("versions", f"{told}; code {wanted.code[:8]}; {_on(len(answers))}")


def clocks(answers: Sequence[Answers]) -> Iterator[Finding]:
    off = [each for each in answers if abs(each.skew_s) > SKEW_S + each.skew_within_s]
    for each in off:
        yield warning(
            "clocks",
            f"{each.node} is {each.skew_s:+.0f} s off (within {each.skew_within_s:.1f} s); logs and curves "
            "of several nodes will not fit together, and S3 refuses what is 15 minutes off",
            "have it set its clock (NTP)",
        )
    if answers and not off:
        most = max(abs(each.skew_s) + each.skew_within_s for each in answers)
        yield ok("clocks", f"differ by less than {most:.2g} s")


def machines(answers: Sequence[Answers]) -> Iterator[Finding]:
    """CPUs, GPUs and room for what is passing, as they are and as Ray was told."""
    fine: list[str] = []
    for each in answers:
        facts = _facts(each)
        problems = list(_problems(each, facts))
        yield from problems
        if not problems:
            gpus = f", {len(facts.gpus)} GPUs ({', '.join(sorted(set(facts.gpus)))})" if facts.gpus else ""
            fine.append(
                f"{each.node}: {facts.cpus} CPUs{gpus}, {size(facts.memory_bytes)} memory and "
                f"{size(facts.temp_bytes)} in {facts.temp} free"
            )
    if fine:
        yield ok("machines", "; ".join(fine))


def _problems(each: Answers, facts: Facts) -> Iterator[Finding]:
    if each.cpus > facts.cpus:
        yield warning(
            "machines",
            f"{each.node}: Ray was told of {each.cpus} CPUs, its processes may use {facts.cpus}",
            f"start its Ray with --num-cpus={facts.cpus}, else workers share them and slow each other down",
        )
    if each.gpus > len(facts.gpus):
        yield failure(
            "machines",
            f"{each.node}: Ray was told of {each.gpus} GPUs, torch sees {len(facts.gpus)}",
            "install the torch build and the driver that fit its GPUs, or set run.device to cpu",
        )
    if facts.temp_bytes < ENOUGH_TEMP_BYTES:
        yield warning(
            "machines",
            f"{each.node}: {size(facts.temp_bytes)} free in {facts.temp}, where checkpoints to a bucket, "
            "input and Ray's logs pass",
            "free some, or set TMPDIR",
        )
    if each.node != DRIVER and facts.shm_bytes is not None and facts.shm_bytes < ENOUGH_SHM_BYTES:
        yield warning(
            "machines",
            f"{each.node}: /dev/shm holds {size(facts.shm_bytes)}; Ray's objects and NCCL live there",
            "give the container more (docker run --shm-size=2g; an emptyDir of medium Memory on Kubernetes)",
        )


def memory(answers: Sequence[Answers], placement: Placement, needs: Sequence[Need]) -> Iterator[Finding]:
    """Whether the largest training fits each node that workers go to."""
    need = max(needs, key=lambda each: each.worker_bytes)
    fine: list[str] = []
    for each in answers:
        facts = _facts(each)
        num_workers = 1 if each.node == DRIVER else workers_on(each.resources, placement)
        if not num_workers:
            continue
        process = PROCESS_BYTES if placement.use_gpu else need.process_bytes
        told = f"{num_workers} x {size(process)}" if num_workers > 1 else size(process)
        problem = _too_little(
            f"{each.node}: {need.stage} takes about {told} of memory",
            num_workers * process,
            facts.memory_bytes,
        )
        if placement.use_gpu and facts.gpu_free_bytes and problem is None:
            problem = _too_little(
                f"{each.node}: {need.stage} takes about {size(need.worker_bytes)} of a GPU",
                need.worker_bytes,
                min(facts.gpu_free_bytes),
            )
        if problem is None:
            fine.append(f"{each.node} {told} of {size(facts.memory_bytes)}")
        else:
            yield problem
    if fine:
        yield ok(
            "memory",
            f"{need.stage}, the largest ({need.num_parameters / 1e6:.1f} M parameters), takes about: "
            + "; ".join(fine),
        )


def _too_little(what: str, wanted: float, free: float) -> Finding | None:
    to_do = (
        "free some, lower batch_rows or bptt (max_tokens) of that section, or have fewer workers on a node "
        "(run.threads_per_worker)"
    )
    if wanted > free:
        return failure("memory", f"{what}, {size(free)} are free", to_do)
    if wanted * FACTOR > free:
        return warning("memory", f"{what} (to within a factor of {FACTOR:g}), {size(free)} are free", to_do)
    return None


def workers_on(resources: Mapping[str, float], placement: Placement) -> int:
    """How many workers of the plan a node of these resources holds, at most."""
    by_cpus = int(resources.get("CPU", 0)) // placement.threads
    by_gpus = int(resources.get("GPU", 0)) if placement.use_gpu else by_cpus
    return min(by_cpus, by_gpus, placement.num_workers)


def storage(answers: Sequence[Answers]) -> Iterator[Finding]:
    """Whether all nodes have the same storage, and it keeps what `pipeline.storage` promises."""
    yield from _troubles("storage", {each.node: each.storage for each in answers})
    fine: list[float] = []
    for each in answers:
        if not isinstance(each.storage, StorageAnswer):
            continue
        if isinstance(each.seen, Trouble):
            yield failure("storage", f"what {each.node} wrote, the driver cannot read: {each.seen.found}",
                          "run Ray and headstart as the same user")  # fmt: skip
        elif not each.storage.sees_driver or each.seen is False:
            yield failure(
                "storage",
                f"{each.node} and the driver do not see what the other wrote to run.storage: it is another "
                "folder there",
                "mount the same folder at the same path on all nodes (NFS), or set run.storage to "
                "s3://bucket/folder",
            )
        elif not each.storage.lists:
            yield failure(
                "storage",
                f"{each.node} does not list what it just wrote to run.storage",
                "use a storage that is consistent: NFS without attribute caching (actimeo=0), or S3",
            )
        elif not each.storage.creates_once:
            yield failure(
                "storage",
                f"{each.node} could create the same file in run.storage twice: two runs could train as one",
                "use a storage with exclusive creation: a folder with hard links, or an S3 that knows "
                "If-None-Match",
            )
        else:
            fine.append(each.storage.bytes_per_s)
    if fine:
        speed = size(min(fine)) if len(fine) == 1 else f"{size(min(fine))} to {size(max(fine))}"
        yield ok(
            "storage",
            f"read, written, listed, created exclusively, removed {_from(len(fine))}; {speed} a second",
        )


def tracking(answers: Sequence[Answers]) -> Iterator[Finding]:
    yield from _troubles("tracking", {each.node: each.tracking for each in answers})
    fine = [each.tracking for each in answers if isinstance(each.tracking, str)]
    if fine:
        yield ok("tracking", fine[0] if len(fine) == 1 else f"{fine[-1]}; {_from(len(fine))}")


def _troubles(check: str, answers: Mapping[str, Any]) -> Iterator[Finding]:
    """A failure for each different trouble, with all nodes that have it."""
    nodes_by_trouble: dict[Trouble, list[str]] = defaultdict(list)
    for node, answer in answers.items():
        if isinstance(answer, Trouble):
            nodes_by_trouble[answer].append(node)
    for trouble, nodes in nodes_by_trouble.items():
        yield failure(check, f"{', '.join(nodes)}: {trouble.found}", trouble.to_do)


def _facts(answers: Answers) -> Facts:
    assert isinstance(answers.facts, Facts)
    return answers.facts


def _on(number: int) -> str:
    return "on this machine" if number == 1 else f"on all {number} nodes"


def _from(number: int) -> str:
    return "from here" if number == 1 else f"from {number} places"
