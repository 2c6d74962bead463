"""An estimate of the memory and disk that a training takes, from the settings alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from models.family import lookup
from models.mixing import LayerChoice
from models.objective import StepSize
from pipeline.corpus.imported_tokenizer import import_tokenizer
from pipeline.corpus.settings import ImportedTokenizer
from pipeline.doctor.findings import Finding, failure, ok, warning
from pipeline.execution.without_labels import is_passed_over
from pipeline.objectives.lookup import objective_of
from pipeline.project import stages
from pipeline.project.arms import head_starts_of, trained_arms
from pipeline.project.headstarts import ResolvedHeadStart
from pipeline.project.params import Params
from pipeline.project.project import Project
from pipeline.project.related import related
from pipeline.project.sizes import sizes_of
from pipeline.settings.arm import Use
from pipeline.training.cards import HeadCard, ModelCard
from pipeline.training.jobs import shapes_of
from pipeline.training.settings import ClassifierTraining, LanguageModelSettings

FLOAT_BYTES = 4

# Measured on a CPU, see `Need`.
FIXED_BYTES = 90e6  # libraries' own buffers
PROCESS_BYTES = 500e6  # a worker that has imported torch, Ray and MLflow
# The same in settings and card.
_OF_THE_HEAD = ("pooling", "attention_score", "head_hidden", "bptt", "max_tokens", "combine")
_BESIDE_PARTS = 0.2  # of the activations: what evaluation and the rest of a step take, as measured for four
FACTOR = 1.5  # the estimate is right to within this factor


@dataclass(frozen=True)
class Need:
    """The memory and disk that a training stage takes.

    It counts weights, gradients, the optimizer's state, the copies that NT-ASGD and early stopping keep,
    activations, and the logits held at once. For ten trainings of LSTMs on a CPU in float32 and bfloat16, of
    0.3 to 32 million parameters, the estimate was 0.85 to 1.2 times the measured peak; a test asserts a
    factor of 1.5. For word vectors of 2 to 36 million parameters, `process_bytes` was 1.05 to 1.3 times the
    measured peak of `pretrain_lm`, as it takes every word to be kept that `subsample` may drop. GPUs have not
    been measured.
    """

    stage: str
    num_parameters: int
    worker_bytes: float  # per worker, on its device
    checkpoint_bytes: float
    headstart: str = ""

    @property
    def process_bytes(self) -> float:
        """Memory of a worker's process if it trains on its CPU. A checkpoint is copied to be written."""
        return self.worker_bytes + self.checkpoint_bytes + PROCESS_BYTES


def needs_of(project: Project, num_workers: int) -> list[Need]:
    """The need of each training of each head start. Raises ValueError if a model cannot be built."""
    params = project.params
    found = [
        need
        for head_start in project.trained
        for stage in trained_stages(params)
        for need in _needs_of_stage(project, head_start, stage, num_workers)
    ]
    if params.scaling.sizes:
        found.append(_need_of_largest_size(project))
    return found


def _needs_of_stage(
    project: Project, head_start: ResolvedHeadStart, stage: str, num_workers: int
) -> Iterator[Need]:
    """The need of a stage, after that of an embedding which is trained in it first, on the same tokens."""
    params, name, tokenizer = project.params, head_start.name, head_start.tokenizer
    if stage == "pretrain_lm" and head_start.embedding_from is not None:
        vectors = replace(head_start.embedding_from, name=f"embedding of {name}", tokenizer=tokenizer)
        yield _need_of_stage(params, vectors, stage, num_workers)
    need = _need_of_stage(params, head_start, stage, num_workers)
    for relation, other in related(project, name, stage):
        if relation.reads == "model":
            model = replace(project.head_starts[other], tokenizer=tokenizer)
            weights = _need_of_stage(params, model, stage, num_workers).num_parameters
            need = replace(need, worker_bytes=need.worker_bytes + FLOAT_BYTES * weights)
    yield need


def _need_of_largest_size(project: Project) -> Need:
    """The need of the largest network of `scaling`, which trains in one process."""
    params = project.params
    sizes, check = sizes_of(project)
    found = []
    for size in [*sizes, *([check] if check else [])]:
        head_start = replace(size.of_epochs(1.0), name=f"{params.scaling.headstart}, {size.key}")
        found.append(_need_of_stage(params, head_start, "pretrain_lm", 1))
    return max(found, key=lambda need: need.worker_bytes)


def trained_stages(params: Params) -> list[str]:
    """The training stages that are not passed over for want of labels."""
    return [stage for stage in stages.of_kind("trains") if not is_passed_over(stage, params)]


