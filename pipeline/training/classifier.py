"""Training a classifier of whole documents: the loss of a step, its job, and which labels it trains on.

Shapes: B rows of this worker, T tokens, N documents, D documents of this worker's batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from models import kernels
from models.contrastive import pair_loss
from models.distillation import soft_loss
from models.family import Encoder, State, products_in
from models.heads import Classifier, LinearHead, classifier_groups
from models.layers import GlobalBatch
from models.mixing import LayerChoice
from models.objective import StepLoss, TrainingObjective, Workers
from pipeline.corpus.batches import rng_of, rows_of
from pipeline.corpus.classifier_batches import (
    ClassifierBatches,
    by_length,
    pad,
    stratified_subset,
    tokens_without_gradient,
)
from pipeline.corpus.document_frequencies import inverse_document_frequencies
from pipeline.corpus.settings import Normalise
from pipeline.corpus.text_form import TextForm
from pipeline.corpus.tokens import UNLABELLED, TokenShard, open_shard, read_info, read_word_parts
from pipeline.training.cards import (
    HeadCard,
    ModelCard,
    build_classifier,
    build_encoder,
    check_match,
    form_of,
    tokens_at_once,
)
from pipeline.training.checkpoint import tensors_under
from pipeline.training.classifier_rules import check_classifier, check_needs_no_validation
from pipeline.training.context import Context
from pipeline.training.fitted_head import fit_head
from pipeline.training.frozen_features import FrozenFeatures
from pipeline.training.jobs import (
    StartingModel,
    card_of,
    check_stages_of_unfreezing,
    set_up,
    shapes_of,
)
from pipeline.training.schedules import make_plan
from pipeline.training.settings import ClassifierTraining, Model
from pipeline.training.task import Task, evenly_spaced

_LEAST_STEPS_PER_EPOCH, _LEAST_ROWS = 3, 8  # of a batch that is cut to the number of labels
TAUGHT_FILE = "taught.npy"
_DOCUMENTS_TO_JUDGE_BY = 256  # enough to tell a network that learned something from one that did not


@dataclass(frozen=True)
class Decoder:
    """The decoder of the language model that a classifier starts from, for the auxiliary loss.

    Source: Radford et al. 2018, section 3.2 (L3). Departure: the decoder itself stays as it is, so that it is
    no part of the classifier; an embedding that it is tied to trains.
    """

    bias_V: Tensor
    weight_VF: Tensor | None  # None: it is tied to the encoder's embedding

    @staticmethod
    def of(tensors: Mapping[str, Tensor]) -> Decoder:
        """Take it from the tensors of a causal language model."""
        return Decoder(tensors["decoder_bias"], tensors.get("decoder_weight"))

    def mean_nats(
        self, encoder: Encoder, features_BTF: Tensor, ids_BT: Tensor, mask_BT: Tensor, context: Workers
    ) -> Tensor:
        """Return this worker's part of the mean loss over all tokens of the global batch but first ones.

        `mask_BT` is on the CPU, which so need not wait for a device to know how many these are.
        """
        follows_N = mask_BT[:, 1:].flatten().nonzero()[:, 0]
        (num_targets,) = context.sum_numbers(len(follows_N))
        (follows,) = context.to_device(follows_N)
        weight_VF = encoder.embedding.weight if self.weight_VF is None else self.weight_VF
        nats = kernels.cross_entropy(
            features_BTF[:, :-1].flatten(0, 1)[follows],
            weight_VF.to(context.device),
            self.bias_V.to(context.device),
            ids_BT[:, 1:].flatten()[follows],
            context.precision,
        )
        return nats / max(1.0, num_targets)


@dataclass(frozen=True)
class ClassifierLesson:
    """A teacher's probabilities for the training documents, and the weights of the parts of the loss.

    Source: Hinton et al. 2015, section 2. Departure: the teacher may be a blend, which has probabilities
    instead of logits; their logarithms are softened, which is the same for a network.
    """

    folder: Path  # TAUGHT_FILE: log probabilities (N, C), float32, of the documents of the split `train`
    temperature: float
    soft: float
    hard: float

    def log_probs(self) -> np.ndarray:
        log_probs: np.ndarray = np.load(self.folder / TAUGHT_FILE, mmap_mode="r", allow_pickle=False)
        return log_probs


@dataclass
class Classification(TrainingObjective):
    """Classification of whole documents. Source: Howard & Ruder 2018, section 3.3."""

    model: Classifier
    batches: ClassifierBatches
    validation: TokenShard
    validation_documents: np.ndarray  # indices into it
    form: TextForm
    label_smoothing: float
    seed: int
    decoder: Decoder | None = None
    language_model_weight: float = 0.0  # of its loss, beside the classifier's
    lesson: ClassifierLesson | None = None
    taught_NC: np.ndarray | None = None  # log probabilities of the lesson
    beside: FrozenFeatures | None = None  # features of another head start

    def lanes(self, context: Workers) -> tuple[slice, int]:
        return slice(0, 0), 0

    def least_rows(self, context: Workers) -> int:
        return len(self.batches.documents) // self.batches.steps_per_epoch

    def loss(self, step: int, state: State, context: Workers) -> StepLoss:
        batch = self.batches.at(step, context.rank, context.world)
        rows_each, num_documents = self.form.rows_each, batch.num_documents
        mine = rows_of(context.rank, context.world, num_documents)
        rows, num_rows = slice(rows_each * mine.start, rows_each * mine.stop), rows_each * num_documents
        whole = GlobalBatch(self.seed, step, num_rows, rows, context.device, context.all_reduce)
        ids, mask, labels = context.to_device(batch.ids_BT, batch.mask_BT, batch.labels_D)
        num_tokens = num_rows * ids.shape[1]
        if isinstance(self.model.head, LinearHead):
            part = pair_loss(self.model.pooled(ids, mask, whole), labels, whole.of_documents(rows_each))
            return StepLoss(part, part.detach() * num_documents, num_documents, num_tokens)
        features = self.model.features(ids, mask, whole)
        beside = None
        if self.beside is not None:
            (beside,) = context.to_device(self.beside.rows("train", batch.documents_D))
        logits = self.model.scored(self.model.pool(features, ids, mask), whole, beside)
        smoothed = F.cross_entropy(logits, labels, reduction="sum", label_smoothing=self.label_smoothing)
        with torch.no_grad():
            nats = F.cross_entropy(logits, labels, reduction="sum")
        objective = smoothed / num_documents
        if self.lesson is not None and self.taught_NC is not None:
            (taught,) = context.to_device(torch.from_numpy(self.taught_NC[batch.documents_D]))
            soft = soft_loss(logits, taught, self.lesson.temperature) / num_documents
            objective = self.lesson.hard * objective + self.lesson.soft * soft
        if self.decoder is not None:
            auxiliary = self.decoder.mean_nats(self.model.encoder, features, ids, batch.mask_BT, context)
            objective = objective + self.language_model_weight * auxiliary
        return StepLoss(objective, nats, num_documents, num_tokens)

    def evaluate(self, context: Workers) -> dict[str, float]:
        """Log loss in nats and accuracy on the validation documents; nothing if there are none."""
        if not len(self.validation_documents):
            return {}
        self.finish(context)
        loss, accuracy = self._judged("validation", self.validation_documents, context)
        return {"validation/loss": loss, "validation/accuracy": accuracy}

    def finish(self, context: Workers) -> None:
        """Fit a linear head to the training documents; the steps have trained what is below it."""
        if not isinstance(self.model.head, LinearHead):
            return
        self.model.eval()
        labels = self.batches.labels
        rows = rows_of(context.rank, context.world, len(labels))
        mine = [self.batches.shard.document(int(k)) for k in self.batches.documents[rows]]
        features = pooled_texts(self.model, mine, self.form, context.device)
        fit_head(self.model.head, features, rows, labels, self.seed, context)

    def took_off(self, context: Workers) -> bool:
        """Whether the loss on training documents is below that of the frequencies of their classes."""
        labels = self.batches.labels
        frequencies = np.bincount(labels) / len(labels)
        chosen = rng_of(self.seed, 7).permutation(len(labels))[:_DOCUMENTS_TO_JUDGE_BY]
        loss, _ = self._judged("train", self.batches.documents[chosen], context)
        return loss < -float(np.log(frequencies[labels[chosen]]).mean())

    def _judged(
        self, split: Literal["train", "validation"], documents: np.ndarray, context: Workers
    ) -> tuple[float, float]:
        """Mean log loss in nats, and accuracy."""
        self.model.eval()
        shard = self.batches.shard if split == "train" else self.validation
        mine = documents[context.rank :: context.world]
        logits = predict_logits(
            self.model,
            [shard.document(int(k)) for k in mine],
            self.form,
            context.device,
            beside_NG=None if self.beside is None else self.beside.rows(split, mine),
        )
        labels = torch.from_numpy(shard.labels[mine].astype(np.int64))
        nats, right, count = context.sum_numbers(
            float(F.cross_entropy(logits, labels, reduction="sum")) if len(mine) else 0.0,
            float((logits.argmax(1) == labels).sum()),
            len(mine),
        )
        return nats / count, right / count


@torch.no_grad()
def predict_logits(
    model: Classifier,
    documents: Sequence[np.ndarray],
    form: TextForm,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    beside_NG: Tensor | None = None,
) -> Tensor:
    """Return logits (N, C) on the CPU, in the order of the documents; matrix products in `dtype`.

    `beside_NG` are the features that a model reads beside its own, if it does.
    """
    logits = torch.zeros(len(documents), model.num_classes)
    with products_in(dtype, model.encoder):
        for chosen, ids, mask in _padded(documents, form, device):
            beside = None if beside_NG is None else beside_NG[chosen].to(device)
            logits[chosen] = model(ids.to(device), mask.to(device), beside_DG=beside).cpu()
    return logits


@torch.no_grad()
def pooled_texts(
    model: Classifier,
    documents: Sequence[np.ndarray],
    form: TextForm,
    device: torch.device,
) -> Tensor:
    """Return the network's pooled features (N, F) on the CPU, in the order of the documents, in float32."""
    pooled = torch.zeros(len(documents), model.pooled_width)
    with products_in(torch.float32, model.encoder):
        for chosen, ids, mask in _padded(documents, form, device):
            pooled[chosen] = model.pooled(ids.to(device), mask.to(device)).cpu()
    return pooled


