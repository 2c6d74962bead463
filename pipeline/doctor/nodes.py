"""The probes of all nodes, and what their answers mean."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from pipeline.distributed.failures import reason_of
from pipeline.distributed.placement import Placement
from pipeline.doctor.findings import HANGS, Finding, failure, in_background, ok, warning
from pipeline.doctor.needs import FACTOR, PROCESS_BYTES, Need
from pipeline.doctor.probe import DRIVER, Facts, Probe, ProbeSettings, Problem, StorageAnswer
from pipeline.terminal.sizes import readable

START_S = 60.0  # for a process to start on a node
LIMITS_S = {"facts": 40.0, "storage": 30.0, "tracking": 20.0}
QUICK_S = 10.0  # to remove a few files, or to tell the time
SKEW_S = 2.0  # a larger difference between two clocks is a warning
ENOUGH_TEMP_BYTES = 1e9
ENOUGH_SHM_BYTES = 1e9


@dataclass(frozen=True)
class Node:
    """A machine whose `Probe` answers questions."""

    name: str
    resources: Mapping[str, float]  # as Ray counts them
    ask: Callable[..., Future[Any]]  # question, arguments -> Probe.answer


def this_process(settings: ProbeSettings) -> Node:
    """The driver, which is the only node without Ray."""
    probe = Probe(DRIVER, settings)
    return Node(DRIVER, {}, lambda *question: in_background(lambda: probe.answer(*question)))


@dataclass(frozen=True)
class Answers:
    """The answers of one node. A `Problem` takes the place of an answer."""

    node: str
    resources: Mapping[str, float]
    skew_s: float  # its clock minus the driver's, as far as the time that asking takes does not explain it
    facts: Facts | Problem
    storage: StorageAnswer | Problem | None  # None: not asked, because the driver could not write
    tracking: str | Problem
    driver_sees: bool | Problem | None = None  # whether the driver sees the node's file


def probe_nodes(
    settings: ProbeSettings, nodes: Sequence[Node]
) -> tuple[Answers, list[Answers], list[Finding]]:
    """Ask the driver and all nodes at the same time, then remove all files that the probes wrote.

    Returns the driver's answers, those of the nodes, and a finding for each node that does not answer.
    """
    driver = this_process(settings)
    present, findings = _present(nodes)
    try:
        written = _answer(driver.ask("write"), LIMITS_S["storage"], "storage")
        answers = _ask_all([driver, *present], driver, written)
    finally:
        for some in (present, [driver]):  # the driver last: by then others have removed theirs
            for removed in [each.ask("clean_up") for each in some]:
                _answer(removed, QUICK_S, "removing files")
    return answers[0], answers[1:], findings


def _present(nodes: Sequence[Node]) -> tuple[list[Node], list[Finding]]:
    """The nodes on which a process starts, and a failure for each other."""
    asked = [node.ask("clock") for node in nodes]
    ends = time.monotonic() + START_S
    answers = [_answer(future, ends - time.monotonic(), "a process there") for future in asked]
    silent = [(node, each) for node, each in zip(nodes, answers, strict=True) if isinstance(each, Problem)]
    present = [node for node, each in zip(nodes, answers, strict=True) if not isinstance(each, Problem)]
    return present, [failure("nodes", f"{node.name}: {each.found}", each.to_do) for node, each in silent]


def _ask_all(nodes: Sequence[Node], driver: Node, not_written: Problem | None) -> list[Answers]:
    skews = [_skew(node) for node in nodes]
    questions = [question for question in LIMITS_S if not_written is None or question != "storage"]
    asked = [{question: node.ask(question) for question in questions} for node in nodes]
    began = time.monotonic()
    answers = []
    for node, skew_s, futures in zip(nodes, skews, asked, strict=True):
        found: dict[str, Any] = {"storage": not_written if node is driver else None}
        for question, future in futures.items():
            found[question] = _answer(future, began + LIMITS_S[question] - time.monotonic(), question)
        if isinstance(found["storage"], StorageAnswer) and node is not driver:
            found["driver_sees"] = _answer(driver.ask("sees", node.name), LIMITS_S["storage"], "storage")
        answers.append(Answers(node.name, node.resources, skew_s, **found))
    return answers


def _answer(future: Future[Any], limit_s: float, what: str) -> Any:
    """The answer; a `Problem` if it takes too long, or if the process there fails."""
    try:
        return future.result(max(limit_s, 0.1))
    except TimeoutError:
        return Problem(f"{what} did not answer within {limit_s:.0f} s", HANGS)
    except Exception as error:  # of Ray, or of other libraries there
        return Problem(f"{what} failed: {reason_of(error)}", "see Ray's logs of that node (`ray logs`)")


def _skew(node: Node) -> float:
    before = time.time()
    there = _answer(node.ask("clock"), QUICK_S, "its clock")
    after = time.time()
    return 0.0 if isinstance(there, Problem) else min(there - before, 0.0) + max(there - after, 0.0)


# ------------------------------------------------------------------------------------------- judging


def judge(
    driver: Answers, answers: Sequence[Answers], placement: Placement | None, needs: Sequence[Need]
) -> Iterator[Finding]:
    """All findings from the answers. Without nodes, the driver trains."""
    everybody = [driver, *answers]
    yield from _problems("facts", {each.node: each.facts for each in everybody})
    known = [(each, each.facts) for each in answers or [driver] if isinstance(each.facts, Facts)]
    if isinstance(driver.facts, Facts):
        yield from versions(known, driver.facts)
    yield from clocks(answers)
    yield from machines(known)
    if placement is not None:
        yield from memory(known, placement, needs)
    yield from storage(everybody)
    yield from tracking(everybody)


Known = Sequence[tuple[Answers, Facts]]


def versions(known: Known, wanted: Facts) -> Iterator[Finding]:
    """Python, the libraries and this project's code have to be those of the driver."""
    to_do = "check out the same commit there, install its requirements.lock, and restart its Ray"
    fine = True
    for each, facts in known:
        others = [
            f"{name} {facts.versions.get(name)}, here {version}"
            for name, version in wanted.versions.items()
            if facts.versions.get(name) != version
        ]
        if others:
            fine = False
            yield failure("versions", f"{each.node} has {', '.join(others)}", to_do)
    if known and fine:
        names = ", ".join(f"{name} {version}" for name, version in wanted.versions.items())
        where = "on this machine" if len(known) == 1 else f"on all {len(known)} nodes"
        yield ok("versions", f"{names}; {where}")


