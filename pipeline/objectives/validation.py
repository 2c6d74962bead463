"""What the evaluations of several objectives share."""

from __future__ import annotations

import math

from models.objective import TrainingText, Workers

EVALUATION_SEED = 0  # so that evaluations compare


def rows_of_validation(text: TrainingText, batch_rows: int, row_tokens: int) -> int:
    """Return the rows of a batch of validation text: fewer than `batch_rows` if it is short."""
    num_tokens = sum(int(shard.offsets[-1]) for shard in text.validation)
    return max(1, min(batch_rows, num_tokens // row_tokens))


def loss_and_perplexity(nats: float, count: float, context: Workers) -> dict[str, float]:
    """Return metrics, the same on all workers, of this one's cross-entropy, summed over `count` targets."""
    nats, count = context.sum_numbers(nats, count)
    loss = nats / max(1.0, count)
    return {"validation/loss": loss, "validation/perplexity": math.exp(min(loss, 700.0))}
