"""The pages for people: their links lead somewhere, and what they say of the code is there."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from models.family import Family
from pipeline.project.stages import Stage
from pipeline.settings import section

ROOT = Path(__file__).resolve().parent.parent
DOCS = sorted((ROOT / "docs").iterdir())
EXTENDING = ROOT / "docs/extending.md"
PAGES = [ROOT / "README.md", ROOT / "SECURITY.md", ROOT / "deploy/README.md", *DOCS]


def prose(page: Path) -> str:
    return re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", prose(page), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        file, _, anchor = target.partition("#")
        if "://" in target:
            continue
        linked = page.parent / file if file else page
        assert linked.exists(), target
        assert not anchor or anchor in anchors(linked), target


def test_each_page_is_in_the_list_of_pages():
    listed = set(re.findall(r"\]\(([\w-]+\.md)\)", prose(ROOT / "docs/README.md")))
    assert listed == {page.name for page in DOCS} - {"README.md"}


def test_the_examples_of_how_to_extend_run_with_this_code():
    names: dict[str, Any] = {**vars(section), "Stage": Stage}  # for those that are part of a file
    for example in re.findall(r"```python\n(.*?)```", EXTENDING.read_text(encoding="utf-8"), flags=re.DOTALL):
        source = dedent(example)
        if source.startswith('"count_words": '):
            source = f"{{{source}}}"  # an entry of a mapping
        exec(compile(source, EXTENDING.name, "exec", dont_inherit=True), names)
    study = names["Lengths"](headstart="ulmfit", stage="finetune_lm", key="abc", errors={1_000: 0.25})
    paragraph, table = names["SECTION"].blocks([study])
    assert paragraph.text.startswith("ulmfit: ")
    assert table.rows == (("1,000", "25.0%"),)


@pytest.mark.parametrize(("head", "kind"), [("field", Stage), ("field of `Family`", Family)])
def test_the_tables_of_how_to_extend_name_each_field(head, kind):
    _, _, below = EXTENDING.read_text(encoding="utf-8").partition(f"| {head} | meaning |\n")
    named = re.findall(r"^\| `(\w+)` \|", below.partition("\n\n")[0], flags=re.MULTILINE)
    assert sorted(named) == sorted(field.name for field in fields(kind))
