"""What a training takes of memory and disk, from the settings alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pipeline.params import ClassifierTraining, LanguageModelTraining, Params
from pipeline.training.export import HeadCard, ModelCard, family_and_config
from pipeline.training.jobs import shapes_of

FLOAT_BYTES = 4
STAGES = ("pretrain_lm", "finetune_lm", "finetune_classifier")

# Measured on a CPU, see `Need`.
ACTIVATIONS = (
    8.5  # numbers kept for the gradient, for each number of a token's embedding, states and features
)
FIXED_BYTES = 90e6  # of libraries at work
PROCESS_BYTES = 500e6  # a worker that has imported torch, Ray and MLflow
FACTOR = 1.5  # within which the estimate was right

_LOGIT_ROWS, _LOGITS = 512, 2**26  # held at once by models.kernels
_LONGER = 20  # tokens by which a step may be longer than `bptt`, where that varies


@dataclass(frozen=True)
class Need:
    """What a training stage takes.

    Weights, gradients, the optimizer's state, copies that NT-ASGD and early stopping keep, what a step keeps
    for its gradient, and the logits that are alive at once. Held against the peak of ten trainings in
    float32 and bfloat16 on a CPU, of 0.3 to 32 million parameters, the estimate was between 0.85 and 1.2
    times the peak; a test asks for a factor of 1.5. Not measured: GPUs, and families without recurrent state.
    """

    stage: str
    num_parameters: int
    worker_bytes: float  # of each worker, on the device that it trains on
    checkpoint_bytes: float

    @property
    def process_bytes(self) -> float:
        """Of a worker's process that trains on its CPU."""
        return self.worker_bytes + PROCESS_BYTES


def needs_of(params: Params, vocab_size: int, num_workers: int) -> list[Need]:
    """Of each training stage, in their order. Raises ValueError for a model that cannot be."""
    return [_need_of(stage, params, vocab_size, num_workers) for stage in STAGES]


def need_of(settings: LanguageModelTraining | ClassifierTraining, card: ModelCard, num_workers: int) -> Need:
    """Of a training of these settings by so many workers."""
    model, encoder, _ = shapes_of(card)
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    optimizer = settings.optimizer
    states = {"adamw": 2, "sgd": 1, "nt_asgd": 2}[optimizer.kind]
    patient = isinstance(settings, ClassifierTraining) and settings.patience is not None
    kept = 1 + states + patient  # and are in checkpoints
    copies = kept + 1 + (num_workers > 1)  # the gradient; all of it in a row, to be summed over workers
    numbers = copies * num_parameters

    rows = -(-settings.batch_rows // num_workers)
    if isinstance(settings, ClassifierTraining):
        tokens = rows * settings.max_tokens
    else:
        tokens = rows * (settings.bptt + _LONGER * settings.variable_bptt)
        trained = min(settings.sampled_words or card.vocab_size, card.vocab_size)
        numbers += 3 * trained * encoder.width  # the decoder's weight in its products, and its gradient twice
        numbers += min(tokens, _LOGIT_ROWS, max(1, _LOGITS // card.vocab_size)) * card.vocab_size
    widths = encoder.embedding.embedding_dim + encoder.width
    widths += sum(state.numel() for state in encoder.initial_state(1))
    activations = tokens * ACTIVATIONS * widths
    return Need(
        stage=card.stage,
        num_parameters=num_parameters,
        worker_bytes=FIXED_BYTES + FLOAT_BYTES * (numbers + activations),
        checkpoint_bytes=FLOAT_BYTES * kept * num_parameters,
    )


def num_trials(params: Params) -> int:
    """How many trainings the sweeps of `dvc repro` may leave in run.storage."""
    curve = params.sample_efficiency
    networks = sum(
        len(params.run.directions) if arm == "bidirectional" else 1 for arm in curve.arms if arm != "tfidf"
    )
    return networks * len(curve.labels) * len(curve.seeds) + params.tune.num_trials


def storage_bytes(params: Params, needs: Sequence[Need]) -> float:
    """Of checkpoints: those that are kept, and of each training one that is being written."""
    each = params.run.keep_checkpoints
    stages = sum(need.checkpoint_bytes for need in needs) * each * len(params.run.directions)
    classifier = needs[-1].checkpoint_bytes
    return stages + num_trials(params) * classifier * each + max(need.checkpoint_bytes for need in needs)


def _need_of(stage: str, params: Params, vocab_size: int, num_workers: int) -> Need:
    settings = getattr(params, stage)
    family, config = family_and_config(params.model)
    card = ModelCard(
        kind="language_model",
        family=family.name,
        config=vars(config),
        vocab_size=vocab_size,
        pad_id=0,
        direction="forward",
        tokenizer_sha256="",
        stage=stage,
        key="",
    )
    if isinstance(settings, ClassifierTraining):
        head = HeadCard(
            label_names=("a", "b"),  # how many there are makes no difference to speak of
            pooling=settings.pooling,
            head_hidden=settings.head_hidden,
            head_dropout=tuple(settings.head_dropout),
            bptt=settings.bptt,
            max_tokens=settings.max_tokens,
            normalise={},
        )
        card = replace(card, kind="classifier", head=head)
    return need_of(settings, card, num_workers)