def _need_of_stage(params: Params, head_start: ResolvedHeadStart, stage: str, num_workers: int) -> Need:
    settings = getattr(head_start, stage)
    card = ModelCard(
        kind="language_model",
        family=head_start.family.name,
        config=head_start.model.config,
        vocab_size=_vocab_size(params, head_start.tokenizer),
        pad_id=0,
        direction="forward",
        tokenizer_sha256="",
        stage=stage,
        key="",
    )
    if isinstance(settings, ClassifierTraining):
        same = {name: getattr(settings, name) for name in _OF_THE_HEAD}
        same["layers"] = LayerChoice.of(settings.layers, settings.combine).layers
        dropout = tuple(settings.head_dropout)
        # The number of labels hardly matters.
        head = HeadCard(label_names=("a", "b"), head_dropout=dropout, normalise={}, **same)
        card = replace(card, kind="classifier", head=head)
    sharded = params.run.sharding == "full"
    need = need_of(settings, card, num_workers, params.run.micro_batch_rows, sharded=sharded)
    return replace(need, headstart=head_start.name)


def _vocab_size(params: Params, name: str) -> int:
    settings = params.tokenizers[name]
    if isinstance(settings, ImportedTokenizer):
        return import_tokenizer(settings, f"tokenizers.{name}").vocab_size
    return settings.vocab_size


def need_of(
    settings: LanguageModelSettings | ClassifierTraining,
    card: ModelCard,
    num_workers: int,
    micro_rows: int | None = None,
    *,
    sharded: bool = False,
) -> Need:
    """The need of one training."""
    family = lookup(card.family)
    model, encoder, _ = shapes_of(card)
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    if isinstance(settings, ClassifierTraining):
        optimizer, patient = settings.optimizer, settings.patience is not None
        first = settings.restarts > 0
        tokens = settings.batch_rows * settings.max_tokens
        chunk = min(encoder.tokens_at_once(settings.bptt, settings.max_tokens), settings.max_tokens)
        step = StepSize(tokens, 0, chunk, num_rows=settings.batch_rows)
        before = settings.max_tokens - chunk
    else:
        optimizer, patient, first = settings.training.optimizer, False, False
        objective = objective_of(family)
        step = objective.size_of_step(settings.own, card.vocab_size, encoder)
        before = step.num_tokens if step.num_lanes else 0
    states = {"adamw": 2, "sgd": 1, "nt_asgd": 2, "adagrad": 1}[optimizer.kind]
    kept = 1 + states + patient  # copies of the parameters that are in checkpoints, too
    # Plus the gradient, its flat copy that workers sum, and the first weights, to begin anew from.
    copies = kept + 1 + (num_workers > 1) + first
    numbers: float = copies * num_parameters + step.num_numbers
    if sharded and num_workers > 1 and encoder.can_be_sharded:
        # Its shards of all copies, and the weights whole for evaluation.
        numbers = (copies / num_workers + 1) * num_parameters + step.num_numbers
    tokens = -(-step.num_tokens // num_workers)
    widths = encoder.embedding.embedding_dim + encoder.width
    widths += sum(state.numel() for state in encoder.initial_state(1))
    per_token = encoder.activations_per_token(step.chunk, before)
    activations = tokens * (family.activations * widths if per_token is None else per_token)
    if micro_rows is not None and step.num_rows is not None:
        activations *= min(1.0, micro_rows / -(-step.num_rows // num_workers) + _BESIDE_PARTS)
    return Need(
        stage=card.stage,
        num_parameters=num_parameters,
        worker_bytes=FIXED_BYTES + FLOAT_BYTES * (numbers + activations),
        checkpoint_bytes=FLOAT_BYTES * (kept * num_parameters + step.num_lanes * encoder.numbers_carried()),
    )


def num_trials(params: Params) -> int:
    """The number of trainings that the sweeps of `dvc repro` may leave in run.storage."""
    curve = params.sample_efficiency
    # A probe is no network: what it leaves is small.
    networks = sum(
        len(head_starts_of(arm, params))
        for arm in trained_arms(params, params.num_texts)
        if arm.use is not Use.PROBE
    )
    distilled = int(params.distil_classifier.student is not None)
    scaling = params.scaling
    sized = len(scaling.sizes) * len(scaling.tokens) * len(scaling.seeds)
    sized += bool(scaling.sizes) and scaling.check is not None
    return networks * len(curve.labels) * len(curve.seeds) + params.tune.num_trials + distilled + sized


def storage_bytes(params: Params, needs: Sequence[Need]) -> float:
    """The size of all checkpoints that are kept, plus one that is being written."""
    each = params.run.keep_checkpoints
    models = sum(need.checkpoint_bytes for need in needs) * each
    classifier = max(need.checkpoint_bytes for need in needs)
    return models + num_trials(params) * classifier * each + classifier


def fitting(check: str, found: str, wanted: float, free: float, to_do: str) -> Finding:
    """A finding on an estimated need: a warning if it may not fit, a failure if it most likely does not."""
    if wanted * FACTOR <= free:
        return ok(check, found)
    return (failure if wanted > free else warning)(check, found, to_do)
