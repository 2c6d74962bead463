"""Rows of a source -> normalised documents, one parquet file for each split.

The route:

1. `LabelCheck` counts the labels alone, and refuses those that no classifier could be trained on.
2. `_write_splits` streams each split of the source through normalisation into `<split>.parquet`. Rows
   without text are counted and left out. Labelled corpora keep their unlabelled rows apart.
3. `divide`: if the source gives no validation or test split, or `max_documents` asks for fewer rows,
   training rows go to an uncompressed temporary file and stream from there into their splits.

Rows keep the source's order.
"""

from __future__ import annotations

import json
import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.corpus.document_files import INFO_FILE, DocumentsInfo, SplitSize, hash_keys, split_file
from pipeline.corpus.label_check import LabelCheck
from pipeline.corpus.normalise import normalise, num_words
from pipeline.corpus.scanned_files import is_remote
from pipeline.corpus.settings import Corpus, Normalise
from pipeline.corpus.source import SPLITS, Source
from pipeline.corpus.split_files import UndividedRows, divide, split_writers
from pipeline.corpus.text_parts import SEPARATOR
from pipeline.files.atomic import atomic_write_text
from pipeline.files.manifest import write_manifest

if TYPE_CHECKING:
    import polars as pl


def write_documents(source: Source, settings: Corpus, *, seed: int, key: str, folder: Path) -> DocumentsInfo:
    """Write the splits and `documents.json` of a corpus, and their manifest, into an empty folder.

    `key` names the settings in messages, such as `corpus.target`.

    Raises:
        ValueError: there are no documents, or no classifier could be trained and tested on the labels.
    """
    wanted = _wanted_fractions(source, settings)
    counts = {split: source.label_counts(split) for split in source.splits}
    labels = LabelCheck(source.label_names, key)
    labels.check(counts, wanted)
    divides = bool(wanted) or settings.max_documents is not None
    sizes, counts, undivided = _write_splits(source, settings, folder, seed=seed, divides=divides)
    if undivided is None and "train" not in sizes and "unlabelled" not in sizes:
        left_out = ", ".join(f"{count:,} {reason}" for reason, count in sorted(source.skipped.items()))
        raise ValueError(f"`{key}.source`: no documents to train on; left out: {left_out or 'none'}")
    if undivided is not None:
        sizes |= divide(undivided, folder, wanted, settings.max_documents, labels)
    else:
        labels.check(counts, wanted)  # again, now without rows that have no text
    _check_splits(sizes, settings, labels)
    info = DocumentsInfo(
        label_names=source.label_names,
        splits={split: sizes[split] for split in SPLITS if split in sizes},
        skipped=dict(sorted(source.skipped.items())),
        repaired=dict(sorted(source.repaired.items())),
        source=_recorded(settings),
        num_texts=source.num_texts,
    )
    atomic_write_text(folder / INFO_FILE, json.dumps(asdict(info), indent=2, ensure_ascii=False) + "\n")
    write_manifest(folder, [INFO_FILE, *(split_file(split) for split in info.splits)])
    return info


def _recorded(settings: Corpus) -> dict[str, Any]:
    """Return the source's settings; addresses lose user, password and query, which may be secrets."""
    source = settings.source.model_dump()
    for split in SPLITS:
        entries = source.get(split, [])
        source |= {split: [_plain_address(entry) for entry in entries]} if entries else {}
    return source


def _plain_address(entry: str) -> str:
    return re.sub(r"(?<=://)[^/]*@", "", entry.partition("?")[0]) if is_remote(entry) else entry


def _check_splits(sizes: Mapping[str, SplitSize], settings: Corpus, labels: LabelCheck) -> None:
    """Refuse a corpus without a split that a later stage, hours from now, needs."""
    needed = ("validation",) if labels.names is None else ("validation", "test")
    for split in needed:
        if split in sizes:
            continue
        key = labels.key
        if getattr(settings.source, split, None):
            reason = f"no row of `{key}.source.{split}` has a text" + (
                "" if labels.names is None else " and a label"
            )
        else:
            reason = f"`{key}.split.{split}` is 0 and `{key}.source.{split}` names no file"
        what = "models are judged on it" if split == "validation" else "the classifier is evaluated on it"
        raise ValueError(f"`{key}`: there would be no {split} split, but {what}: {reason}")


