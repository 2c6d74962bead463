"""`headstart suggest`: documents to label next, as a CSV to fill in; and a trial of the ways to choose."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pipeline.corpus.document_files import read_texts
from pipeline.corpus.document_frequencies import inverse_document_frequencies
from pipeline.corpus.leakage import LeakFinder
from pipeline.corpus.settings import FilesSource
from pipeline.corpus.text_columns import text_columns
from pipeline.corpus.text_parts import SEPARATOR
from pipeline.corpus.tokens import UNLABELLED, open_shard, read_info
from pipeline.evaluation.acquisition import STRATEGIES, Strategy, choose
from pipeline.evaluation.label_curve import Bootstrap
from pipeline.evaluation.probe import pooled_features, side_by_side
from pipeline.evaluation.strategy_trial import BASE, try_strategies
from pipeline.execution.opened_head_start import OpenedHeadStart, open_head_start
from pipeline.files.atomic import atomic_create
from pipeline.inference.predict import Predictor
from pipeline.project.params import Params
from pipeline.project.project import Project
from pipeline.report.sections.studies.choosing import ChoosingStudy
from pipeline.report.study_files import SavedStudy, make_ready, write_study

_DOCUMENTS = Path("data/documents/target")
_LABELLED_SPLITS = ("train", "validation", "test")
_MOST_TRIED, _MOST_JUDGED = 8_000, 2_000  # documents of a trial


@dataclass(frozen=True)
class Suggested:
    num_chosen: int
    num_unlabelled: int
    num_known: int  # passed over, as labelled text has them, word for word or nearly
    file: Path
    spelling: dict[str, str]  # how a label is written, by its name


def suggest(
    project: Project,
    headstart: str | None,
    count: int,
    strategy: Strategy,
    classifier: Path,
    out: Path,
    seed: int,
) -> Suggested:
    """Write the documents to label next to a CSV that does not exist yet.

    Its columns are those of `corpus.target.source`, the labels empty, and what the classifier thinks. The
    features are those of the head start's probe.

    Raises ValueError without unlabelled documents, an unknown head start, missing inputs, or if `out` exists.
    """
    if out.exists():
        raise ValueError(f"{out} exists, perhaps with labels in it; name another file")
    opened = open_head_start(project, headstart or project.params.run.headstarts[0], "target_lm")
    texts, tokens = _unlabelled(opened)
    predictor = Predictor.load(classifier)
    documents = [tuple(text.split(SEPARATOR)) for text in texts]
    probs = predictor.probabilities(documents)
    train = open_shard(opened.folder, "train")
    labelled = [train.document(int(k)) for k in np.flatnonzero(train.labels != UNLABELLED)]
    features, known = _features(opened, tokens), _features(opened, labelled)
    fresh = _without_known(texts, opened)
    rng = np.random.default_rng(seed)
    kept = fresh[choose(strategy, count, probs[fresh], features[fresh], known, rng)]
    _write(out, opened.params, [documents[k] for k in kept], probs[kept], predictor.label_names)
    return Suggested(
        len(kept), len(texts), len(texts) - len(fresh), out, _spelling(opened.params, predictor.label_names)
    )


def _spelling(params: Params, names: Sequence[str]) -> dict[str, str]:
    source = params.corpus.target.source
    by_number = isinstance(source, FilesSource) and source.label_names
    return {name: str(number) if by_number else name for number, name in enumerate(names)}


def _unlabelled(opened: OpenedHeadStart) -> tuple[list[str], list[np.ndarray]]:
    """Return the texts and tokens of all documents without a label, the training split's among them."""
    texts, tokens = [], []
    for split in read_info(opened.folder).splits:
        if split not in ("train", "unlabelled"):
            continue
        shard, whole = open_shard(opened.folder, split), read_texts(_DOCUMENTS, split)
        for k in np.flatnonzero(shard.labels == UNLABELLED):
            texts.append(whole[k])
            tokens.append(shard.document(int(k)))
    if not texts:
        raise ValueError(
            "the target corpus has no unlabelled documents to choose from; name their files in "
            "corpus.target.source.unlabelled and run `dvc repro`"
        )
    return texts, tokens


