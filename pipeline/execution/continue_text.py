"""`headstart generate`: a head start's language model continues a text."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from pipeline.corpus.normalise import normalise
from pipeline.execution.opened_head_start import Which, open_head_start
from pipeline.inference.generate import Sampling, generate
from pipeline.project.project import Project


def continue_text(
    project: Project,
    headstart: str,
    which: Which,
    text: str,
    num_tokens: int,
    num_texts: int,
    sampling: Sampling,
    seed: int,
) -> Sequence[str]:
    """Return continuations of a text, which begins a document; each begins with that text, normalised.

    Raises ValueError for a head start that does not predict the next token, for one that reads from the end,
    and for missing inputs.
    """
    opened = open_head_start(project, headstart, which)
    model, tokenizer = opened.causal_language_model, opened.tokenizer
    (normalised,) = normalise(pl.Series([text], dtype=pl.String), opened.params.corpus.target.normalise)
    (document,) = tokenizer.encode_batch([normalised])
    prompt = document[:-1].tolist()  # without the document's end
    never = {tokenizer.pad_id, tokenizer.unk_id, tokenizer.bos_id} - {tokenizer.eos_id}
    continuations = generate(
        model,
        prompt,
        num_tokens,
        num_texts,
        sampling,
        end_id=tokenizer.eos_id,
        never=sorted(never),
        seed=seed,
    )
    return [tokenizer.decode([*prompt, *ids]) for ids in continuations]
