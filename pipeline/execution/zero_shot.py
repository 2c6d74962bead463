"""`headstart zero-shot`: ask a head start's language model for the class of a text."""

from __future__ import annotations

import polars as pl

from pipeline.corpus.normalise import normalise
from pipeline.corpus.tokens import UNLABELLED, open_shard
from pipeline.evaluation.in_context import InContext, prompt_of, why_too_many, without_content
from pipeline.evaluation.settings import ZeroShot
from pipeline.execution.opened_head_start import Which, open_head_start
from pipeline.project.project import Project
from pipeline.settings.loader import typed


def ask(
    project: Project,
    headstart: str,
    which: Which,
    text: str,
    template: str | None,
    num_examples: int,
    seed: int,
) -> list[tuple[str, float]]:
    """Return each class with its probability, the likeliest first; `template` in place of the settings' one.

    Raises ValueError for a head start that does not predict the next token, for one that reads from the end,
    for documents without labels or of several texts, for an empty text, and for missing inputs.
    """
    if not text.strip():
        raise ValueError("the text is empty; give some words to classify")
    opened = open_head_start(project, headstart, which)
    model, info, tokenizer = opened.causal_language_model, opened.info, opened.tokenizer
    if info.label_names is None:
        raise ValueError("corpus.target has no labels, so there are no classes to choose from")
    if info.num_texts > 1:
        raise ValueError("the documents of corpus.target have several texts, and a template has one")
    changed = {} if template is None else {"template": template}
    settings = typed(ZeroShot, opened.params.zero_shot.model_dump() | changed, where="--template")
    normalised = opened.params.corpus.target.normalise
    prompt = prompt_of(settings, normalised, tokenizer, info.label_names)
    context = opened.encoder.context
    if reason := why_too_many(prompt, num_examples, settings.example_tokens, context):
        what = "lower --examples, or zero_shot.example_tokens" if num_examples else "shorten the template"
        raise ValueError(f"{headstart} cannot be asked so: {reason}; {what}")
    train = open_shard(opened.folder, "train")
    num_labels = int((train.labels != UNLABELLED).sum())
    if num_examples > num_labels:
        raise ValueError(f"--examples is {num_examples:,}, but there are {num_labels:,} labels; lower it")
    limits = settings.example_tokens, settings.text_tokens
    asked = InContext.behind_examples(model, prompt, train, num_examples, *limits, seed)
    (document,) = tokenizer.encode_batch(list(normalise(pl.Series([text], dtype=pl.String), normalised)))
    free_of_content = without_content(tokenizer, normalised) if settings.calibrate else ()
    (probs,) = asked.probabilities([document[1:-1].tolist()], free_of_content, opened.device)
    return sorted(zip(info.label_names, map(float, probs), strict=True), key=lambda pair: -pair[1])