def _padded(
    documents: Sequence[np.ndarray], form: TextForm, device: torch.device
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield the indices of documents of similar length, the ids of their rows and their mask."""
    rows = [form.rows(document) for document in documents]
    widths = [max(map(len, document_rows)) for document_rows in rows]
    for chosen in by_length(widths, tokens_without_gradient(device) // form.rows_each):
        part = [row for k in chosen for row in rows[k]]
        yield torch.from_numpy(chosen), *pad(part, max(map(len, part)), form.pad_id)


@dataclass(frozen=True)
class FewLabels:
    """Training on a subset of the labels: on all of it, and to the end of the schedule.

    With word vectors, a fifth held out to keep the weights of the best evaluation was 0.3 to 1.1 points of
    error worse: on the default corpus with 100 and 400 labels over three seeds, and on AG News with 100, 500
    and 1,000 over two. The mean of the weights of the last third of the steps was no better.
    """

    num_labels: int
    num_evaluations: int = 0  # on the validation split, for a search
    key: str = "sample_efficiency.labels"  # setting that holds `num_labels`, for error messages


@dataclass(frozen=True)
class ClassifierJob:
    settings: ClassifierTraining
    card: ModelCard
    tokens: Path
    start: StartingModel | None  # a language model; None: from scratch
    seed: int
    few_labels: FewLabels | None = None
    lesson: ClassifierLesson | None = None  # of a teacher
    beside: FrozenFeatures | None = None  # features of another head start

    def task(self, context: Context) -> Task:
        settings, card = self.settings, self.card
        assert card.head is not None
        torch.manual_seed(self.seed)  # the initial weights
        encoder, encoder_groups = build_encoder(card, settings.dropout)
        set_up(encoder, context)
        model = build_classifier(encoder, card.head)
        model.stays_frozen = settings.unfreeze == "head"
        decoder = None
        if self.start is not None:
            tensors = self.start.tensors()
            encoder.load_state_dict(tensors_under(tensors, "encoder."))
            decoder = Decoder.of(tensors) if settings.language_model_weight else None
        else:
            encoder.know_words(torch.from_numpy(read_word_parts(self.tokens)))
        groups = classifier_groups(model, encoder_groups)
        train = open_shard(self.tokens, "train")
        if model.idf_V is not None:  # of all its texts, as the labels play no part
            model.idf_V.copy_(torch.from_numpy(inverse_document_frequencies([train], card.vocab_size)))
        documents, validation = self._documents(train), open_shard(self.tokens, "validation")
        validates = _validates(self.few_labels)
        judged = validation.labels != UNLABELLED if validates else np.zeros(0, bool)
        batches = self.batches(train, documents)
        num_steps = max(settings.min_steps, round(settings.epochs * batches.steps_per_epoch))
        num_evaluations = round(settings.epochs * settings.evaluations_per_epoch)
        if self.few_labels is not None:
            num_evaluations = self.few_labels.num_evaluations
        plan = make_plan(
            settings.optimizer,
            settings.schedule,
            settings.unfreeze,
            num_groups=len(groups),
            num_steps=num_steps,
            steps_per_unfreezing=max(1, round(settings.epochs_per_unfreezing / settings.epochs * num_steps)),
        )
        objective = Classification(
            model=model,
            batches=batches,
            validation=validation,
            validation_documents=np.flatnonzero(judged),
            form=form_of(card),
            label_smoothing=settings.label_smoothing,
            seed=self.seed,
            decoder=decoder,
            language_model_weight=settings.language_model_weight,
            lesson=self.lesson,
            taught_NC=None if self.lesson is None else self.lesson.log_probs(),
            beside=self.beside,
        )
        return Task(
            model=model,
            objective=objective,
            groups=groups,
            plan=plan,
            optimizer=settings.optimizer,
            evaluation_steps=evenly_spaced(num_steps, num_evaluations) if validates else frozenset(),
            patience=settings.patience if validates else None,
            max_restarts=settings.restarts,
        )

    def batches(self, train: TokenShard, documents: np.ndarray) -> ClassifierBatches:
        return ClassifierBatches(
            train,
            documents=documents,
            batch_documents=rows_for(len(documents), self.settings.batch_rows),
            form=form_of(self.card),
            seed=self.seed,
        )

    @property
    def padding_share(self) -> float:
        """The part of the tokens of training batches that are padding."""
        train = open_shard(self.tokens, "train")
        return self.batches(train, self._documents(train)).padding_share

    @property
    def cut_share(self) -> float:
        """The part of the training documents that are longer than what is read of them."""
        train = open_shard(self.tokens, "train")
        lengths = np.diff(train.offsets)[self._documents(train)]
        return float((lengths > self.settings.max_tokens).mean())

    def _documents(self, train: TokenShard) -> np.ndarray:
        """Indices of the training documents."""
        few = self.few_labels
        if few is None:
            return chosen_documents(train, self.settings.max_labels, self.seed)
        return chosen_documents(train, few.num_labels, self.seed, few.key)


def make_classifier_job(
    settings: ClassifierTraining,
    model: Model,
    normalise: Normalise,
    *,
    tokens: Path,
    start: StartingModel | None,
    seed: int,
    few_labels: FewLabels | None = None,
    features: Path | None = None,
) -> ClassifierJob:
    """Make a job; raise ValueError if data, settings and starting model do not fit together.

    `features` has those of each head start in a folder of its name; `settings.beside` may name one.
    """
    info = read_info(tokens)
    if info.label_names is None:
        raise ValueError(f"{tokens} has no labels: set corpus.target.source.label_column")
    shard = open_shard(tokens, "train")
    if few_labels is not None:
        chosen_documents(shard, few_labels.num_labels, seed, few_labels.key)
    else:
        chosen_documents(shard, settings.max_labels, seed)
    if not _validates(few_labels):
        check_needs_no_validation(settings, "few_labels")
    if _validates(few_labels) and not (open_shard(tokens, "validation").labels != UNLABELLED).any():
        raise ValueError(f"{tokens} has no labelled validation documents; label some, or split some off")
    beside = _beside(settings, features, len(shard))
    card = card_of(model, info, "classifier", "finetune_classifier")
    chunk = tokens_at_once(card, settings.bptt, settings.max_tokens)
    head = HeadCard(
        label_names=info.label_names,
        pooling=settings.pooling,
        head_hidden=settings.head_hidden,
        head_dropout=tuple(settings.head_dropout),
        bptt=chunk,
        max_tokens=settings.max_tokens,
        normalise=normalise.model_dump(),
        kind="linear" if settings.method == "contrastive" else "blocks",
        layers=LayerChoice.of(settings.layers, settings.combine).layers,
        combine=settings.combine,
        delimiter_id=info.eos_id if info.num_texts > 1 else None,
        pair_order=settings.pair_order if info.num_texts == 2 else "given",
        num_choices=info.num_texts - 1 if info.num_texts > 2 else None,
        attention_score=settings.attention_score,
        beside=settings.beside,
        beside_width=0 if beside is None else beside.width,
    )
    card = replace(card, head=head)
    if start is not None:
        check_match(start.card(), card, start.path)
    check_stages_of_unfreezing(settings, card)
    check_classifier(settings, info.num_texts, model.family, shapes_of(card)[1], "finetune_classifier")
    return ClassifierJob(settings, card, tokens.resolve(), start, seed, few_labels, beside=beside)


def _beside(settings: ClassifierTraining, features: Path | None, num_documents: int) -> FrozenFeatures | None:
    """Return the features of the head start that `settings.beside` names, of the training documents."""
    if settings.beside is None:
        return None
    assert features is not None
    beside = FrozenFeatures(settings.beside, (features / settings.beside).resolve())
    beside.check("train", num_documents)
    return beside


def chosen_documents(
    shard: TokenShard, max_labels: int | None, seed: int, key: str = "finetune_classifier.max_labels"
) -> np.ndarray:
    """Return the indices of the labelled documents to train on; all, if `max_labels` is more than there are.

    Raises ValueError, naming `key`, if `max_labels` is less than one per class.
    """
    labelled = np.flatnonzero(shard.labels != UNLABELLED)
    if max_labels is None or max_labels >= len(labelled):
        return labelled
    num_classes = len(np.unique(shard.labels[labelled]))
    if max_labels < num_classes:
        raise ValueError(f"{key} is {max_labels:,}, fewer than the {num_classes} classes; raise it")
    return labelled[stratified_subset(shard.labels[labelled], max_labels, seed)]


def rows_for(num_documents: int, batch_rows: int) -> int:
    """The documents of a batch: fewer than `batch_rows` where these would leave few steps in an epoch."""
    least = -(-num_documents // _LEAST_STEPS_PER_EPOCH)
    return min(batch_rows, max(_LEAST_ROWS, least))


def num_labels_of(wanted: int | Literal["all"], shard: TokenShard) -> int:
    """The number of labels to train on: all, if more are wanted than there are."""
    existing = int((shard.labels != UNLABELLED).sum())
    return existing if wanted == "all" else min(wanted, existing)


def label_counts(
    wanted: Sequence[int | Literal["all"]], shard: TokenShard
) -> tuple[list[int], dict[int, str]]:
    """The numbers of labels that can be trained on, ascending, and those that cannot, with the reason.

    If none of them can, all labels are the one number.
    """
    labels = shard.labels[shard.labels != UNLABELLED]
    num_labels, num_classes = len(labels), len(np.unique(labels))
    counts = {num_labels if count == "all" else count for count in wanted}
    left_out = {count: f"there are {num_labels:,}" for count in sorted(counts) if count > num_labels}
    left_out |= {count: f"there are {num_classes} classes" for count in sorted(counts) if count < num_classes}
    return sorted(counts - left_out.keys()) or [num_labels], left_out


def _validates(few: FewLabels | None) -> bool:
    return few is None or few.num_evaluations > 0
