"""The pages for people: their links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DOCS = sorted((ROOT / "docs").iterdir())
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
