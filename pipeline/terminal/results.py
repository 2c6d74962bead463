"""The result of a stage in a line, for a terminal or a log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def result_line(stage: str, metrics: Mapping[str, Any], seconds: float) -> str:
    """`evaluate: ships blend, 11.3% wrong (12 s)`, from the stage's metrics."""
    said = said_of(metrics)
    took = f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.1f} minutes"
    return f"{stage}: {said} ({took})" if said else f"{stage}: done ({took})"


def said_of(metrics: Mapping[str, Any]) -> str:
    """The result in a few words; none for a stage that has but work to show."""
    if "shipped" in metrics:
        return f"ships {metrics['shipped']}, {metrics['error']['value']:.1%} of test documents wrong"
    if "law" in metrics:
        check = metrics["check"]
        told = (
            f", {check['expected']:.3f} bits per byte predicted and {check['bits_per_byte']:.3f} made"
            if check and not check["failure"]
            else ""
        )
        return f"a law of {len(metrics['runs'])} runs{told}"
    if metrics.get("measures"):
        first = metrics["measures"][0]
        values = (metrics[when][first["name"]] for when in ("before", "after"))
        said = " -> ".join(format(value, f",.{first['digits']}f") for value in values)
        return f"{first['title']} {said}"
    if "curve" in metrics and "labels" in metrics:
        counts = ", ".join(f"{count:,}" for count in metrics["labels"])
        return f"{len(metrics['curve'])} arms with {counts} labels"
    if "validation_accuracy" in metrics:
        return f"{1 - metrics['validation_accuracy']:.1%} of validation documents wrong"
    if "num_leaked" in metrics:
        return f"{metrics['num_leaked']:,} test documents are also in training text"
    if "num_features" in metrics:
        return f"{metrics['num_documents']:,} documents"
    if "vocab_size" in metrics:
        return f"{metrics['vocab_size']:,} pieces"
    if "num_trials" in metrics:
        return f"{metrics['num_trials']:,} trials" if metrics["num_trials"] else "switched off"
    if "num_pictures" in metrics:
        return f"a page and {metrics['num_pictures']} pictures"
    return _documents(metrics) if "splits" in metrics else ""


def _documents(metrics: Mapping[str, Any]) -> str:
    sizes = ", ".join(
        f"{split} {size['num_documents']:,}"
        for split, size in metrics["splits"].items()
        if "num_documents" in size
    )
    skipped = metrics.get("skipped", {}).items()
    rows = ", ".join(f"{count:,} {why.replace('_', ' ')}" for why, count in skipped if count)
    return f"{sizes} documents" + (f"; rows left out: {rows}" if rows else "")
