"""Attention: what a query makes of a sequence of keys, and where it looked.

A score tells how well a key matches a query. The softmax of the scores weighs the keys, and the weighted sum
of the keys is the context. Scores to choose from, of a query q and the key k_s at place s:

    cosine      beta cos(q, k_s), beta > 0 learned (Graves et al. 2014, arXiv 1410.5401, equations 5 and 6)
    additive    v' tanh(W q + U k_s + b) (Bahdanau et al. 2015, arXiv 1409.0473, appendix A.1.2; b of Yang)
    location    (W q)_s, of the query alone (Luong et al. 2015, arXiv 1508.04025, equation 8)
    general     q' W k_s (Luong et al. 2015, section 3.1)
    dot         q' k_s (there)
    scaled_dot  q' k_s / sqrt(F) (Vaswani et al. 2017, arXiv 1706.03762, equation 1)

Global attention looks at all keys; local attention (Luong et al. 2015, section 3.2) at a window of them.

Shapes: B rows, Q queries, S places of keys, F features of a query, K features of a key, H hidden units.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

Score = Literal["cosine", "additive", "location", "general", "dot", "scaled_dot"]
Focus = Literal["global", "monotonic", "predictive"]
_OF_ONE_WIDTH = ("cosine", "dot", "scaled_dot")  # scores that multiply a query's features with a key's


class Alignment(nn.Module):
    """The scores of keys for queries, (B, Q, S)."""

    def __init__(self, score: Score, query_dim: int, key_dim: int, hidden_dim: int, num_places: int) -> None:
        """`hidden_dim` are the units of `additive`, and `num_places` the places that `location` knows.

        Raises ValueError for a score that there is not, and for a query and keys that it cannot compare.
        """
        super().__init__()
        if score not in get_args(Score):
            raise ValueError(f"there is no score {score!r}; choose of {', '.join(get_args(Score))}")
        if score in _OF_ONE_WIDTH and query_dim != key_dim:
            raise ValueError(
                f"the score {score} compares a query of {query_dim} features with keys of {key_dim}; choose "
                "general or additive, or make them equal"
            )
        self.score = score
        self.num_places = num_places if score == "location" else None  # None: any number
        if score == "cosine":
            self.log_sharpness = nn.Parameter(torch.zeros(()))
        elif score == "additive":
            self.of_query = nn.Linear(query_dim, hidden_dim)
            self.of_key = nn.Linear(key_dim, hidden_dim, bias=False)
            self.of_both = nn.Linear(hidden_dim, 1, bias=False)
        elif score == "location":
            self.of_places = nn.Linear(query_dim, num_places, bias=False)
        elif score == "general":
            self.between = nn.Linear(key_dim, query_dim, bias=False)

    def prepared(self, keys_BSK: Tensor) -> Tensor:
        """Return what `forward` makes of keys whatever the query, (B, S, K or H), to be made once."""
        if self.score == "cosine":
            return functional.normalize(keys_BSK, dim=-1)
        if self.score == "additive":
            projected: Tensor = self.of_key(keys_BSK)
            return projected
        return keys_BSK

    def forward(self, query_BQF: Tensor, prepared_BSK: Tensor) -> Tensor:
        """Return the scores (B, Q, S). Places beyond those that `location` knows get minus infinity."""
        keys_BSK = prepared_BSK
        match self.score:
            case "cosine":
                return functional.normalize(query_BQF, dim=-1) @ keys_BSK.mT * self.log_sharpness.exp()
            case "additive":
                hidden = self.of_query(query_BQF)[:, :, None] + keys_BSK[:, None]
                scores: Tensor = self.of_both(hidden.tanh())[..., 0]
                return scores
            case "location":
                known: Tensor = self.of_places(query_BQF)[..., : keys_BSK.shape[1]]
                missing = keys_BSK.shape[1] - known.shape[-1]
                return functional.pad(known, (0, missing), value=-math.inf) if missing else known
            case "general":
                return (query_BQF @ self.between.weight) @ keys_BSK.mT
            case "dot":
                return query_BQF @ keys_BSK.mT
            case "scaled_dot":
                return query_BQF @ keys_BSK.mT / math.sqrt(keys_BSK.shape[-1])


class Attention(nn.Module):
    """The weights of keys for queries, and the context that they make.

    Local attention looks at the 2 D + 1 places around a centre: that of the query itself (`monotonic`), or
    one that the query predicts, S sigmoid(v' tanh(W q)), with a Gaussian of standard deviation D / 2 around
    it on top (`predictive`; equations 9 and 10). S is the number of real keys of the row.

    Departures: a monotonic centre beyond the last key stays at that key, as else a query of a long row would
    see nothing of a short one. The weights of `predictive` are scaled to sum one after the Gaussian. For the
    score `location` S is at most the number of places that it knows.
    """

    def __init__(
        self,
        score: Score,
        query_dim: int,
        key_dim: int,
        hidden_dim: int,
        num_places: int,
        *,
        focus: Focus = "global",
        half_window: int = 10,
    ) -> None:
        """`half_window` is D, in places. Raises ValueError as `Alignment` does."""
        super().__init__()
        self.alignment = Alignment(score, query_dim, key_dim, hidden_dim, num_places)
        self.focus, self.half_window = focus, half_window
        if focus == "predictive":
            self.of_query = nn.Linear(query_dim, hidden_dim, bias=False)
            self.of_centre = nn.Linear(hidden_dim, 1, bias=False)

    def forward(
        self,
        query_BQF: Tensor,
        keys_BSK: Tensor,
        mask_BS: Tensor,
        first_place: int = 0,
        prepared_BSK: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return the contexts (B, Q, K), and the weights (B, Q, S) of sum one, zero where the mask is False.

        Each row of `mask_BS` must hold a True, and only False after the last one. `first_place` is that of
        the first query in its own sequence, for `monotonic`. `prepared_BSK` saves preparing the keys again.
        """
        prepared_BSK = self.alignment.prepared(keys_BSK) if prepared_BSK is None else prepared_BSK
        scores_BQS = self.alignment(query_BQF, prepared_BSK)
        seen_BQS = mask_BS[:, None]
        if self.focus == "global":
            weights_BQS = _masked_softmax(scores_BQS, seen_BQS)
            return weights_BQS @ keys_BSK, weights_BQS
        centre_BQ = self._centres(query_BQF, mask_BS.sum(1), first_place)
        places_S = torch.arange(keys_BSK.shape[1], device=keys_BSK.device)
        distance_BQS = places_S - centre_BQ[..., None]
        seen_BQS = seen_BQS & (distance_BQS.abs() <= self.half_window)
        weights_BQS = _masked_softmax(scores_BQS, seen_BQS)
        if self.focus == "predictive":
            deviation = self.half_window / 2
            gaussian_BQS = torch.exp(-distance_BQS.square() / (2 * deviation**2))
            weights_BQS = functional.normalize(weights_BQS * gaussian_BQS, p=1, dim=-1)
        return weights_BQS @ keys_BSK, weights_BQS

    def _centres(self, query_BQF: Tensor, lengths_B: Tensor, first_place: int) -> Tensor:
        """Return the places that the queries look around; a window of one place or more holds a key."""
        if self.alignment.num_places is not None:
            lengths_B = lengths_B.clamp(max=self.alignment.num_places)
        if self.focus == "predictive":
            share_BQ = self.of_centre(self.of_query(query_BQF).tanh())[..., 0].sigmoid()
            return lengths_B[:, None] * share_BQ
        places_Q = torch.arange(query_BQF.shape[1], device=query_BQF.device, dtype=query_BQF.dtype)
        last_B1 = (lengths_B[:, None] - 1).to(query_BQF.dtype)
        return torch.minimum(first_place + places_Q.expand(len(lengths_B), -1), last_B1)


class AttentionPooling(nn.Module):
    """One vector for a text: its tokens' features, weighed by how well they match a query that is learned.

    Source: Yang et al. 2016 (Hierarchical Attention Networks), equations 5 to 7, which are the score
    `additive` of a constant query; here any score. The query is drawn of about length one.
    """

    def __init__(self, score: Score, width: int, hidden_dim: int, num_places: int) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.empty(width))
        nn.init.normal_(self.query, std=1 / math.sqrt(width))
        self.attention = Attention(score, width, width, hidden_dim, num_places)

    def forward(self, features_BTF: Tensor, mask_BT: Tensor) -> tuple[Tensor, Tensor]:
        """Return the pooled features (B, F) and the weight of each token (B, T)."""
        query_B1F = self.query.expand(len(features_BTF), 1, -1)
        pooled_B1F, weights_B1T = self.attention(query_B1F, features_BTF, mask_BT)
        return pooled_B1F[:, 0], weights_B1T[:, 0]


def _masked_softmax(scores_BQS: Tensor, seen_BQS: Tensor) -> Tensor:
    return scores_BQS.masked_fill(~seen_BQS, -math.inf).softmax(-1)
