"""Sizes in words."""

from __future__ import annotations


def readable(num_bytes: float) -> str:
    """A size with a decimal unit, to three digits: `1.5 GB`."""
    for unit in ("bytes", "kB", "MB"):
        if abs(num_bytes) < 999.5:
            return f"{num_bytes:.3g} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:,.1f} GB"
