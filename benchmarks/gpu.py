"""What has to be seen on a GPU, with torch alone: no Ray, MLflow or DVC. Each part ends within 8 minutes.

    PYTHONPATH=. python benchmarks/gpu.py check  --out reports/gpu
    PYTHONPATH=. python benchmarks/gpu.py resume --out reports/gpu
    PYTHONPATH=. python benchmarks/gpu.py speed  --out reports/gpu
    PYTHONPATH=. python benchmarks/gpu.py steps  --out reports/gpu
    PYTHONPATH=. python benchmarks/gpu.py ptb    --out reports/gpu --text FOLDER   # again, until 20 minutes
    PYTHONPATH=. python benchmarks/gpu.py imdb   --out reports/gpu --tokens FOLDER # again, to the test error
    PYTHONPATH=. python benchmarks/gpu.py both   --out reports/gpu --tokens FOLDER --members OUT OUT

- `check`: features of each family and a short training, beside the CPU's.
- `resume`: a run that is stopped and resumed ends bit for bit like an undisturbed one (`run.deterministic`).
- `speed`: training steps of AWD-LSTM, GPT and BERT, with `--peers` beside `fastai` and `transformers`, and
  the rate of the fastest bfloat16 product. One that fails is left out, with its message.
- `steps`: where the time of an AWD-LSTM's steps goes, as language model and as classifier; torch's profile of
  each is in OUT/profile.txt.
- `ptb`: Penn Treebank by AWD-LSTM (Merity et al. 2017, section 5) with NT-ASGD. FOLDER has train.txt,
  validation.txt and test.txt, a sentence a line. Each call trains for `--minutes`, from where the last was.
- `imdb`: the three trainings of one head start, and those of classifiers with few labels (three seeds);
  errors on the test documents. `--stages` names fewer than the three; the models of the others are in
  OUT/imdb, by an earlier call. FOLDER has the shards in `general` and `target`: data/tokens/general/pieces
  and data/tokens/target/pieces of a project whose stage `encode` has run, with the settings used here:
  params.yaml, presets/imdb.yaml and benchmarks/gpu_imdb.yaml, or what `--settings` names in place of the
  last two.
- `both`: the mean of the classifiers of several calls of `imdb`: of both directions, by
  `--headstart ulmfit` and `--headstart ulmfit_backward` with an OUT each. They can run side by side.

Besides torch it needs numpy, pydantic, psutil, safetensors, and `imdb` ruamel.yaml. Each part writes
OUT/PART.json; `speed`, `steps` and `imdb` after each contestant, step or training, so that what is stopped
leaves what it has.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks.contestants._network import PRECISIONS, SCHEDULE, language_model_task
from benchmarks.contestants._network import encoder_of as encoder_at
from benchmarks.contestants._timing import SIZES, Size
from benchmarks.side_by_side import ROOT, Contestant, compare, machine
from models.awd_lstm import layer_groups as awd_lstm_groups
from models.family import Encoder, lookup
from models.heads import Classifier, classifier_groups
from models.layers import GlobalBatch
from models.objective import TrainingText
from pipeline.artifacts.checkpoint_store import CheckpointStore
from pipeline.artifacts.model_folder import ModelFolder, export_model, load_classifier
from pipeline.corpus.classifier_batches import ClassifierBatches
from pipeline.corpus.text_form import TextForm
from pipeline.corpus.tokens import TokenShard, open_shard
from pipeline.figures.cost import Cost
from pipeline.objectives.lookup import objective_of
from pipeline.project.project import Project
from pipeline.settings.arm import Use
from pipeline.settings.loader import overlay, read_yaml
from pipeline.stages import finetune_classifier, finetune_lm, pretrain_lm
from pipeline.stages._points import classifier_settings
from pipeline.training.cards import form_of
from pipeline.training.checkpoint import Checkpoint, model_tensors
from pipeline.training.classifier import (
    Classification,
    ClassifierJob,
    FewLabels,
    make_classifier_job,
    predict_logits,
)
from pipeline.training.context import Context
from pipeline.training.language_model import LanguageModelJob
from pipeline.training.loop import Training, train
from pipeline.training.precision import set_arithmetic
from pipeline.training.schedules import make_plan
from pipeline.training.settings import Optimizer
from pipeline.training.task import Task, evenly_spaced

_PTB_MINUTES = 20.0
_IMDB_SETTINGS = [ROOT / "presets/imdb.yaml", ROOT / "benchmarks/gpu_imdb.yaml"]
_TINY_STEPS = 150  # of a call of ptb with --tiny, whose end must not hang on the machine's speed
_FAMILIES: dict[str, dict[str, Any]] = {
    "awd_lstm": {"embedding_dim": 64, "hidden_dim": 96, "num_layers": 2},
    "gpt": {"embedding_dim": 64, "feedforward_dim": 128, "num_layers": 2, "num_heads": 4, "context": 32},
    "transformer_xl": {"embedding_dim": 64, "feedforward_dim": 128, "num_layers": 2, "num_heads": 4},
    "bert": {"embedding_dim": 64, "feedforward_dim": 128, "num_layers": 2, "num_heads": 4, "context": 32},
}
_ADAMW = Optimizer(
    kind="adamw", lr=0.002, momentum=0.9, beta2=0.99, weight_decay=0.01, clip_norm=0.5,
    nonmonotone_interval=5, discriminative_factor=1.0,
)  # fmt: skip
_VOCAB = 200


def shard_of(tokens: np.ndarray, num_words: int, num_bytes: int) -> TokenShard:
    return TokenShard(
        tokens=tokens, offsets=np.array([0, len(tokens)]), labels=np.array([-1]), num_words=num_words,
        num_bytes=num_bytes,
    )  # fmt: skip


def random_text(num_tokens: int) -> TrainingText:
    """Text in which a token tells a good deal about the next one."""
    steps = np.random.default_rng(1).integers(1, 4, num_tokens)
    tokens = (4 + np.cumsum(steps) % (_VOCAB - 4)).astype(np.uint16)
    shard = shard_of(tokens, num_tokens, num_tokens)
    return TrainingText([shard], [shard], _VOCAB, "forward", special_ids=frozenset(range(4)))


def encoder_of(name: str) -> Encoder:
    torch.manual_seed(0)
    family = lookup(name)
    return family.build(family.config(**_FAMILIES[name]), _VOCAB)


def task_of(name: str, num_steps: int, precision: torch.dtype) -> Task:
    family, encoder = lookup(name), encoder_of(name)
    encoder.product_dtype = precision
    objective = objective_of(family)
    model = objective.build(encoder, family.config(**_FAMILIES[name]))
    groups = objective.layer_groups(model, family.layer_groups(encoder))
    own: dict[str, Any] = {
        "row_tokens": 32,
        "masked_share": 0.15,
        "whole_words": False,
        "next_sentence": False,
    }
    if name != "bert":
        own = {"bptt": 16, "variable_bptt": False, "ar_alpha": 1.0, "tar_beta": 1.0, "sampled_words": None}
    settings = objective.Settings(batch_rows=16, **own)
    return Task(
        model=model,
        objective=objective(model, settings, random_text(20_000), seed=1),
        groups=groups,
        plan=make_plan(
            _ADAMW, SCHEDULE, "full", num_groups=len(groups), num_steps=num_steps, steps_per_unfreezing=1
        ),
        optimizer=_ADAMW,
        evaluation_steps=evenly_spaced(num_steps, 1),
    )


def check(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the largest difference of features to the CPU's, and the losses of a short training on both."""
    by_family: dict[str, Any] = {}
    ids = torch.randint(4, _VOCAB, (4, 24), generator=torch.Generator().manual_seed(3))
    cpu, device, num_steps = torch.device("cpu"), arguments.device, 10 if arguments.tiny else 60
    for name in _FAMILIES:
        encoder = encoder_of(name)
        with torch.no_grad():
            expected = encoder(ids).features
            computed = encoder.to(device)(ids.to(device)).features.cpu()
            encoder.product_dtype = torch.bfloat16
            rounded = encoder(ids.to(device)).features.cpu()
            dropped = encoder(ids.to(device), None, (), GlobalBatch(1, 2, 4, slice(0, 4), device)).features
        assert bool(dropped.isfinite().all())
        losses = {}
        for title, where, precision in (
            ("CPU fp32", cpu, torch.float32),
            ("fp32", device, torch.float32),
            ("bf16", device, torch.bfloat16),
        ):
            task = task_of(name, num_steps, precision)
            metrics = train(task, Context(device=where, precision=precision))
            losses[title] = metrics[task.objective.watched]
        by_family[name] = {
            "fp32 features, largest difference": float((computed - expected).abs().max()),
            "bf16 features, largest difference": float((rounded - expected).abs().max()),
            f"validation loss after {num_steps} steps": losses,
        }
    return by_family


