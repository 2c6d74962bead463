"""A job has the same result in this process, on Ray, and on a Ray whose worker is killed."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from pipeline.corpus.tokens import ShardWriter, SplitInfo, TokensInfo, write_info
from pipeline.distributed import launch, ray_train, worker
from pipeline.distributed.cluster import Cluster
from pipeline.distributed.failures import WorkersError, is_settings_failure, reason_of, refusal_among
from pipeline.distributed.launch import fit
from pipeline.distributed.placement import Placement, plan_placement
from pipeline.distributed.session import Session
from pipeline.distributed.settings import Run
from pipeline.distributed.shipment import Shipment
from pipeline.objectives.causal import Causal
from pipeline.stages._trials import replace_workers
from pipeline.storage.lease import Fence, LeaseLostError, acquire
from pipeline.storage.patience import StorageError
from pipeline.tracking import RecorderConfig, read_records
from pipeline.training import precision
from pipeline.training.checkpoint import Checkpoint, model_tensors
from pipeline.training.context import CurveRecorder, no_recorder
from pipeline.training.language_model import LanguageModelJob, make_language_model_job
from tests.families import TEXTS, language_model_settings, model_of

RUN: dict[str, Any] = {
    "seed": 7, "workers": 0, "threads_per_worker": 1, "device": "cpu", "precision": "fp32",
    "micro_batch_rows": None, "sharding": "none", "recompute_layers": False, "compile": False,
    "deterministic": False, "headstarts": ["ulmfit"],
    "storage": "unused", "storage_wait_minutes": 0.0,
    "checkpoint_minutes": 1e-12, "keep_checkpoints": 2,
    "log_steps": 1, "max_worker_failures": 2,
}  # fmt: skip


ANY_DEVICE: dict[str, Any] = {"device": "auto"}


def run_of(**changes: Any) -> Run:
    return Run(**(RUN | changes))


def cluster(*cpus: int, gpus: tuple[int, ...] = ()) -> list[dict[str, float]]:
    """The resources of nodes, as `ray.nodes` gives them."""
    nodes = [{"CPU": float(number), "memory": 1e9, "node:10.0.0.1": 1.0} for number in cpus]
    for node, number in zip(nodes, gpus, strict=False):
        node["GPU"] = float(number)
    return nodes


@pytest.mark.parametrize(
    ("settings", "resources", "wanted"),
    [
        # auto without a GPU: one worker per node, with all its CPUs
        ({"workers": "auto"}, cluster(2), Placement(1, 2, False)),
        ({"workers": "auto"}, cluster(8, 8, 8, 8), Placement(4, 8, False)),
        # nodes of several sizes: a size that fits on each of them
        ({"workers": "auto"}, cluster(4, 8), Placement(2, 4, False)),
        ({"workers": 4}, cluster(4, 8), Placement(4, 2, False)),
        # the CPUs of a head without a GPU are of no use to the GPU node
        ({"workers": "auto"} | ANY_DEVICE, cluster(8, 32, gpus=(1,)), Placement(1, 8, True)),
        # auto with GPUs: one worker per GPU, unless run.device is cpu
        ({"workers": "auto"} | ANY_DEVICE, cluster(16, gpus=(4,)), Placement(4, 4, True)),
        ({"workers": "auto", "device": "cuda"}, cluster(16, gpus=(1,)), Placement(1, 16, True)),
        ({"workers": "auto", "device": "cpu"}, cluster(16, gpus=(4,)), Placement(1, 16, False)),
        # the number that the settings give
        ({"workers": 2}, cluster(2), Placement(2, 1, False)),
        ({"workers": 3}, cluster(8), Placement(3, 2, False)),
        ({"workers": 2} | ANY_DEVICE, cluster(8, gpus=(4,)), Placement(2, 4, True)),
        ({"workers": 2, "threads_per_worker": 3}, cluster(8), Placement(2, 3, False)),
    ],
)
def test_placement(settings, resources, wanted):
    settings = {"threads_per_worker": "auto"} | settings
    assert plan_placement(run_of(**settings), resources) == wanted


@pytest.mark.parametrize(
    ("settings", "resources", "message"),
    [
        ({"workers": 3}, cluster(2), r"run\.workers is 3, but the Ray cluster offers 2 CPUs"),
        ({"workers": 3} | ANY_DEVICE, cluster(8, gpus=(2,)), r"run\.workers is 3, .* offers 2 GPUs"),
        (
            {"workers": 2} | ANY_DEVICE,
            cluster(1, 8, gpus=(2,)),
            r"run\.workers is 2, .* offers 1 GPUs, with a CPU",
        ),
        ({"workers": 1, "device": "cuda"}, cluster(8), r"run\.device is cuda, but the Ray cluster offers no"),
        ({"workers": 2, "threads_per_worker": 4}, cluster(6), r"of 6 CPUs, hold 1"),
        ({"workers": 1, "threads_per_worker": 6}, cluster(4, 4), r"of 4, 4 CPUs, hold 0"),
    ],
)
def test_a_plan_that_would_wait_forever_is_refused(settings, resources, message):
    with pytest.raises(ValueError, match=message):
        plan_placement(run_of(**({"threads_per_worker": "auto"} | settings)), resources)


def make_job(folder: Path, family: str = "awd_lstm", tokenizer_sha256: str = "abc") -> LanguageModelJob:
    tokens = folder / "tokens"
    tokens.mkdir()
    rng = np.random.default_rng(0)
    splits: dict[str, SplitInfo] = {}
    for split, num_documents in (("train", 20), ("validation", 6)):
        with ShardWriter(tokens, split, 50) as shard:
            for _ in range(num_documents):
                texts = [
                    (rng.integers(45) + np.arange(int(rng.integers(5, 20)))) % 45 + 5
                    for _ in range(TEXTS.get(family, 1))
                ]
                # Several texts are framed, as one has no need to be.
                framed = [[1], *(part for text in texts for part in (text, [2]))] if len(texts) > 1 else texts
                shard.append([np.concatenate(framed)], [None])
            splits[split] = shard.info(2 * num_documents, 10 * num_documents)
    specials = {"unk_id": 3, "bos_id": 1, "eos_id": 2, "pad_id": 0}
    write_info(tokens, TokensInfo(50, tokenizer_sha256, **specials, label_names=None, splits=splits))
    common: dict[str, Any] = {
        "epochs": 2.0, "unfreeze": "gradual",
        "optimizer": {
            "kind": "adamw", "lr": 0.02, "momentum": 0.8, "beta2": 0.99, "weight_decay": 0.01,
            "clip_norm": 0.25, "nonmonotone_interval": 5, "discriminative_factor": 1.3,
        },
        "schedule": {"kind": "slanted_triangular", "cut_frac": 0.2, "ratio": 32.0, "span": "run"},
        "epochs_per_unfreezing": 0.5, "dropout": 1.0, "evaluations_per_epoch": 2,
    }  # fmt: skip
    return make_language_model_job(
        language_model_settings(family, common),
        model_of(family),
        stage="pretrain_lm",
        tokens=tokens,
        start=None,
        seed=7,
    )


def session_of(folder: Path, name: str) -> Session:
    records = RecorderConfig(uri="", run_id=None, path=folder / name / "curve.jsonl")
    return Session(key=name, folder=str(folder / name), open_recorder=records.open)


def test_fit_in_this_process_gives_a_finished_checkpoint_and_a_complete_curve(tmp_path):
    job, session = make_job(tmp_path), session_of(tmp_path, "here")
    done = fit(job, run_of(), session)
    assert done.state["finished"]
    assert done.state["key"] == "here"
    assert done.state["card"]["tokenizer_sha256"] == "abc"
    assert model_tensors(done).keys() >= {"encoder.embedding.weight", "decoder_bias"}
    steps = [record.step for record in read_records(tmp_path / "here" / "curve.jsonl")]
    assert steps == list(range(done.step + 1))


@dataclasses.dataclass
class Seen:
    """Opens recorders that note torch's settings in the training process, and may stop it at a step."""

    stop_at: int | None = None
    settings: list[tuple[bool, bool, bool, str | None]] = dataclasses.field(default_factory=list)
    path: Path | None = None

    def open(self, resume_step: int, earlier: bytes | None = None) -> CurveRecorder:
        return self

    def record(self, step: int, metrics: Mapping[str, float]) -> None:
        cudnn = torch.backends.cudnn
        settings = (torch.are_deterministic_algorithms_enabled(), cudnn.deterministic, cudnn.benchmark)
        self.settings.append((*settings, os.environ.get("CUBLAS_WORKSPACE_CONFIG")))
        if step == self.stop_at:
            raise KeyboardInterrupt

    def flush(self) -> None:
        return None

    def close(self) -> object:
        return None


