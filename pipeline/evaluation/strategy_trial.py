"""A trial of strategies that choose what to label, on documents whose labels are known.

Shapes: N documents to choose from, T test documents, P poolings, F features.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pipeline.evaluation.acquisition import Strategy
from pipeline.evaluation.label_curve import Bootstrap, Errors, comparisons, curve, labels_needed
from pipeline.evaluation.probe import fit_probe, side_by_side
from pipeline.evaluation.rounds import one_round
from pipeline.figures.studies import Choosing

BASE: Strategy = "random"


def try_strategies(
    strategies: Sequence[Strategy],
    features_NPF: np.ndarray,
    labels_N: np.ndarray,
    test_TPF: np.ndarray,
    test_labels_T: np.ndarray,
    *,
    counts: Sequence[int],
    seeds: Sequence[int],
    bootstrap: Bootstrap,
) -> Choosing:
    """Label in rounds as each strategy says, and return error by number of labels, beside random choice.

    The documents of the first count are drawn at random, the same for all strategies: before there are
    labels nothing can be said of a document. Each further count is a round: a probe of the labels so far
    judges the others. `above` holds each error minus that of random choice, `needed` how many labels random
    choice needs for the error that a strategy has at a count.
    """
    num_classes, features, columns_NF = int(labels_N.max()) + 1, [features_NPF], side_by_side([features_NPF])
    wrong: dict[str, dict[int, dict[int, np.ndarray]]] = {name: {} for name in (BASE, *strategies)}
    for seed in seeds:
        first = np.random.default_rng(seed).permutation(len(labels_N))[: counts[0]]
        for name in wrong:
            rng, chosen = np.random.default_rng((seed, 1)), first
            for count in counts:
                if len(chosen) < count:
                    chosen = one_round(name, count, chosen, features, columns_NF, labels_N, num_classes, rng)  # type: ignore[arg-type]
                probe = fit_probe([features_NPF[chosen]], labels_N[chosen], num_classes, seed)
                predicted_T = probe.probabilities([test_TPF]).argmax(1)
                wrong[name].setdefault(count, {})[seed] = predicted_T != test_labels_T
    errors = Errors(wrong, bootstrap)
    return Choosing(
        counts=[*counts],
        num_seeds=len(seeds),
        curve=curve(errors),
        above=comparisons(errors, BASE),
        needed={name: labels_needed(errors, BASE, name) for name in strategies},
    )
