"""Stage: documents -> the test documents among them that were trained on, word for word or nearly so."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from pipeline.corpus.document_files import read_documents, read_documents_info, read_texts
from pipeline.corpus.leakage import LEAKS_FILE, Leak, LeakFinder
from pipeline.corpus.text_parts import readable
from pipeline.figures.corpora import LeakCounts, LeakExample, LeakFigures
from pipeline.files.atomic import atomic_folder
from pipeline.project.project import Project

_EXCERPT_CHARACTERS = 300


def run(project: Project, *, documents: Path, out: Path) -> LeakFigures:
    """Compare the target's test documents with every text that any stage trains on or selects by.

    `documents` has a folder for each corpus. Raises ValueError if there are leaks and `leakage.action` is
    stop.
    """
    settings, target = project.params.leakage, documents / "target"
    folders = {
        corpus: documents / corpus for corpus in ("target", *project.params.corpus.names)
    }  # the target first
    test = read_texts(target, "test") if "test" in read_documents_info(target).splits else []
    finder = LeakFinder(test, ngram_words=settings.ngram_words, least=settings.containment)
    leaks_in = {
        (corpus, split): finder.leaks(rows.texts for rows in read_documents(folder, split))
        for corpus, folder in folders.items()
        for split in read_documents_info(folder).splits
        if (corpus, split) != ("target", "test")
    }
    leaked = {leak.test for leaks in leaks_in.values() for leak in leaks}
    exact = {leak.test for leaks in leaks_in.values() for leak in leaks if leak.exact}
    sources = {f"{corpus} {split}": _counts(leaks) for (corpus, split), leaks in leaks_in.items()}
    figures = LeakFigures(
        num_test_documents=len(test),
        num_leaked=len(leaked),
        num_exact=len(exact),
        num_near=len(leaked - exact),
        share=len(leaked) / len(test) if test else 0.0,
        sources=sources,
        examples=[
            example
            for (corpus, split), leaks in leaks_in.items()
            for example in _examples(
                sorted(leaks, key=lambda leak: -leak.containment)[: settings.examples],
                test,
                folders[corpus],
                split,
                f"{corpus} {split}",
            )
        ],
    )
    if leaked and settings.action == "stop":
        where = ", ".join(f"{name} {counts.num_leaked:,}" for name, counts in sources.items())
        raise ValueError(
            f"{len(leaked):,} of {len(test):,} test documents were trained on, {len(exact):,} word for word "
            f"({where}); remove them from the source, or set leakage.action to drop or label"
        )
    with atomic_folder(out) as folder, (folder / LEAKS_FILE).open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["test", "corpus", "split", "document", "containment", "exact"])
        for (corpus, split), leaks in leaks_in.items():
            for leak in leaks:
                writer.writerow(
                    [leak.test, corpus, split, leak.other, round(leak.containment, 3), leak.exact]
                )
    return figures


def _counts(leaks: Sequence[Leak]) -> LeakCounts:
    num_exact = sum(leak.exact for leak in leaks)
    return LeakCounts(num_leaked=len(leaks), num_exact=num_exact, num_near=len(leaks) - num_exact)


def _examples(
    leaks: Sequence[Leak], test: Sequence[str], folder: Path, split: str, source: str
) -> list[LeakExample]:
    texts = {leak.other: "" for leak in leaks}
    rows = (text for rows in read_documents(folder, split) for text in rows.texts)
    for index, text in enumerate(islice(rows, max(texts, default=-1) + 1)):
        if index in texts:
            texts[index] = text
    return [
        LeakExample(
            source=source,
            containment=round(leak.containment, 3),
            test_text=readable(test[leak.test])[:_EXCERPT_CHARACTERS],
            training_text=readable(texts[leak.other])[:_EXCERPT_CHARACTERS],
        )
        for leak in leaks
    ]
