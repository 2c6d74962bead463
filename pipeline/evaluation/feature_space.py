"""How far documents are from those that a classifier was trained on, in the space of its features.

Shapes: N documents, F features, K directions, C classes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

_LEAST_SHARE = 1e-6  # of the largest variance; along a direction of less there is only rounding


@dataclass(frozen=True)
class FeatureSpace:
    """Directions in which documents of one class differ, and the classes' means along them."""

    mean_F: np.ndarray
    directions_KF: np.ndarray  # each as long as documents vary little along it: their variance is 1
    class_means_CK: np.ndarray  # of the classes that have documents

    def distances(self, features_NF: np.ndarray) -> np.ndarray:
        """Return the distance of each document from the nearest class mean, (N,).

        Source: Lee et al. 2018 (arXiv 1807.03888), equation 2: Mahalanobis distance with one covariance for
        all classes. Departure: along the main directions alone, as there may be more features than documents.
        """
        points_NK = (features_NF - self.mean_F) @ self.directions_KF.T
        squares_NC = ((points_NK[:, None] - self.class_means_CK[None]) ** 2).sum(2)
        distances_N: np.ndarray = np.sqrt(squares_NC.min(1))
        return distances_N


def fit_space(features_NF: np.ndarray, labels_N: np.ndarray, most_directions: int = 64) -> FeatureSpace:
    """Fit the space to documents of known classes."""
    assert len(features_NF)
    exact_NF, classes = features_NF.astype(np.float64), np.unique(labels_N)
    mean_F = exact_NF.mean(0)
    means_CF = np.stack([exact_NF[labels_N == label].mean(0) for label in classes])
    inside_NF = exact_NF - means_CF[np.searchsorted(classes, labels_N)]
    _, lengths_K, directions_KF = np.linalg.svd(inside_NF, full_matrices=False)
    deviations_K = lengths_K / np.sqrt(len(exact_NF))
    kept = deviations_K**2 > _LEAST_SHARE * max(deviations_K[0] ** 2, np.finfo(np.float64).tiny)
    kept[most_directions:] = False
    scaled_KF = directions_KF[kept] / deviations_K[kept, None]
    return FeatureSpace(mean_F, scaled_KF, (means_CF - mean_F) @ scaled_KF.T)