def _features(opened: OpenedHeadStart, documents: Sequence[np.ndarray]) -> np.ndarray:
    idf = inverse_document_frequencies([open_shard(opened.folder, "train")], opened.info.vocab_size)
    features_NPF = pooled_features(
        opened.encoder, documents, opened.settings.probe, opened.reading, idf, opened.device
    )
    return side_by_side([features_NPF])


def _without_known(texts: Sequence[str], opened: OpenedHeadStart) -> np.ndarray:
    """Return the indices of the texts that labelled text has neither word for word nor nearly."""
    limits = opened.params.leakage
    finder = LeakFinder(texts, ngram_words=limits.ngram_words, least=limits.containment)
    known = {leak.test for leak in finder.leaks(_labelled_texts(opened, split) for split in _LABELLED_SPLITS)}
    return np.array([index for index in range(len(texts)) if index not in known], dtype=np.int64)


def _labelled_texts(opened: OpenedHeadStart, split: str) -> list[str]:
    whole = read_texts(_DOCUMENTS, split)
    return [whole[k] for k in np.flatnonzero(open_shard(opened.folder, split).labels != UNLABELLED)]


def _write(
    out: Path, params: Params, documents: Sequence[Sequence[str]], probs: np.ndarray, names: Sequence[str]
) -> None:
    source = params.corpus.target.source
    texts, label = ["text"], "label"
    if isinstance(source, FilesSource):
        texts, label = [column for _, column in text_columns(source)], source.label_column or "label"
    file = io.StringIO(newline="")
    rows = csv.writer(file)
    rows.writerow([*texts, label, "guess", "probability"])
    for document, row in zip(documents, probs, strict=True):
        rows.writerow([*document, "", names[int(row.argmax())], f"{row.max():.3f}"])
    if not atomic_create(out, file.getvalue().encode("utf-8")):
        raise ValueError(f"{out} exists, perhaps with labels in it; name another file")


def try_ways(
    project: Project, headstart: str | None, counts: Sequence[int], num_seeds: int, out: Path
) -> SavedStudy[ChoosingStudy]:
    """Try all strategies on the labelled training documents, beside random choice; write a study into `out`.

    Raises ValueError where the counts do not rise, or are more than there are labels, and if `out` cannot be
    made.
    """
    make_ready(out)
    opened = open_head_start(project, headstart or project.params.run.headstarts[0], "target_lm")
    shards = {split: open_shard(opened.folder, split) for split in ("train", "test")}
    rng = np.random.default_rng(0)
    chosen = {
        split: rng.permutation(np.flatnonzero(shard.labels != UNLABELLED))[:most]
        for (split, shard), most in zip(shards.items(), (_MOST_TRIED, _MOST_JUDGED), strict=True)
    }
    if (
        [*counts] != sorted({*counts})
        or len(counts) < 2
        or counts[0] < 1
        or counts[-1] > len(chosen["train"])
    ):
        raise ValueError(
            f"--counts are {', '.join(map(str, counts))}; give two or more, rising, up to the "
            f"{len(chosen['train']):,} labelled documents"
        )
    idf = inverse_document_frequencies([shards["train"]], read_info(opened.folder).vocab_size)
    features = {
        split: pooled_features(
            opened.encoder, [shards[split].document(int(k)) for k in documents], opened.settings.probe,
            opened.reading, idf, opened.device,
        )
        for split, documents in chosen.items()
    }  # fmt: skip
    labels = {split: shards[split].labels[documents].astype(np.int64) for split, documents in chosen.items()}
    others = [strategy for strategy in STRATEGIES if strategy != BASE]
    trial = try_strategies(
        others, features["train"], labels["train"], features["test"], labels["test"], counts=counts,
        seeds=range(1, num_seeds + 1), bootstrap=Bootstrap(500, 0.95, 0),
    )  # fmt: skip
    study = ChoosingStudy(
        headstart=opened.settings.name,
        stage=opened.card.stage,
        key=opened.card.key,
        num_documents=len(labels["train"]),
        num_judged=len(labels["test"]),
        tried=trial,
    )
    return write_study(out, study)