DETERMINISTIC = (True, True, False, ":4096:8")


@pytest.fixture
def seen(monkeypatch) -> Iterator[Seen]:
    """A `Seen`; torch's settings are restored at the end."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "a person's")
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    yield Seen()
    worker.prepare_torch(None)


def watched(folder: Path, name: str, seen: Seen) -> Session:
    return Session(key=name, folder=str(folder / name), open_recorder=seen.open)


def assert_same_weights(found: Checkpoint, wanted: Checkpoint) -> None:
    for name, weight in model_tensors(wanted).items():
        assert torch.equal(model_tensors(found)[name], weight), name


def test_a_stopped_deterministic_training_resumes_bit_for_bit(tmp_path, seen):
    job, deterministic = make_job(tmp_path), run_of(deterministic=True)
    plain = fit(job, run_of(), watched(tmp_path, "plain", seen))
    assert set(seen.settings) == {(False, False, False, "a person's")}
    seen.settings.clear()
    for seen.stop_at in (4, 9):
        with pytest.raises(KeyboardInterrupt):
            fit(job, deterministic, watched(tmp_path, "stopped", seen))
    seen.stop_at = None
    stopped = fit(job, deterministic, watched(tmp_path, "stopped", seen))
    assert set(seen.settings) == {DETERMINISTIC}
    whole = fit(job, deterministic, watched(tmp_path, "whole", seen))
    assert_same_weights(stopped, whole)
    assert_same_weights(whole, plain)  # on a CPU the settings change nothing
    seen.settings.clear()
    fit(job, run_of(), watched(tmp_path, "after", seen))
    assert {settings[:3] for settings in seen.settings} == {(False, False, False)}


def test_a_worker_of_ray_trains_deterministically(tmp_path, seen, monkeypatch):
    import ray.train
    import ray.train.torch

    alone = SimpleNamespace(get_world_rank=lambda: 0, get_world_size=lambda: 1)
    monkeypatch.setattr(ray.train, "get_context", lambda: alone)
    monkeypatch.setattr(ray.train, "report", lambda metrics: None)
    monkeypatch.setattr(ray.train.torch, "get_device", lambda: torch.device("cpu"))
    monkeypatch.setattr(ray_train, "_all_reduce", lambda tensor: tensor)
    session = watched(tmp_path, "run", seen)
    with acquire(session.folder) as lease:
        session = dataclasses.replace(session, fence=lease.fence)
        run = run_of(workers=1, deterministic=True)
        ray_train.train_as_worker(make_job(tmp_path), run, session, threads=1, shipment=Shipment())
    assert set(seen.settings) == {DETERMINISTIC}


def test_a_trial_trains_deterministically(tmp_path, seen):
    worker.prepare_torch(1)  # as a trial's process does before it has the job
    run = replace_workers(run_of(workers=2, deterministic=True))
    fit(make_job(tmp_path), run, watched(tmp_path, "trial", seen))
    assert set(seen.settings) == {DETERMINISTIC}


def test_an_operation_without_a_deterministic_form_is_refused_with_the_key(tmp_path, seen, monkeypatch):
    real = Causal.loss

    def loss(self: Causal, *arguments: Any) -> Any:
        torch.zeros(2).put_(torch.tensor([0]), torch.ones(1))
        return real(self, *arguments)

    monkeypatch.setattr(Causal, "loss", loss)
    job = make_job(tmp_path)
    message = (
        r"run\.deterministic is true, but on cpu put_ does not have a deterministic implementation; set it"
    )
    with pytest.raises(ValueError, match=message):
        fit(job, run_of(deterministic=True), watched(tmp_path, "deterministic", seen))
    assert fit(job, run_of(), watched(tmp_path, "plain", seen)).state["finished"]


def test_other_errors_are_not_blamed_on_determinism(tmp_path, seen, monkeypatch):
    def loss(self: Causal, *arguments: Any) -> Any:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(Causal, "loss", loss)
    with pytest.raises(RuntimeError, match="out of memory"):
        fit(make_job(tmp_path), run_of(deterministic=True), watched(tmp_path, "run", seen))


def test_fit_of_a_finished_run_trains_nothing(tmp_path):
    job, session = make_job(tmp_path), session_of(tmp_path, "here")
    done = fit(job, run_of(), session)

    def refuse(resume_step: int, earlier: bytes | None = None) -> CurveRecorder:
        raise AssertionError("a recorder was opened")

    again = fit(job, run_of(), dataclasses.replace(session, open_recorder=refuse))
    assert again.state == done.state
    assert_near(again, done, 0.0)


def test_a_gpu_that_is_not_there_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match=r"run\.device is cuda, but torch sees no GPU"):
        fit(make_job(tmp_path), run_of(device="cuda"), session_of(tmp_path, "here"))


def assert_near(found: Checkpoint, wanted: Checkpoint, tolerance: float) -> None:
    assert found.step == wanted.step
    ours, theirs = found.state["evaluations"], wanted.state["evaluations"]
    assert [each["step"] for each in ours] == [each["step"] for each in theirs]
    for mine, other in zip(ours, theirs, strict=True):
        assert mine["metrics"] == pytest.approx(other["metrics"], rel=tolerance)
    for name, tensor in model_tensors(wanted).items():
        assert torch.allclose(model_tensors(found)[name], tensor, rtol=10 * tolerance, atol=tolerance), name


def test_a_workers_refusal_is_shown_without_rays_wrapping():
    from ray.train.v2._internal.exceptions import UserExceptionWithTraceback

    wrapped = UserExceptionWithTraceback(ValueError("lower optimizer.lr"), "Traceback ...")
    found = refusal_among([RuntimeError("lost"), wrapped])
    assert isinstance(found, ValueError)
    assert str(found) == "lower optimizer.lr"
    assert refusal_among([RuntimeError("lost")]) is None


def test_the_reason_is_that_of_the_worker_whatever_other_errors_call_a_cause():
    class OddError(RuntimeError):
        cause = "a text"

    class GroupError(Exception):
        worker_failures: ClassVar = {1: OddError("no memory\nand so on")}

    assert reason_of(GroupError("of two workers")) == "OddError: no memory"
    assert reason_of(OddError("alone")) == "OddError: alone"


def test_an_infrastructure_error_keeps_its_class_on_its_way_from_a_worker():
    from ray.exceptions import RayTaskError

    full = StorageError("the disk is full; free some space there")
    raised = RayTaskError("train", "Traceback ...", full).as_instanceof_cause()
    assert type(refusal_among([raised])) is StorageError
    assert str(refusal_among([raised])) == str(full)


@pytest.mark.parametrize(
    ("failure", "wanted"),
    [
        (ValueError("the training loss is nan; lower optimizer.lr"), True),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB"), True),
        (StorageError("the disk is full"), False),
        (LeaseLostError("another process has taken over"), False),
        (WorkersError("Ray could not set up the workers"), False),
        (OSError(5, "Input/output error"), False),
        (RuntimeError("CUDA error: uncorrectable ECC error encountered"), False),
    ],
)
def test_only_a_failure_because_of_the_settings_is_a_result(failure, wanted):
    assert is_settings_failure(failure) is wanted


def test_among_several_workers_only_lack_of_memory_is_a_result():
    """When one worker is lost, the errors of the others say nothing."""
    from ray.train import WorkerGroupError

    collateral, full = RuntimeError("Connection closed by peer"), torch.OutOfMemoryError("CUDA out of memory")
    assert not is_settings_failure(WorkerGroupError("of two workers", {0: collateral}))
    assert is_settings_failure(WorkerGroupError("of two workers", {0: collateral, 1: full}))


@pytest.mark.parametrize(
    ("found_by_this", "found_by_all", "wanted"),
    [("bfloat16", 2, "bfloat16"), ("bfloat16", 1, "float32"), ("float32", 1, "float32")],
)
def test_all_workers_train_in_one_precision(monkeypatch, tmp_path, found_by_this, found_by_all, wanted):
    job, folder = make_job(tmp_path), str(tmp_path / "run")
    monkeypatch.setattr(precision, "fast_dtype", lambda device: getattr(torch, found_by_this))
    with launch.hold(folder, run_of(), None) as fence:
        context = worker.make_context(
            job,
            run_of(precision="auto"),
            Session("key", folder, no_recorder, fence=fence),
            torch.device("cpu"),
            rank=0,
            world=2,
            all_reduce=lambda tensor: tensor.fill_(found_by_all),
        )
    assert context.precision == getattr(torch, wanted)


def test_a_run_resumes_in_the_precision_that_it_started_in(monkeypatch, tmp_path):
    """Whatever another machine or another number of threads measures."""
    job, session = make_job(tmp_path), Session("key", str(tmp_path / "run"), no_recorder)
    monkeypatch.setattr(precision, "fast_dtype", lambda device: torch.bfloat16)
    begun = fit(job, run_of(precision="auto"), session)
    assert begun.state["precision"] == "bfloat16"
    monkeypatch.setattr(precision, "fast_dtype", lambda device: torch.float32)
    fenced = dataclasses.replace(session, fence=Fence(session.folder, 2))
    context = worker.make_context(job, run_of(precision="auto"), fenced, torch.device("cpu"))
    assert context.precision == torch.bfloat16
    context = worker.make_context(job, run_of(precision="fp32"), fenced, torch.device("cpu"))
    assert context.precision == torch.float32


@pytest.mark.parametrize("late", [1, 2])
def test_a_ray_that_starts_late_is_started_once_more_and_then_reported(monkeypatch, late):
    """On a busy machine its processes may take longer than the 30 s that Ray waits for them."""
    import ray

    starts: list[str] = []

    def init(address: str, **settings: Any) -> None:
        starts.append(address)
        if len(starts) <= late:
            raise Exception("The current node timed out during startup. This could happen because ...")

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "nodes", list)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    with Cluster() as cluster:
        if late == 1:
            assert cluster.nodes() == []
        else:
            with pytest.raises(ValueError, match="cannot be joined: its processes did not start"):
                cluster.nodes()
    assert starts == ["local", "local"]


def test_float32_products_are_float32_on_every_cpu():
    """oneDNN would round them to bfloat16 on a CPU that has instructions for it, against `run.precision`."""
    if torch.cuda.is_available():
        pytest.skip("on a GPU these products are TF32")
    before = torch.get_float32_matmul_precision()
    try:
        worker.prepare_torch(None)
        left, right = torch.randn(300, 400), torch.randn(400, 300)
        exact = left.double() @ right.double()
        assert float(((left @ right) - exact).norm() / exact.norm()) < 1e-5
    finally:
        torch.set_float32_matmul_precision(before)