class _StoppedError(Exception):
    pass


def resume(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return, by family, whether a run stopped half-way ends with the bits of an undisturbed one."""
    num_steps = 12 if arguments.tiny else 60
    set_arithmetic(None, deterministic=True)
    by_family = {}
    for name in _FAMILIES:
        with tempfile.TemporaryDirectory() as folder:
            ends = []
            for run, stops in (("whole", ()), ("stopped", (num_steps // 2,))):
                store = CheckpointStore(f"{folder}/{run}")
                for stop in (*stops, None):
                    task = task_of(name, num_steps, torch.bfloat16)
                    context = Context(
                        device=arguments.device, precision=torch.bfloat16, store=store, log_steps=1,
                        checkpoint_minutes=1e-9, report=_stopping_after(stop),
                    )  # fmt: skip
                    try:
                        train(task, context)
                    except _StoppedError:
                        continue
                newest = store.newest()
                assert newest is not None
                ends.append(newest.tensors)
            whole, resumed = ends
            assert whole.keys() == resumed.keys()
            different = [key for key in whole if not torch.equal(whole[key], resumed[key])]
            by_family[name] = {"bits are equal": not different, "different": different[:5]}
    set_arithmetic(None, deterministic=False)
    return by_family


def _stopping_after(stop: int | None) -> Callable[[Any], None]:
    count = Counter[str]()

    def report(metrics: Any) -> None:
        count["steps"] += 1
        if stop is not None and count["steps"] > stop:
            raise _StoppedError

    return report


def speed(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return tokens a second of training steps by contestant, and the rate of the fastest product."""
    bf16 = ["--precision", "bf16", "--steps", "1" if arguments.tiny else "20"]
    lstm = ["--size", "tiny" if arguments.tiny else "a", *bf16]
    rows, tokens = ("4", "32") if arguments.tiny else ("32", "512")
    size = ["--size", "tiny" if arguments.tiny else "12x768", *bf16, "--rows", rows, "--tokens", tokens]
    contestants = [
        Contestant("AWD-LSTM bf16", "language_model_headstart.py", lstm),
        Contestant("fastai AWD-LSTM bf16", "language_model_fastai.py", lstm, peer=True),
    ]
    for family in ("gpt", "bert"):
        named = ["--family", family, *size]
        contestants += [
            Contestant(f"{family} bf16", "transformer_headstart.py", named),
            Contestant(f"transformers {family} bf16", "transformer_hugging_face.py", named, peer=True),
        ]
    gpt = ["--family", "gpt", *size]
    contestants += [
        Contestant("gpt bf16, recompute_layers", "transformer_headstart.py", [*gpt, "--recompute-layers"]),
        Contestant("gpt bf16, micro_batch_rows", "transformer_headstart.py", [*gpt, "--micro-rows", "4"]),
    ]
    if not arguments.tiny:  # the compiler takes long on a CPU
        for family in ("gpt", "bert"):
            named = ["--family", family, *size, "--compile"]
            contestants.append(Contestant(f"{family} bf16, compile", "transformer_headstart.py", named))
    present = [contestant for contestant in contestants if arguments.peers or not contestant.peer]
    fastest = _fastest_product(arguments.device, 256 if arguments.tiny else 8192)
    results: dict[str, Any] = {
        "bf16 product, GFLOP/s": fastest,
        "weights of AWD-LSTM": SIZES[lstm[1]].weights_multiplied,
        "share of the bf16 product": {},
        "contestants": {},
        "failed": {},
    }
    for contestant in present:  # its rounds one after the other: nothing else runs on a lent machine
        try:
            figures = compare([contestant], 1 if arguments.tiny else arguments.rounds)
        except SystemExit as error:
            results["failed"][contestant.name] = str(error)[-1000:]
        else:
            results["contestants"] |= figures
            for name, rates in figures.items():
                if "gflop_per_second" in rates:
                    share = rates["gflop_per_second"]["median"] / fastest
                    results["share of the bf16 product"][name] = share
        _write(arguments, results)
    return results


def _fastest_product(device: torch.device, width: int) -> float:
    left, right = (torch.randn(width, width, device=device, dtype=torch.bfloat16) for _ in range(2))
    best = np.inf
    for _ in range(10):
        began = time.perf_counter()
        product = left @ right
        float(product[0, 0])  # waits for the device
        best = min(best, time.perf_counter() - began)
    return float(2 * width**3 / best / 1e9)


def steps(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the milliseconds of a training step and those in which the device computes, by kind of step."""
    tiny = arguments.tiny
    shapes = [Size(16, 24, 2, 200, 10, 4)] if tiny else [Size(400, 1152, 3, *step) for step in _STEPS]
    timings: dict[str, Any] = {}
    profiles: list[str] = []
    for size in shapes:
        task = language_model_task(size, "bf16", _PLANNED)
        training = Training(task, Context(device=arguments.device, precision=torch.bfloat16))
        name = f"language model, {size.vocab_size} words, {size.batch_rows} x {size.bptt}, bf16"
        timings[name] = _timed(training, size.batch_rows * size.bptt, name, profiles, arguments)
        _write(arguments, timings)
    documents, tokens = (6, 10) if tiny else (64, 300)
    for precision in ("bf16", "fp32"):
        dtype = PRECISIONS[precision]
        training = Training(
            _classifier_task(shapes[-1], documents, tokens, precision),
            Context(device=arguments.device, precision=dtype),
        )
        name = f"classifier, {documents} texts of {tokens}, {precision}"
        timings[name] = _timed(training, documents * tokens, name, profiles, arguments)
        _write(arguments, timings)
    (arguments.out / "profile.txt").write_text("\n".join([*profiles, ""]), encoding="utf-8")
    return timings


_STEPS = [(8000, 70, 128), (16_000, 70, 256)]  # words, tokens of a row, rows
_PLANNED = 60  # steps of each training; fewer are taken


def _classifier_task(size: Size, documents: int, tokens: int, precision: str) -> Task:
    encoder = encoder_at(size, precision)
    model = Classifier(encoder, 2, pooling="concat", head_hidden=50, head_dropout=(0.4, 0.1), bptt=70)
    groups = classifier_groups(model, awd_lstm_groups(encoder))
    count = documents * _PLANNED
    ids = np.random.default_rng(1).integers(4, size.vocab_size, count * tokens).astype(np.uint16)
    shard = TokenShard(
        tokens=ids, offsets=np.arange(count + 1) * tokens, labels=np.arange(count, dtype=np.int32) % 2,
        num_words=len(ids), num_bytes=len(ids),
    )  # fmt: skip
    form = TextForm(max_tokens=tokens, direction="forward", pad_id=0)
    batches = ClassifierBatches(
        shard, documents=np.arange(count), batch_documents=documents, form=form, seed=1
    )
    return Task(
        model=model,
        objective=Classification(
            model=model, batches=batches, validation=shard, validation_documents=np.arange(0), form=form,
            label_smoothing=0.0, seed=1,
        ),
        groups=groups,
        plan=make_plan(
            _ADAMW, SCHEDULE, "full", num_groups=len(groups), num_steps=_PLANNED, steps_per_unfreezing=1
        ),
        optimizer=_ADAMW,
        evaluation_steps=frozenset(),
    )  # fmt: skip


def _timed(
    training: Training, num_tokens: int, name: str, profiles: list[str], arguments: argparse.Namespace
) -> dict[str, float]:
    """Take steps without waiting for the device between them, then three more under torch's profiler."""
    on_gpu, num_steps = arguments.device.type == "cuda", 2 if arguments.tiny else 30

    def seconds(count: int) -> float:
        began = time.perf_counter()
        for _ in range(count):
            training.train_step()
        if on_gpu:
            torch.cuda.synchronize()
        return time.perf_counter() - began

    seconds(2 if arguments.tiny else 8)
    taken = seconds(num_steps) / num_steps
    kinds = [torch.profiler.ProfilerActivity.CPU]
    kinds += [torch.profiler.ProfilerActivity.CUDA] if on_gpu else []
    with torch.profiler.profile(activities=kinds) as profile:
        seconds(3)
    averages = profile.key_averages()
    kernels = [event for event in averages if event.device_type != torch.autograd.DeviceType.CPU]
    busy = sum(event.self_device_time_total for event in kernels) / 3e3
    launches = sum(event.count for event in averages if "LaunchKernel" in event.key) / 3
    profiles += [f"{name}: {1000 * taken:.1f} ms a step, {num_tokens / taken:,.0f} tokens a second"]
    own_device = [(event.self_device_time_total, event) for event in kernels]
    own_host = [(event.self_cpu_time_total, event) for event in averages if event not in kernels]
    for where, rows in (("device", own_device), ("host, profiled", own_host)):
        profiles.append(f"  {where}: ms and calls a step")
        for micros, event in sorted(rows, key=lambda row: -row[0])[:14]:
            profiles.append(f"  {micros / 3e3:8.2f} {event.count / 3:8.0f}  {event.key[:70]}")
    return {
        "milliseconds": 1000 * taken,
        "tokens_per_second": num_tokens / taken,
        "milliseconds in which the device computes": busy,
        "launches": launches,
    }


def ptb(arguments: argparse.Namespace) -> dict[str, Any]:
    """Train for some minutes more, and return perplexities so far."""
    text, test = _penn_treebank(arguments.text)
    family = lookup("awd_lstm")
    sizes = {"embedding_dim": 400, "hidden_dim": 1150, "num_layers": 3}
    dropouts = {
        "embedding_dropout": 0.1, "input_dropout": 0.4, "hidden_dropout": 0.25, "output_dropout": 0.4,
        "weight_dropout": 0.5,
    }  # fmt: skip
    lr = 30.0
    if arguments.tiny:
        sizes, lr = {"embedding_dim": 16, "hidden_dim": 24, "num_layers": 1}, 3.0
    torch.manual_seed(1)
    config = family.config(**sizes, **dropouts, tie_weights=True)
    encoder = family.build(config, text.vocab_size)
    encoder.product_dtype = precision = _precision(arguments.device)
    objective_class = objective_of(family)
    model: Any = objective_class.build(encoder, config)
    settings = objective_class.Settings(
        batch_rows=20, bptt=70, variable_bptt=True, ar_alpha=2.0, tar_beta=1.0, sampled_words=None
    )
    objective: Any = objective_class(model, settings, text, seed=1)
    optimizer = _ADAMW.model_copy(
        update={"kind": "nt_asgd", "lr": lr, "weight_decay": 1.2e-6, "clip_norm": 0.25}
    )
    groups = objective_class.layer_groups(model, family.layer_groups(encoder))
    num_steps = objective.num_steps(500)
    constant = SCHEDULE.model_copy(update={"kind": "constant"})
    task = Task(
        model=model, objective=objective, groups=groups,
        plan=make_plan(optimizer, constant, "full", num_groups=len(groups), num_steps=num_steps,
                       steps_per_unfreezing=1),
        optimizer=optimizer, evaluation_steps=evenly_spaced(num_steps, 500),
    )  # fmt: skip
    file = arguments.out / "ptb.json"
    earlier = json.loads(file.read_text())["ptb"] if file.exists() else {"minutes": 0.0}
    context = Context(
        device=arguments.device, precision=precision, store=CheckpointStore(str(arguments.out / "ptb"))
    )
    training = Training(task, context)
    training.restore()
    began, first_step = time.monotonic(), training.step
    minutes = min(arguments.minutes, _PTB_MINUTES - earlier["minutes"])

    def goes_on() -> bool:
        if arguments.tiny:
            return training.step < first_step + _TINY_STEPS
        return time.monotonic() - began < 60 * minutes

    while goes_on():
        training.train_step()
        if training.evaluation_is_due:
            print(training.step, training.evaluate(), flush=True)
    training.save(None)
    spent = earlier["minutes"] + (time.monotonic() - began) / 60
    training.evaluate()
    if training.average.started:
        training.average.swap(training.model)
    judged = {}
    for name, shard in (("validation", text.validation[0]), ("test", test)):
        shown = objective_class(model, settings, replace(text, validation=[shard]), seed=1)
        judged[f"{name} perplexity"] = shown.evaluate(context)["validation/perplexity"]
    return {"minutes": spent, "steps": training.step, "averages": training.average.started, **judged}


def _penn_treebank(folder: Path) -> tuple[TrainingText, TokenShard]:
    """Read the three splits; each word is a token, and each line ends with `</s>`, as is usual there."""
    lines = {
        name: (folder / f"{name}.txt").read_text(encoding="utf-8").splitlines()
        for name in ("train", "validation", "test")
    }
    words = ["<pad>", "<unk>", "<s>", "</s>"]
    words += sorted({word for line in lines["train"] for word in line.split()} - set(words))
    ids = {word: token for token, word in enumerate(words)}
    shards = {}
    for name, split in lines.items():
        tokens = [ids.get(word, 1) for line in split for word in [*line.split(), "</s>"]]
        num_bytes = sum(len(line.encode()) + 1 for line in split)
        shards[name] = shard_of(np.array([3, *tokens], dtype=np.uint16), len(tokens), num_bytes)
    text = TrainingText(
        [shards["train"]], [shards["validation"]], len(words), "forward", special_ids=frozenset((0, 2, 3))
    )
    return text, shards["test"]


def imdb(arguments: argparse.Namespace) -> dict[str, Any]:
    """Train for some minutes more, and return what the finished trainings reached."""
    project, name, folder = _imdb_project(arguments), arguments.headstart, arguments.out / "imdb"
    head_start, params = project.head_starts[name], project.params
    general, target = arguments.tokens / "general", arguments.tokens / "target"
    models = {stage: folder / f"{stage}-model" for stage in _IMDB_STAGES}
    makers: dict[str, Callable[[], LanguageModelJob | ClassifierJob]] = {
        "pretrain_lm": lambda: pretrain_lm.job(
            head_start, params.run.seed, tokens=general, out=models["pretrain_lm"]
        ),
        "finetune_lm": lambda: finetune_lm.job(
            head_start, params.run.seed, tokens=target, start=models["pretrain_lm"],
            out=models["finetune_lm"],
        ),
        "finetune_classifier": lambda: finetune_classifier.job(
            head_start, params.corpus.target.normalise, params.run.seed, tokens=target,
            target_lm=models["finetune_lm"], general_lm=models["pretrain_lm"],
        ),
    }  # fmt: skip
    for few in _few(arguments):
        makers[few.name] = partial(
            _with_few_labels, few, project, name, tokens=target, start=models["finetune_lm"]
        )
        models[few.name] = folder / f"{few.name}-model"
    stop = _stopping_at(time.monotonic() + 60 * arguments.minutes)
    figures: dict[str, Any] = {"headstart": name}
    for stage, make in makers.items():
        if stage in _IMDB_STAGES and stage not in arguments.stages:
            continue
        job, store = make(), CheckpointStore(str(folder / stage))
        precision = _precision(arguments.device)
        if isinstance(job, ClassifierJob) and arguments.classifier_precision is not None:
            precision = PRECISIONS[arguments.classifier_precision]
        print(f"{stage} begins", flush=True)
        context = Context(
            device=arguments.device, precision=precision, store=store, report=stop,
            checkpoint_minutes=1.0, meter=Cost(gpu=arguments.device.type == "cuda"),
        )  # fmt: skip
        try:
            train(job.task(context), context)
        except _StoppedError:
            figures["continues with"] = stage
            return figures
        done = store.newest()
        assert done is not None
        export_model(models[stage], model_tensors(done), job.card)
        figures[stage] = _reached(done)
        if isinstance(job, ClassifierJob):
            figures[stage]["test error"] = _test_error(models[stage], target, arguments.device, precision)
        print(stage, figures[stage], flush=True)
        _write(arguments, figures)
    return figures


def both(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the test errors of several calls of imdb, and that of the mean of their probabilities."""
    labels = open_shard(arguments.tokens / "target", "test").labels
    logits = {
        str(member): np.load(member / "imdb/finetune_classifier-model-test.npy")
        for member in arguments.members
    }
    probs = {name: torch.from_numpy(logits_NC).softmax(1).numpy() for name, logits_NC in logits.items()}
    errors = {name: float((probs_NC.argmax(1) != labels).mean()) for name, probs_NC in probs.items()}
    mean = np.mean([*probs.values()], axis=0)
    return {"test errors": errors, "test error of the mean": float((mean.argmax(1) != labels).mean())}


class _Few(NamedTuple):
    num_labels: int
    seed: int

    @property
    def name(self) -> str:
        return f"{self.num_labels} labels, seed {self.seed}"


def _few(arguments: argparse.Namespace) -> list[_Few]:
    return [_Few(count, seed) for count in arguments.labels for seed in (1, 2, 3)]


def _with_few_labels(few: _Few, project: Project, name: str, *, tokens: Path, start: Path) -> ClassifierJob:
    """The training of a point of the label curve."""
    head_start, normalise = project.head_starts[name], project.params.corpus.target.normalise
    return make_classifier_job(
        classifier_settings(head_start, Use.NETWORK), head_start.model, normalise,
        tokens=tokens, start=ModelFolder.at(start), seed=few.seed, few_labels=FewLabels(few.num_labels),
    )  # fmt: skip


_IMDB_STAGES = ("pretrain_lm", "finetune_lm", "finetune_classifier")


def _imdb_project(arguments: argparse.Namespace) -> Project:
    values = read_yaml(ROOT / "params.yaml")
    for file in arguments.settings:
        values = overlay(values, read_yaml(file))
    return Project.of(values, where=f"params.yaml with {', '.join(map(str, arguments.settings))}")


def _stopping_at(end: float) -> Callable[[Any], None]:
    began = reported = time.monotonic()

    def report(metrics: Any) -> None:
        nonlocal reported
        if time.monotonic() > reported + 15:
            reported = time.monotonic()
            figures = ", ".join(f"{name} {value:.4g}" for name, value in metrics.items())
            print(f"{reported - began:.0f} s: {figures}", flush=True)
        if time.monotonic() > end:
            raise _StoppedError

    return report


def _reached(done: Checkpoint) -> dict[str, Any]:
    state = done.state
    return {"steps": done.step, "minutes": state["spent"]["seconds"] / 60, **state["kept_metrics"]}


def _test_error(folder: Path, tokens: Path, device: torch.device, precision: torch.dtype) -> float:
    model, card, _ = load_classifier(folder)
    test = open_shard(tokens, "test")
    documents = [test.document(k) for k in range(len(test))]
    logits = predict_logits(model.to(device).eval(), documents, form_of(card), device, precision)
    np.save(folder.with_name(f"{folder.name}-test.npy"), logits.numpy())  # to average over directions
    return float((logits.argmax(1).numpy() != test.labels).mean())


def _precision(device: torch.device) -> torch.dtype:
    return torch.bfloat16 if device.type == "cuda" else torch.float32


_BEGAN = time.monotonic()
PARTS = {
    "check": check,
    "resume": resume,
    "speed": speed,
    "steps": steps,
    "ptb": ptb,
    "imdb": imdb,
    "both": both,
}


def _write(arguments: argparse.Namespace, figures: dict[str, Any]) -> dict[str, Any]:
    """Write the figures that a part has so far."""
    whole = {"machine": machine(), "seconds": time.monotonic() - _BEGAN, arguments.part: figures}
    file = arguments.out / f"{arguments.part}.json"
    file.write_text(json.dumps(whole, indent=2) + "\n", encoding="utf-8")
    return whole


def main(given: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", type=torch.device, default=torch.device("cuda"))
    parser.add_argument("--text", type=Path, help="for ptb: the folder of the three splits")
    parser.add_argument("--tokens", type=Path, help="for imdb: see above")
    parser.add_argument("--settings", type=Path, nargs="*", default=_IMDB_SETTINGS, help="for imdb")
    parser.add_argument("--headstart", default="ulmfit", help="for imdb")
    parser.add_argument(
        "--labels", type=int, nargs="*", default=[100], help="for imdb: points of the label curve, too"
    )
    parser.add_argument(
        "--members", type=Path, nargs="*", default=[], help="for both: the folders --out of calls of imdb"
    )
    parser.add_argument(
        "--stages", nargs="*", choices=_IMDB_STAGES, default=_IMDB_STAGES, help="for imdb: those to train"
    )
    parser.add_argument(
        "--classifier-precision", choices=PRECISIONS, help="for imdb: of its classifiers; else as the others"
    )
    parser.add_argument("--minutes", type=float, default=7.0, help="for ptb and imdb: of this call")
    parser.add_argument("--peers", action="store_true", help="for speed: the other libraries, too")
    parser.add_argument("--rounds", type=int, default=3, help="for speed")
    parser.add_argument("--tiny", action="store_true", help="to try the script itself")
    arguments = parser.parse_args(given)
    if arguments.device.type == "cuda" and not torch.cuda.is_available():
        raise SystemExit("torch sees no GPU here; --device cpu --tiny tries the script")
    if arguments.part == "ptb" and arguments.text is None:
        raise SystemExit("ptb needs --text, a folder with train.txt, validation.txt and test.txt")
    if arguments.part in ("imdb", "both") and arguments.tokens is None:
        raise SystemExit(
            f"{arguments.part} needs --tokens, a folder with the shards of `encode` in general and target"
        )
    arguments.out.mkdir(parents=True, exist_ok=True)
    set_arithmetic(None, deterministic=False)
    print(json.dumps(_write(arguments, PARTS[arguments.part](arguments)), indent=2))


if __name__ == "__main__":
    main()
