"""The probes of all nodes, and what their answers mean."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Any

from pipeline.distributed.failures import reason_of
from pipeline.distributed.placement import Placement
from pipeline.doctor.findings import HANGS, Finding, failure, in_background, ok, warning
from pipeline.doctor.needs import FACTOR, PROCESS_BYTES, Need, fitting
from pipeline.doctor.probe import DRIVER, Facts, Probe, ProbeSettings, Problem
from pipeline.terminal.sizes import readable

START_S = 60.0  # for a process to start on a node
ANSWER_S = 40.0
QUICK_S = 10.0  # to read or remove a few files, or to tell the time
SKEW_S = 2.0  # a larger difference between two clocks is a warning
ENOUGH_TEMP_BYTES = 1e9
ENOUGH_SHM_BYTES = 1e9


@dataclass(frozen=True)
class Node:
    """A machine whose `Probe` answers questions."""

    name: str
    resources: Mapping[str, float]  # as Ray counts them
    ask: Callable[..., Future[Any]]  # question, arguments -> Probe.answer


@dataclass(frozen=True)
class Answers:
    """The answers of one node: a `Problem` where there is none, None where it was not asked."""

    node: str
    resources: Mapping[str, float]
    skew_s: float  # its clock minus the driver's, beyond the time that asking took
    facts: Facts | Problem
    storage: str | Problem | None = None
    tracking: str | Problem | None = None


def probe_nodes(settings: ProbeSettings, nodes: Sequence[Node]) -> list[Answers]:
    """Ask the driver and all nodes at the same time, then remove all files that the probes wrote.

    Returns the answers of the driver, which is this process, then those of the nodes.
    """
    probe = Probe(DRIVER, settings)
    driver = Node(DRIVER, {}, lambda *question: in_background(lambda: probe.answer(*question)))
    started = _answers([node.ask("clock") for node in nodes], START_S)
    present, silent = [], []
    for node, clock in zip(nodes, started, strict=True):
        if isinstance(clock, Problem):
            silent.append(Answers(node.name, node.resources, 0.0, facts=clock))
        else:
            present.append(node)
    try:
        return _ask_all(driver, present) + silent
    finally:
        for some in (present, [driver]):  # the driver last: by then others have removed theirs
            _answers([node.ask("clean_up") for node in some], QUICK_S)


def _ask_all(driver: Node, nodes: Sequence[Node]) -> list[Answers]:
    everybody = [driver, *nodes]
    skews = [_skew(node) for node in everybody]
    facts, tracking = ([node.ask(question) for node in everybody] for question in ("facts", "tracking"))
    stored = _answers([driver.ask("storage")], ANSWER_S)
    if isinstance(stored[0], Problem):  # and nothing was written that nodes could see
        stored += [None] * len(nodes)
    else:
        theirs = _answers([node.ask("storage") for node in nodes], ANSWER_S)
        unseen = _answers([driver.ask("sees", node.name) for node in nodes], QUICK_S)
        pairs = zip(theirs, unseen, strict=True)
        stored += [answer if isinstance(answer, Problem) else problem or answer for answer, problem in pairs]
    rows = zip(skews, _answers(facts, ANSWER_S), stored, _answers(tracking, ANSWER_S), strict=True)
    return [Answers(node.name, node.resources, *row) for node, row in zip(everybody, rows, strict=True)]


def _answers(asked: Sequence[Future[Any]], limit_s: float) -> list[Any]:
    """The answers that arrive in time, and a `Problem` for each other."""
    wait(asked, limit_s)
    return [_answer(future, limit_s) for future in asked]


def _answer(future: Future[Any], limit_s: float) -> Any:
    try:
        return future.result(0)
    except TimeoutError:
        return Problem(f"no answer within {limit_s:g} s", HANGS)
    except Exception as error:  # of Ray, or of other libraries there
        return Problem(f"its probe failed: {reason_of(error)}", "see Ray's logs of that node (`ray logs`)")


def _skew(node: Node) -> float:
    before = time.time()
    (there,) = _answers([node.ask("clock")], QUICK_S)
    after = time.time()
    return 0.0 if isinstance(there, Problem) else min(there - before, 0.0) + max(there - after, 0.0)


# ------------------------------------------------------------------------------------------- judging

Known = Sequence[tuple[Answers, Facts]]


def judge(
    answers: Sequence[Answers], placement: Placement | None, needs: Sequence[Need]
) -> Iterator[Finding]:
    """All findings from the answers, the driver's first. Without nodes, the driver trains."""
    driver, *nodes = answers
    known = [(node, node.facts) for node in nodes or [driver] if isinstance(node.facts, Facts)]
    if isinstance(driver.facts, Facts):
        yield from versions(known, driver.facts)
    yield from clocks(nodes)
    yield from machines(known)
    if placement is not None:
        yield from memory(known, placement, needs)
    for question in ("facts", "storage", "tracking"):
        yield from _grouped(question, answers)


def _grouped(question: str, answers: Sequence[Answers]) -> Iterator[Finding]:
    """A finding for each different answer to a question, with all nodes that gave it."""
    nodes_by_answer: dict[Any, list[str]] = defaultdict(list)
    for given in answers:
        nodes_by_answer[getattr(given, question)].append(given.node)
    for answer, nodes in nodes_by_answer.items():
        if isinstance(answer, Problem):
            yield failure(question, f"{', '.join(nodes)}: {answer.found}", answer.to_do)
        elif isinstance(answer, str):
            yield ok(question, f"{', '.join(nodes)}: {answer}")