def clocks(answers: Sequence[Answers]) -> Iterator[Finding]:
    off = [each for each in answers if abs(each.skew_s) > SKEW_S]
    why = "logs and curves of several nodes do not fit together, and from 15 minutes on S3 refuses requests"
    for each in off:
        yield warning(
            "clocks", f"{each.node} is {each.skew_s:+.0f} s off: {why}", "synchronise its clock (NTP)"
        )
    if answers and not off:
        yield ok("clocks", f"no difference above {SKEW_S:g} s")


def machines(known: Known) -> Iterator[Finding]:
    """CPUs, GPUs and temporary space of each node, next to what Ray counts."""
    fine: list[str] = []
    for each, facts in known:
        cpus, gpus = (int(each.resources.get(kind, 0)) for kind in ("CPU", "GPU"))
        low_shm = each.node != DRIVER and (facts.shm_bytes or ENOUGH_SHM_BYTES) < ENOUGH_SHM_BYTES
        checks = (
            (cpus > facts.cpus, warning, f"Ray counts {cpus} CPUs, its processes may use {facts.cpus}",
             f"start its Ray with --num-cpus={facts.cpus}; otherwise workers share CPUs and slow down"),
            (gpus > len(facts.gpus), failure, f"Ray counts {gpus} GPUs, torch sees {len(facts.gpus)}",
             "install the torch build and the driver for its GPUs, or set run.device to cpu"),
            (facts.temp_bytes < ENOUGH_TEMP_BYTES, warning, f"{readable(facts.temp_bytes)} free in "
             f"{facts.temp}, which uploads to a bucket, inputs and Ray's logs need",
             "free some, or set TMPDIR"),
            (low_shm, warning, f"/dev/shm, which Ray and NCCL use, holds {readable(facts.shm_bytes or 0)}",
             "give the container more (docker run --shm-size=2g; on Kubernetes an emptyDir in memory)"),
        )  # fmt: skip
        problems = [kind("machines", f"{each.node}: {found}", to_do)
                    for is_bad, kind, found, to_do in checks if is_bad]  # fmt: skip
        yield from problems
        if not problems:
            names = f", {len(facts.gpus)} GPUs ({', '.join(sorted(set(facts.gpus)))})" if facts.gpus else ""
            free = f"{readable(facts.memory_bytes)} memory, {readable(facts.temp_bytes)} in {facts.temp}"
            fine.append(f"{each.node}: {facts.cpus} CPUs{names}; free: {free}")
    if fine:
        yield ok("machines", "; ".join(fine))


