"""Stage: metrics files -> a Markdown summary, for the terminal and pull requests."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.corpus.vocabulary import compare
from pipeline.files import atomic_write_text
from pipeline.params import Params

SECTIONS = ("run.directions",)


def run(params: Params, *, figures: Path, out: Path) -> dict[str, Any]:
    """Write the summary of the metrics files in the folder `figures` to the file `out`.

    Raises ValueError where the metrics of a stage are missing.
    """
    target = _read(figures, "prepare-target")
    parts = [
        _classifier(_read(figures, "evaluate"), int(target["num_classes"])),
        _language_models(figures, params.run.directions),
        _vocabulary(_read(figures, "encode-general"), _read(figures, "encode-target")),
        _corpora(_read(figures, "prepare-general"), target),
    ]
    atomic_write_text(out, "# Summary\n\n" + "\n".join(parts))
    return {"num_sections": len(parts)}


def _read(figures: Path, name: str) -> dict[str, Any]:
    file = figures / f"{name}.json"
    try:
        content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ValueError(f"{file}: no such file; run `dvc repro` first") from error
    except ValueError as error:
        raise ValueError(f"{file} is not valid JSON: {error}; rerun the stage that wrote it") from error
    return content


def _classifier(metrics: dict[str, Any], num_classes: int) -> str:
    rows = [_figures("classifier", metrics)]
    rows += [_figures(name, each) for name, each in metrics.get("by_direction", {}).items()]
    baselines = metrics["baselines"]
    if "tfidf" in baselines:
        rows.append(_figures("TF-IDF, logistic regression", baselines["tfidf"]))
    rows.append(["majority class", f"{baselines['majority_class']['error']:.1%}", "", "", ""])
    return (
        f"## Classifier, on {metrics['num_documents']:,} test documents of {num_classes} classes\n\n"
        + _table(["", "error (interval)", "macro F1", "log loss, nats", "calibration error"], rows)
    )


def _figures(name: str, metrics: dict[str, Any]) -> list[str]:
    return [
        name,
        f"{metrics['error']:.1%} ({metrics['error_low']:.1%} to {metrics['error_high']:.1%})",
        f"{metrics['macro_f1']:.3f}",
        f"{metrics['log_loss']:.3f}",
        f"{metrics['calibration_error']:.3f}",
    ]


def _language_models(figures: Path, directions: Sequence[str]) -> str:
    rows = []
    for direction in directions:
        general = _read(figures, f"pretrain_lm-{direction}")
        target = _read(figures, f"finetune_lm-{direction}")
        rows += [
            _language_model(f"{direction}: general text, pretrained", general["after"]),
            _language_model(f"{direction}: target text, before fine-tuning", target["before"]),
            _language_model(f"{direction}: target text, fine-tuned", target["after"]),
        ]
    header = ["", "bits per byte", "token perplexity", "word perplexity"]
    return "## Language models, on validation text\n\n" + _table(header, rows)


def _language_model(name: str, metrics: dict[str, float]) -> list[str]:
    return [
        name,
        f"{metrics['bits_per_byte']:.3f}",
        f"{metrics['perplexity']:.1f}",
        f"{metrics['word_perplexity']:,.0f}",
    ]


def _vocabulary(general: dict[str, Any], target: dict[str, Any]) -> str:
    rows = [
        [name.replace("_", " "), f"{pair['general']:.3f}", f"{pair['target']:.3f}"]
        for name, pair in compare(general["vocabulary"], target["vocabulary"]).items()
    ]
    return "## Vocabulary, trained on the general text\n\n" + _table(["", "general", "target"], rows)


def _corpora(general: dict[str, Any], target: dict[str, Any]) -> str:
    def counts(what: str) -> str:
        found = [
            f"{corpus}: {count:,} rows {reason.replace('_', ' ')}"
            for corpus, metrics in (("general", general), ("target", target))
            for reason, count in metrics[what].items()
            if count
        ]
        return "; ".join(found) or "nothing"

    rows = [
        [
            f"{corpus}, {split}",
            f"{size['num_documents']:,}",
            f"{size['num_words']:,}",
            f"{size['num_bytes'] / 1e6:,.1f}",
        ]
        for corpus, metrics in (("general", general), ("target", target))
        for split, size in metrics["splits"].items()
    ]
    lines = ["", f"Left out: {counts('skipped')}. Repaired: {counts('repaired')}.", ""]
    return "## Corpora\n\n" + _table(["", "documents", "words", "MB"], rows) + "\n".join(lines)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    ruler = ["---"] + ["---:"] * (len(header) - 1)
    return "".join(f"| {' | '.join(row)} |\n" for row in (header, ruler, *rows))
