"""Continues a text by a causal language model, token by token.

Sources: temperature and the most likely `top_k` words, Fan et al. 2018 (arXiv 1805.04833), section 5; nucleus
sampling, `top_p`, Holtzman et al. 2020 (arXiv 1904.09751), section 3.1.

Shapes: B texts, T tokens of the prompt, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from models.family import State, products_in
from models.heads import LanguageModel


@dataclass(frozen=True)
class Sampling:
    """How the next token is drawn."""

    temperature: float = 1.0  # logits are divided by it; 0: the most likely token
    top_k: int = 0  # only the most likely ones; 0: all
    top_p: float = 1.0  # only the most likely ones that together have this probability

    def __post_init__(self) -> None:
        """Raises ValueError for what cannot be."""
        if not 0 <= self.temperature < math.inf:
            raise ValueError(f"--temperature is {self.temperature}; it must be a number of at least 0")
        if self.top_k < 0:
            raise ValueError(f"--top-k is {self.top_k}; it must be at least 1, or 0 for all")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"--top-p is {self.top_p}; it must be above 0 and at most 1")

    def probabilities(self, logits_BV: Tensor) -> Tensor:
        """Return the probability of each token to be drawn, (B, V).

        `top_k` is applied before `top_p`, and the latter to what it leaves.
        """
        if self.temperature < torch.finfo(torch.float32).tiny:
            return torch.zeros_like(logits_BV).scatter_(-1, logits_BV.argmax(-1, keepdim=True), 1.0)
        # Below zero before they are divided: a small temperature would make infinities of them.
        below_BV = logits_BV - logits_BV.amax(-1, keepdim=True)
        descending_BV, ids_BV = (below_BV / self.temperature).sort(dim=-1, descending=True, stable=True)
        if self.top_k:
            descending_BV[:, self.top_k :] = -torch.inf
        probabilities_BV = descending_BV.softmax(-1)
        before_BV = probabilities_BV.cumsum(-1) - probabilities_BV
        kept_BV = probabilities_BV * (before_BV < self.top_p)
        kept_BV /= kept_BV.sum(-1, keepdim=True)
        return torch.zeros_like(kept_BV).scatter_(-1, ids_BV, kept_BV)


@torch.no_grad()
def generate(
    model: LanguageModel,
    prompt_T: Sequence[int],
    num_tokens: int,
    num_texts: int,
    sampling: Sampling,
    *,
    end_id: int,
    never: Sequence[int],
    seed: int,
) -> list[list[int]]:
    """Return continuations of a prompt, without it: each of `num_tokens` tokens, or until the document ends.

    Args:
        prompt_T: token ids, the document start first.
        end_id: the token at which a document ends; it is not returned.
        never: tokens that no text has, such as padding.
    """
    encoder = model.encoder.eval()
    device = encoder.embedding.weight.device
    generator = torch.Generator().manual_seed(seed)  # on the CPU, so that a seed means the same everywhere
    state: State = ()
    drawn: list[Tensor] = []
    ended_B = torch.zeros(num_texts, dtype=torch.bool)
    ids_BT = torch.tensor([list(prompt_T)] * num_texts)
    with products_in(torch.float32, encoder):
        for _ in range(num_tokens):
            for chunk_BT in ids_BT.to(device).split(encoder.context or len(prompt_T), dim=1):
                encoded = encoder(chunk_BT, state=state)
                state = encoded.state
            logits_BV = model.logits(encoded.features[:, -1]).cpu()
            logits_BV[:, list(never)] = -torch.inf
            ids_BT = torch.multinomial(sampling.probabilities(logits_BV), 1, generator=generator)
            drawn.append(ids_BT)
            ended_B |= ids_BT[:, 0] == end_id
            if ended_B.all():
                break
    return [_until(end_id, row) for row in torch.cat(drawn, 1).tolist()]


def _until(end_id: int, ids: list[int]) -> list[int]:
    return ids[: ids.index(end_id)] if end_id in ids else ids