def memory(known: Known, placement: Placement, needs: Sequence[Need]) -> Iterator[Finding]:
    """Whether the largest training fits each node that gets workers."""
    need = max(needs, key=lambda each: each.worker_bytes)
    process = PROCESS_BYTES if placement.use_gpu else need.process_bytes
    to_do = "free some, lower batch_rows or bptt (max_tokens), or raise run.threads_per_worker"
    fine: list[str] = []
    for each, facts in known:
        num_workers = 1 if each.node == DRIVER else workers_on(each.resources, placement)
        if not num_workers:
            continue
        takes = f"{num_workers} x {readable(process)}" if num_workers > 1 else readable(process)
        checks = [(f"{takes} of memory", num_workers * process, facts.memory_bytes)]
        if placement.use_gpu and facts.gpu_free_bytes:
            gpu = f"{readable(need.worker_bytes)} of a GPU"
            checks.append((gpu, need.worker_bytes, min(facts.gpu_free_bytes)))
        short = next((check for check in checks if check[1] * FACTOR > check[2]), None)
        if short is None:
            fine.append(f"{each.node} {takes} of {readable(facts.memory_bytes)}")
            continue
        what, wanted, free = short
        said = f"{each.node}: {need.stage} takes about {what} (to within a factor of {FACTOR:g})"
        kind = failure if wanted > free else warning
        yield kind("memory", f"{said}, {readable(free)} are free", to_do)
    if fine:
        largest = f"{need.stage}, the largest ({need.num_parameters / 1e6:.1f} M parameters)"
        yield ok("memory", f"{largest}, takes about: {'; '.join(fine)}")


def workers_on(resources: Mapping[str, float], placement: Placement) -> int:
    """How many workers of the plan a node of these resources holds, at most."""
    by_cpus = int(resources.get("CPU", 0)) // placement.threads
    by_gpus = int(resources.get("GPU", 0)) if placement.use_gpu else by_cpus
    return min(by_cpus, by_gpus, placement.num_workers)


def storage(answers: Sequence[Answers]) -> Iterator[Finding]:
    """Whether all nodes share one storage, and it does what `pipeline.storage` relies on."""
    yield from _problems("storage", {each.node: each.storage for each in answers})
    speeds: list[float] = []
    for each in answers:
        if not isinstance(each.storage, StorageAnswer):
            continue
        if isinstance(each.driver_sees, Problem):
            found = f"the driver cannot read what {each.node} wrote: {each.driver_sees.found}"
            to_do = "run Ray and headstart as the same user"
        elif not each.storage.sees_driver or each.driver_sees is False:
            found = f"run.storage is another folder on {each.node}: its files and the driver's are not shared"
            to_do = "mount one folder at the same path everywhere (NFS), or set run.storage to s3://..."
        elif not each.storage.lists:
            found = f"{each.node} does not list what it just wrote to run.storage"
            to_do = "use a consistent storage: NFS without attribute caching (actimeo=0), or S3"
        elif not each.storage.creates_once:
            found = f"{each.node} can create a file in run.storage twice: two processes could train one run"
            to_do = "use a storage with exclusive creation: hard links in a folder, If-None-Match in S3"
        else:
            speeds.append(each.storage.bytes_per_s)
            continue
        yield failure("storage", found, to_do)
    if speeds:
        ends = dict.fromkeys(readable(speed) for speed in (min(speeds), max(speeds)))
        done = "reads, writes, lists, creates exclusively and removes"
        yield ok("storage", f"{done} {_from(len(speeds))}; {' to '.join(ends)} a second")


def tracking(answers: Sequence[Answers]) -> Iterator[Finding]:
    yield from _problems("tracking", {each.node: each.tracking for each in answers})
    fine = [each.tracking for each in answers if isinstance(each.tracking, str)]
    if fine:
        yield ok("tracking", f"{fine[-1]}, {_from(len(fine))}")


def _problems(check: str, answers: Mapping[str, Any]) -> Iterator[Finding]:
    """A failure for each different problem, with all nodes that have it."""
    nodes_by_problem: dict[Problem, list[str]] = defaultdict(list)
    for node, answer in answers.items():
        if isinstance(answer, Problem):
            nodes_by_problem[answer].append(node)
    for problem, nodes in nodes_by_problem.items():
        yield failure(check, f"{', '.join(nodes)}: {problem.found}", problem.to_do)


def _from(number: int) -> str:
    return "from here" if number == 1 else f"from {number} places"
