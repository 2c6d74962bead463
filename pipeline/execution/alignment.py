"""`headstart align`: what a translator makes of some texts, and where it looked, for the page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl

from models.cove import Translator
from pipeline.artifacts.links import tokens_at
from pipeline.corpus.normalise import normalise
from pipeline.corpus.pair_batches import PairBatches
from pipeline.corpus.tokens import open_shard
from pipeline.execution.lr_find import stage_arguments
from pipeline.execution.opened_head_start import OpenedHeadStart, open_head_start
from pipeline.project.project import Project
from pipeline.report.sections.studies.alignments import Alignment, Translation
from pipeline.report.study_files import SavedStudy, make_ready, write_study

_MOST_TOKENS = 60  # of a translation
_LEAST_SHOWN, _MOST_SHOWN = 6, 16  # tokens of a source that is chosen to be shown


def align(
    project: Project, headstart: str, texts: Sequence[str], num_pairs: int, out: Path
) -> SavedStudy[Alignment]:
    """Translate texts; or some of the validation text, for the page, and write the alignments into `out`.

    Raises ValueError for an unknown head start, one that is no translator, for missing inputs, and if `out`
    cannot be made.
    """
    make_ready(out)
    opened = open_head_start(project, headstart, "general_lm")
    if not isinstance(opened.language_model, Translator):
        raise ValueError(
            f"{headstart} is of the family {opened.card.family}, which does not translate; name one of the "
            "family cove"
        )
    if not all(text.strip() for text in texts):
        raise ValueError("--text is empty; give some words to translate")
    pairs = [_of_text(opened, text) for text in texts] or _of_validation(opened, headstart, num_pairs)
    study = Alignment(headstart=headstart, stage=opened.card.stage, key=opened.card.key, pairs=pairs)
    return SavedStudy(study, None) if texts else write_study(out, study)


def _of_text(opened: OpenedHeadStart, text: str) -> Translation:
    corpus = opened.params.corpus.translation
    if corpus is None:
        raise ValueError(
            "params.yaml has no corpus.translation, whose normalisation the translator was trained with; set "
            "it as it was"
        )
    (normalised,) = normalise(pl.Series([text], dtype=pl.String), corpus.normalise)
    (source,) = opened.tokenizer.encode_batch([normalised])
    return _translated(opened, source, None)


def _of_validation(opened: OpenedHeadStart, headstart: str, num_pairs: int) -> list[Translation]:
    """Pairs of the validation text that fit on a page, evenly spaced."""
    tokens = tokens_at(Path(stage_arguments(Path("dvc.yaml"), "pretrain_lm", headstart)["tokens"]))
    shard = open_shard(tokens, "validation")
    batches = PairBatches(
        [shard], batch_pairs=1, max_tokens=_MOST_TOKENS, seed=0, end_id=opened.info.eos_id,
        pad_id=opened.info.pad_id,
    )  # fmt: skip
    pairs = [batches.pair(index) for index in range(len(batches))]
    short = [pair for pair in pairs if _LEAST_SHOWN <= len(pair.source) - 2 <= _MOST_SHOWN] or pairs
    chosen = np.unique(np.linspace(0, len(short) - 1, num_pairs).round().astype(int))
    return [_translated(opened, short[k].source, short[k].target) for k in chosen]


def _translated(opened: OpenedHeadStart, source: np.ndarray, reference: np.ndarray | None) -> Translation:
    import torch

    model, info, tokenizer = opened.language_model, opened.info, opened.tokenizer
    assert isinstance(model, Translator)
    ids_1S = torch.from_numpy(source.astype(np.int64))[None].to(opened.device)
    translation, alignment_TS = model.translate(ids_1S, info.bos_id, info.eos_id, _MOST_TOKENS)
    return Translation(
        source=tokenizer.pieces(source),
        translation=tokenizer.pieces(np.array(translation)),
        reference=None if reference is None else "".join(tokenizer.pieces(reference[1:-1])).strip(),
        weights=[[round(weight, 4) for weight in row] for row in alignment_TS.tolist()],
    )
