"""When to trust a classifier: a temperature, a confidence for a wanted error, and sets of labels.

All of it is chosen on validation documents, by probabilities that did not see their labels, but for the one
temperature and for the choice of what ships. It holds for documents of the same kind.

Shapes: N documents, C classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.evaluation.metrics import log_loss
from pipeline.figures.classifiers import LabelSets, Threshold, Trust
from pipeline.figures.estimates import Estimate
from pipeline.training.temperature import fitted_temperature, tempered

_PRIOR_DOCUMENTS = 20  # as in a blend
_STEPS = 50  # thresholds that are tried, each of which keeps so much more of the documents


@dataclass(frozen=True)
class Judged:
    """Documents whose labels are known, as a classifier judges them."""

    confidence_N: np.ndarray  # the probability of the likeliest label
    right_N: np.ndarray  # whether that is the document's label
    at_label_N: np.ndarray  # the probability of the document's label

    @staticmethod
    def of(probs_NC: np.ndarray, labels_N: np.ndarray) -> Judged:
        return Judged(
            probs_NC.max(1), probs_NC.argmax(1) == labels_N, probs_NC[np.arange(len(labels_N)), labels_N]
        )


def useful_temperature(probs_NC: np.ndarray, labels_N: np.ndarray, seed: int, num_folds: int = 10) -> float:
    """Return the temperature with the least log loss; 1 where it does not help documents it did not see.

    That is judged in folds: each is read at the temperature of the others. Few documents say little, so a
    temperature is drawn to 1 as much as `_PRIOR_DOCUMENTS` would.
    """
    num_folds = min(num_folds, len(labels_N))
    if num_folds < 2:
        return 1.0
    fold_N = np.random.default_rng(seed).permutation(len(labels_N)) % num_folds
    unseen_NC = np.empty(probs_NC.shape)
    for fold in range(num_folds):
        inside = fold_N == fold
        unseen_NC[inside] = tempered(probs_NC[inside], _cautious(probs_NC[~inside], labels_N[~inside]))
    if log_loss(labels_N, unseen_NC) >= log_loss(labels_N, probs_NC):
        return 1.0
    return _cautious(probs_NC, labels_N)


def _cautious(probs_NC: np.ndarray, labels_N: np.ndarray) -> float:
    trust = len(labels_N) / (len(labels_N) + _PRIOR_DOCUMENTS)
    return float(fitted_temperature(probs_NC, labels_N) ** trust)


# ------------------------------------------------------------------------------ selective prediction


def risk_coverage(judged: Judged) -> tuple[np.ndarray, np.ndarray]:
    """Return coverage and risk: the share of documents that are kept, and the share of these that is wrong.

    The most confident are kept first; documents of one confidence are kept together or not at all.
    Source: El-Yaniv & Wiener 2010, section 2.
    """
    order = np.argsort(-judged.confidence_N, kind="stable")
    confidence_N, kept_N = judged.confidence_N[order], np.arange(1, len(order) + 1)
    risk_N = np.cumsum(~judged.right_N[order]) / kept_N
    last_N = np.append(confidence_N[1:] != confidence_N[:-1], True)
    return (kept_N / len(order))[last_N], risk_N[last_N]


def least_confidence(judged: Judged, most_wrong: float, certainty: float) -> float | None:
    """Return the least confidence above which at most a share of `most_wrong` is wrong; None: none is known.

    With a probability of at least `certainty` over the draw of these documents, no more than that share of
    all documents with this confidence or more is wrong.

    Source: Angelopoulos et al. 2021, "Learn then Test" (arXiv 2110.01052), fixed sequence testing, with the
    exact binomial tail as p-value: thresholds are tried from few documents to many, and the first that fails
    ends it, so that trying many costs no certainty. The first keeps a quarter of the documents, but as many
    as would settle it without a mistake among them, and no more than twice as many.
    """
    from scipy.stats import binom

    size = len(judged.confidence_N)
    if not 0 < most_wrong < 1 or not 0 < certainty < 1:
        raise ValueError(
            f"a share of {most_wrong:g} with certainty {certainty:g}: both must be between 0 and 1"
        )
    if not size:
        return None
    wrong_N = np.cumsum(~judged.right_N[np.argsort(-judged.confidence_N, kind="stable")])
    confidence_N = np.sort(judged.confidence_N)[::-1]
    without_mistake = np.log(1 - certainty) / np.log(1 - most_wrong)
    first = min(size, int(np.ceil(np.clip(size / 4, without_mistake, 2 * without_mistake))))
    threshold = None
    for kept in np.unique(np.linspace(first, size, max(2, _STEPS)).round().astype(int)):
        least = confidence_N[kept - 1]
        kept = int(np.searchsorted(-confidence_N, -least, side="right"))  # with all of the same confidence
        if binom.cdf(wrong_N[kept - 1], kept, most_wrong) > 1 - certainty:
            break
        threshold = float(least)
    return threshold


# --------------------------------------------------------------------------------- sets of labels


def least_probability(at_label_N: np.ndarray, coverage: float) -> float:
    """Return the probability that a label must have to be in a document's set.

    A new document's label is in its set with a probability of at least `coverage`, over the draw of them all.
    With too few documents to know such a probability it is 0: all labels are in the set.

    Source: split conformal prediction (Vovk et al. 2005) with one minus the label's probability as score:
    the sets of least mean size (Sadinle, Lei & Wasserman 2019, "Least Ambiguous Set-Valued Classifiers").
    """
    if not 0 < coverage < 1:
        raise ValueError(f"a coverage of {coverage:g}: it must be between 0 and 1")
    rank = int(np.ceil((len(at_label_N) + 1) * coverage))
    return 0.0 if rank > len(at_label_N) else float(np.sort(at_label_N)[::-1][rank - 1])


def label_sets(probs_NC: np.ndarray, least: float) -> np.ndarray:
    """Return which labels are in each document's set, (N, C) bool; the likeliest one always is.

    Departure from Sadinle et al.: they leave a set empty where no label is likely enough.
    """
    inside_NC = probs_NC >= least
    inside_NC[np.arange(len(probs_NC)), probs_NC.argmax(1)] = True
    return inside_NC


# ----------------------------------------------------------------------------------------- figures


def figures(
    validation: Judged,
    probs_NC: np.ndarray,
    labels_N: np.ndarray,
    label_names: Sequence[str],
    *,
    most_wrong: Sequence[float],
    coverages: Sequence[float],
    certainty: float,
) -> Trust:
    """Choose on validation documents, and check on test documents, whose probabilities are given."""
    test = Judged.of(probs_NC, labels_N)
    perfect = Judged(test.right_N.astype(float), test.right_N, test.at_label_N)
    return Trust(
        certainty=certainty,
        num_documents=len(labels_N),
        area_under_risk_coverage=_area(*risk_coverage(test)),
        least_area_possible=_area(*risk_coverage(perfect)),
        selective=[_threshold(share, validation, test, certainty) for share in most_wrong],
        label_sets=[
            _label_sets(coverage, validation, probs_NC, labels_N, label_names, certainty)
            for coverage in coverages
        ],
    )


def _area(coverage: np.ndarray, risk: np.ndarray) -> float:
    """The mean error over all numbers of documents that are kept."""
    return float((np.diff(coverage, prepend=0.0) * risk).sum())


def _threshold(most_wrong: float, validation: Judged, test: Judged, certainty: float) -> Threshold:
    least = least_confidence(validation, most_wrong, certainty)
    if least is None:
        return Threshold(most_wrong=most_wrong, least_confidence=None)
    kept = test.confidence_N >= least
    return Threshold(
        most_wrong=most_wrong,
        least_confidence=least,
        validation_coverage=float((validation.confidence_N >= least).mean()),
        coverage=float(kept.mean()),
        error=_share(int((~test.right_N[kept]).sum()), int(kept.sum()), certainty) if kept.any() else None,
    )


def _label_sets(
    wanted: float,
    validation: Judged,
    probs_NC: np.ndarray,
    labels_N: np.ndarray,
    label_names: Sequence[str],
    certainty: float,
) -> LabelSets:
    least = least_probability(validation.at_label_N, wanted)
    inside_NC = label_sets(probs_NC, least)
    covered_N = inside_NC[np.arange(len(labels_N)), labels_N]
    sizes_N = inside_NC.sum(1)
    return LabelSets(
        wanted=wanted,
        least_probability=least,
        coverage=_share(int(covered_N.sum()), len(covered_N), certainty),
        mean_size=float(sizes_N.mean()),
        share_of_one_label=float((sizes_N == 1).mean()),
        by_class={
            label_names[label]: float(covered_N[labels_N == label].mean()) for label in np.unique(labels_N)
        },
    )


def _share(count: int, size: int, certainty: float) -> Estimate:
    """A share with its exact interval (Clopper & Pearson 1934)."""
    from scipy.stats import binomtest

    interval = binomtest(count, size).proportion_ci(certainty)
    return Estimate(value=count / size, low=float(interval.low), high=float(interval.high))