def _wanted_fractions(source: Source, settings: Corpus) -> dict[str, float]:
    """Return the fractions of the splits that the source lacks, to be split off train."""
    fractions = {"validation": settings.split.validation, "test": settings.split.test}
    return {split: part for split, part in fractions.items() if part > 0 and split not in source.splits}


def _write_splits(
    source: Source, settings: Corpus, folder: Path, *, seed: int, divides: bool
) -> tuple[dict[str, SplitSize], dict[str, Counter[int]], UndividedRows | None]:
    """Write each split of the source; return their sizes and label counts.

    With `divides`, training rows are not written but returned, if there are any.
    """
    undivided = None
    with split_writers(folder) as writers, ExitStack() as stack:
        for split, rows in _usable_rows(source, settings, seed):
            if split == "train" and divides:
                if undivided is None:
                    undivided = UndividedRows(folder / "undivided.arrow")
                    stack.callback(undivided.close)
                undivided.append(rows)
            else:
                writers[split].append(rows)
    sizes = {split: writer.size() for split, writer in writers.items()}
    return sizes, {split: writer.label_counts for split, writer in writers.items()}, undivided


def _usable_rows(source: Source, settings: Corpus, seed: int) -> Iterator[tuple[str, pl.DataFrame]]:
    """Yield normalised batches, each with the split that it goes to; count unusable rows."""
    for split in source.splits:
        for rows, left_out in _prepared(source.rows(split), settings.normalise, seed):
            source.skipped.update(left_out)
            for goes_to, part in _placed(rows, split, labelled_corpus=source.label_names is not None):
                if part.is_empty():
                    continue
                if goes_to is None:
                    source.skipped["no_label"] += len(part)
                else:
                    yield goes_to, part


def _documents(raw: pl.DataFrame, settings: Normalise, seed: int) -> tuple[pl.DataFrame, Counter[str]]:
    """Return a source's rows normalised, measured and with one text each, and how many lacked a text."""
    import polars as pl

    first, *further = [name for name in raw.columns if name != "label"]
    texts = [normalise(raw[first], settings)]
    texts += [normalise(_without_separators(raw[name]), settings) for name in further]
    if further:
        texts[0] = _without_separators(texts[0])
    words = [num_words(text, settings) for text in texts]
    sizes = [text.str.len_bytes().cast(pl.Int64) for text in texts]
    measured = (
        pl.DataFrame(texts)
        .with_columns(raw["label"])
        .with_columns(
            pl.sum_horizontal(words).alias("num_words"),
            pl.sum_horizontal(sizes).alias("num_bytes"),
            pl.Series("has_first", words[0] > 0),
            pl.min_horizontal(words).gt(0).alias("has_all"),
        )
    )
    left_out = Counter(
        {
            "empty_text": int((~measured["has_first"]).sum()),
            "empty_further_text": int((measured["has_first"] & ~measured["has_all"]).sum()),
        }
    )
    rows = measured.filter("has_all").select(
        pl.concat_str([first, *further], separator=SEPARATOR).alias("text"), "label", "num_words", "num_bytes"
    )
    keys = pl.Series("key", hash_keys(rows["text"], seed), dtype=pl.UInt64)
    return rows.with_columns(keys), +left_out  # those that there are


def _without_separators(texts: pl.Series) -> pl.Series:
    return texts.str.replace_all(SEPARATOR, " ", literal=True)


def _prepared(
    batches: Iterable[pl.DataFrame], settings: Normalise, seed: int
) -> Iterator[tuple[pl.DataFrame, Counter[str]]]:
    """Yield `_documents` of each batch in order, while two threads work on the next batches."""
    with ThreadPoolExecutor(2) as pool:
        pending: deque[Future[tuple[pl.DataFrame, Counter[str]]]] = deque()
        for batch in batches:
            pending.append(pool.submit(_documents, batch, settings, seed))
            if len(pending) > 2:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()


def _placed(
    rows: pl.DataFrame, split: str, *, labelled_corpus: bool
) -> Iterator[tuple[str | None, pl.DataFrame]]:
    """Yield the rows of a source's split by target split; None marks rows that cannot be scored."""
    import polars as pl

    if split == "unlabelled":
        yield split, rows.with_columns(pl.lit(None, pl.Int32).alias("label"))
    elif not labelled_corpus:
        yield split, rows
    else:
        yield split, rows.filter(pl.col("label").is_not_null())
        yield "unlabelled" if split == "train" else None, rows.filter(pl.col("label").is_null())