def versions(known: Known, wanted: Facts) -> Iterator[Finding]:
    """Python, the libraries and this project's code have to be those of the driver."""
    to_do = "check out the same commit there, install its requirements.lock, and restart its Ray"
    for answers, facts in known:
        pairs = zip(facts.versions, wanted.versions, strict=True)
        others = [f"{there}, here {here}" for there, here in pairs if there != here]
        if others:
            yield failure("versions", f"{answers.node} has {'; '.join(others)}", to_do)
    if known and all(facts.versions == wanted.versions for _, facts in known):
        where = "on this machine" if len(known) == 1 else f"on all {len(known)} nodes"
        yield ok("versions", f"{', '.join(wanted.versions)}; {where}")


def clocks(nodes: Sequence[Answers]) -> Iterator[Finding]:
    off = [answers for answers in nodes if abs(answers.skew_s) > SKEW_S]
    why = "logs and curves of several nodes do not fit together, and from 15 minutes on S3 refuses requests"
    for answers in off:
        problem = f"{answers.node} is {answers.skew_s:+.0f} s off: {why}"
        yield warning("clocks", problem, "synchronise its clock (NTP)")
    if nodes and not off:
        yield ok("clocks", f"no difference above {SKEW_S:g} s")


def machines(known: Known) -> Iterator[Finding]:
    """CPUs, GPUs and temporary space of each node, next to what Ray counts."""
    for answers, facts in known:
        problems = list(_shortages(answers, facts))
        for kind, shortage, to_do in problems:
            yield kind("machines", f"{answers.node}: {shortage}", to_do)
        if not problems:
            names = sorted({name for name, _ in facts.gpus})
            gpus = f", {len(facts.gpus)} GPUs ({', '.join(names)})" if names else ""
            free = f"{readable(facts.memory_bytes)} memory, {readable(facts.temp_bytes)} in {facts.temp}"
            yield ok("machines", f"{answers.node}: {facts.cpus} CPUs{gpus}; free: {free}")


def _shortages(answers: Answers, facts: Facts) -> Iterator[tuple[Callable[..., Finding], str, str]]:
    """A shortage on a node: the kind of finding, what was found, what to do."""
    cpus, gpus = (int(answers.resources.get(kind, 0)) for kind in ("CPU", "GPU"))
    if cpus > facts.cpus:
        to_do = f"start its Ray with --num-cpus={facts.cpus}; otherwise workers share CPUs and slow down"
        yield warning, f"Ray counts {cpus} CPUs, its processes may use {facts.cpus}", to_do
    if gpus > len(facts.gpus):
        to_do = "install the torch build and the driver for its GPUs, or set run.device to cpu"
        yield failure, f"Ray counts {gpus} GPUs, torch sees {len(facts.gpus)}", to_do
    if facts.temp_bytes < ENOUGH_TEMP_BYTES:
        shortage = f"{readable(facts.temp_bytes)} free in {facts.temp}, for uploads, inputs and Ray's logs"
        yield warning, shortage, "free some, or set TMPDIR"
    if answers.node != DRIVER and facts.shm_bytes is not None and facts.shm_bytes < ENOUGH_SHM_BYTES:
        to_do = "give the container more (docker run --shm-size=2g; on Kubernetes an emptyDir in memory)"
        yield warning, f"/dev/shm, which Ray and NCCL use, holds {readable(facts.shm_bytes)}", to_do


def memory(known: Known, placement: Placement, needs: Sequence[Need]) -> Iterator[Finding]:
    """Whether the largest training fits each node that gets workers."""
    need = max(needs, key=lambda need: need.worker_bytes)
    process = PROCESS_BYTES if placement.use_gpu else need.process_bytes
    to_do = "free some, lower batch_rows or bptt (max_tokens), or raise run.threads_per_worker"
    for answers, facts in known:
        num_workers = 1 if answers.node == DRIVER else workers_on(answers.resources, placement)
        if not num_workers:
            continue
        takes = f"{num_workers} x {readable(process)}" if num_workers > 1 else readable(process)
        checks = [(f"{takes} of memory", num_workers * process, facts.memory_bytes)]
        if placement.use_gpu:
            gpu = f"{readable(need.worker_bytes)} of a GPU"
            checks += [(gpu, need.worker_bytes, free) for _, free in facts.gpus]
        what, wanted, free = max(checks, key=lambda check: check[1] / max(check[2], 1))  # the scarcest
        said = f"{answers.node}: {need.stage}, the largest training, takes about {what}"
        said += f" (to within a factor of {FACTOR:g}), {readable(free)} are free"
        yield fitting("memory", said, wanted, free, to_do)


def workers_on(resources: Mapping[str, float], placement: Placement) -> int:
    """How many workers of the plan a node of these resources holds, at most."""
    by_cpus = int(resources.get("CPU", 0)) // placement.threads
    by_gpus = int(resources.get("GPU", 0)) if placement.use_gpu else by_cpus
    return min(by_cpus, by_gpus, placement.num_workers)
