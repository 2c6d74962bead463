"""Provenance: the code, the data and the runs behind the figures."""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.report.provenance import Provenance
from pipeline.report.section import Block, Cell, Extra, Heading, Link, Section, Table, table


def section(provenance: Provenance) -> Section:
    hashes = table([{"data": name, "hash": value} for name, value in provenance.data.items()])
    rows = [{"stage": run["stage"], "run": run_cell(run), "": run["cached"]} for run in provenance.runs]
    blocks: list[Block] = [
        facts(provenance),
        *([Extra("Data, by hash", (hashes,))] if hashes.rows else []),
        *([Heading("Runs in MLflow"), table(rows)] if rows else []),
    ]
    return Section("provenance", "Provenance", tuple(blocks))


def facts(provenance: Provenance) -> Table:
    return table([{"": name, "value": value} for name, value in provenance.facts.items()])


def run_cell(run: Mapping[str, str]) -> Cell:
    """A link to the run where MLflow has a page of it, else its name: no other address is followed."""
    is_page = run["url"].startswith(("http://", "https://"))
    return Link(run["run_id"], run["url"]) if is_page else run["run_id"]
