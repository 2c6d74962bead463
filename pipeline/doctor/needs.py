"""An estimate of the memory and disk that a training takes, from the settings alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pipeline.doctor.findings import Finding, failure, ok, warning
from pipeline.project import stages
from pipeline.project.params import Params
from pipeline.training.cards import HeadCard, ModelCard, family_and_config
from pipeline.training.jobs import shapes_of
from pipeline.training.settings import ClassifierTraining, LanguageModelTraining

FLOAT_BYTES = 4

# Measured on a CPU, see `Need`.
ACTIVATIONS = 8.5  # numbers kept for the gradient, per number in a token's embedding, states and features
FIXED_BYTES = 90e6  # libraries' own buffers
PROCESS_BYTES = 500e6  # a worker that has imported torch, Ray and MLflow
FACTOR = 1.5  # the estimate is right to within this factor

_LOGIT_ROWS, _LOGITS = 512, 2**26  # models.kernels holds at most so many at once
_LONGER = 20  # tokens by which a step may exceed `bptt` if its length varies


@dataclass(frozen=True)
class Need:
    """The memory and disk that a training stage takes.

    It counts weights, gradients, the optimizer's state, the copies that NT-ASGD and early stopping keep,
    activations, and the logits held at once. For ten trainings on a CPU in float32 and bfloat16, of 0.3 to 32
    million parameters, the estimate was 0.85 to 1.2 times the measured peak; a test asserts a factor of 1.5.
    GPUs and families without recurrent state have not been measured.
    """

    stage: str
    num_parameters: int
    worker_bytes: float  # per worker, on its device
    checkpoint_bytes: float

    @property
    def process_bytes(self) -> float:
        """Memory of a worker's process if it trains on its CPU."""
        return self.worker_bytes + PROCESS_BYTES


def needs_of(params: Params, num_workers: int) -> list[Need]:
    """The need of each training stage, in order. Raises ValueError if the model cannot be built."""
    family, config = family_and_config(params.model)
    needs = []
    for stage in stages.of_kind("trains"):
        settings = getattr(params, stage)
        card = ModelCard(
            kind="language_model",
            family=family.name,
            config=vars(config),
            vocab_size=params.tokenizer.vocab_size,
            pad_id=0,
            direction="forward",
            tokenizer_sha256="",
            stage=stage,
            key="",
        )
        if isinstance(settings, ClassifierTraining):
            same = {
                name: getattr(settings, name) for name in ("pooling", "head_hidden", "bptt", "max_tokens")
            }
            dropout = tuple(settings.head_dropout)
            # The number of labels hardly matters.
            head = HeadCard(label_names=("a", "b"), head_dropout=dropout, normalise={}, **same)
            card = replace(card, kind="classifier", head=head)
        needs.append(need_of(settings, card, num_workers))
    return needs


def need_of(settings: LanguageModelTraining | ClassifierTraining, card: ModelCard, num_workers: int) -> Need:
    """The need of one training."""
    model, encoder, _ = shapes_of(card)
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    optimizer = settings.optimizer
    states = {"adamw": 2, "sgd": 1, "nt_asgd": 2}[optimizer.kind]
    patient = isinstance(settings, ClassifierTraining) and settings.patience is not None
    kept = 1 + states + patient  # copies of the parameters that are in checkpoints, too
    copies = kept + 1 + (num_workers > 1)  # plus the gradient, and its flat copy that workers sum
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
    """The number of trainings that the sweeps of `dvc repro` may leave in run.storage."""
    curve = params.sample_efficiency
    by_arm = {"bidirectional": len(params.run.directions), "tfidf": 0}
    networks = sum(by_arm.get(arm, 1) for arm in curve.arms)
    return networks * len(curve.labels) * len(curve.seeds) + params.tune.num_trials


def storage_bytes(params: Params, needs: Sequence[Need]) -> float:
    """The size of all checkpoints that are kept, plus one that is being written."""
    each = params.run.keep_checkpoints
    models = sum(need.checkpoint_bytes for need in needs) * each * len(params.run.directions)
    classifier = needs[-1].checkpoint_bytes
    return models + num_trials(params) * classifier * each + max(need.checkpoint_bytes for need in needs)


def fitting(check: str, found: str, wanted: float, free: float, to_do: str) -> Finding:
    """A finding on an estimated need: a warning if it may not fit, a failure if it most likely does not."""
    if wanted * FACTOR <= free:
        return ok(check, found)
    return (failure if wanted > free else warning)(check, found, to_do)
