"""Findings for people and for machines."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from io import StringIO

from pipeline.doctor.findings import Finding, count

_COLOURS = {"ok": "green", "warning": "yellow", "failure": "red"}


def as_table(findings: Sequence[Finding]) -> str:
    """A table as wide as the terminal: state, check, what was found, and below it what to do."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for finding in findings:
        words = Text(finding.found)
        if finding.to_do:
            words.append(f"\n-> {finding.to_do}", style="bold")
        table.add_row(Text(finding.state, style=_COLOURS[finding.state]), finding.check, words)
    here, text = Console(), StringIO()
    Console(file=text, width=here.width, force_terminal=here.is_terminal).print(table)
    lines = [line.rstrip() for line in text.getvalue().splitlines()]
    return "\n".join([*lines, "", _summary(findings)])


def _summary(findings: Sequence[Finding]) -> str:
    counts = {state: sum(finding.state == state for finding in findings) for state in _COLOURS}
    if not counts["failure"] and not counts["warning"]:
        return "no problem found"
    return f"{count(counts['failure'], 'failure')}, {count(counts['warning'], 'warning')}, {counts['ok']} ok"


def to_json(findings: Sequence[Finding]) -> str:
    return json.dumps([asdict(finding) for finding in findings], indent=2, ensure_ascii=False)
