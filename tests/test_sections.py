"""Sections in each medium: what every renderer shows of each kind of block."""

from __future__ import annotations

import importlib
import pkgutil
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.execution import alignment, anatomy, doubt, export_onnx, layers, suggest
from pipeline.project.project import Project
from pipeline.report import contents, page, sections
from pipeline.report.markdown import summary
from pipeline.report.section import (
    Block,
    Bullets,
    Chart,
    Code,
    Excerpt,
    Extra,
    Heading,
    Link,
    Note,
    Opening,
    Paragraph,
    Report,
    Section,
    Table,
    table,
)
from pipeline.report.sections import studies
from pipeline.report.sections.studies.exported_forms import Forms
from pipeline.report.sections.studies.layers import Layers
from pipeline.report.study_files import SavedStudy, read_studies, write_study
from pipeline.report.terminal import show

ROOT = Path(__file__).resolve().parent.parent
EVIL = "<b>\x1b[2J|"
NUMBERS = Table(("arm", "error"), (("one", "10% (9% to 11%)"), (EVIL, Link("a run", "https://host/1"))))


class Drawing:
    def to_dict(self) -> dict[str, Any]:
        return {"data": EVIL}


def drawn(**more: Any) -> Chart:
    return Chart("lines", Drawing, "what is drawn", **more)


def report_of(*blocks: Block, in_summary: bool = True) -> Report:
    opening = Opening("Yes.", ("With 1 %.",), table([]), ("About: x.",), ("A figure.",))
    return Report(opening, (Section("here", "A heading", blocks, in_summary=in_summary),))


def html_of(*blocks: Block) -> str:
    return page.page(report_of(*blocks)).partition('<section id="here">')[2].partition("</section>")[0]


def markdown_of(*blocks: Block) -> str:
    return summary(report_of(*blocks)).partition("## A heading\n\n")[2]


@pytest.fixture(autouse=True)
def no_bundle(monkeypatch):
    """Bundling the charts' JavaScript takes seconds."""
    monkeypatch.setattr("vl_convert.javascript_bundle", lambda _: "")


def test_a_text_is_escaped_and_its_commands_are_code(capsys):
    text = Paragraph((f"{EVIL} ", Code("dvc repro"), "."))
    assert "<p>&lt;b&gt;\x1b[2J| <code>dvc repro</code>.</p>" in html_of(text)
    assert markdown_of(text) == "\\<b> \\[2J\\| `dvc repro`.\n"
    show([text])
    assert capsys.readouterr().out == "<b>?[2J| `dvc repro`.\n"


def test_every_medium_shows_headings_notes_and_lists(capsys):
    blocks = (Heading("Then"), Note("so it is"), Bullets(("one", ("two ", Code("x")))))
    html = html_of(*blocks)
    assert "<h3>Then</h3>" in html
    assert '<p class="note">so it is</p>' in html
    assert "<ul><li>one</li><li>two <code>x</code></li></ul>" in html
    assert markdown_of(*blocks) == "### Then\n\nso it is\n\n- one\n- two `x`\n"
    show(blocks)
    assert capsys.readouterr().out == "Then\nso it is\n- one\n- two `x`\n"


def test_every_medium_shows_the_cells_of_a_table(capsys):
    html = html_of(NUMBERS)
    assert '<th scope="col">arm</th><th scope="col">error</th>' in html
    assert '<td>&lt;b&gt;\x1b[2J|</td><td><a href="https://host/1">a run</a></td>' in html
    rows = ["| arm | error |", "| --- | ---: |", "| one | 10% (9% to 11%) |", "| \\<b> \\[2J\\| | a run |"]
    assert markdown_of(NUMBERS).splitlines() == rows
    show([NUMBERS], title="numbers of [bold]")
    printed = capsys.readouterr().out
    assert all(cell in printed for cell in ("numbers of [bold]", "10% (9% to 11%)", "<b>?[2J|", "a run"))
    assert "\x1b[2J" not in printed


def test_a_table_without_rows_is_shown_nowhere(capsys):
    assert "<table" not in html_of(table([]))
    assert markdown_of(Heading("Then"), table([])) == "### Then\n"
    show([table([])])
    assert capsys.readouterr().out == ""


def test_prose_strong_rows_and_matrices_are_marked_on_the_page():
    rows = [{"arm": "one", "text": "words"}, {"arm": "two", "text": "more"}]
    html = html_of(table(rows, prose=["text"], strong=[1]))
    assert '<td class="text">words</td></tr><tr class="strong">' in html
    matrix = html_of(table([{"": "one", "100 labels": "5 (4 to 6)", "one": "-"}], is_matrix=True))
    assert '<th scope="row">one</th>' in matrix
    assert '<td data-column="100 labels"><span>5 (4\N{NO-BREAK SPACE}to\N{NO-BREAK SPACE}6)</span>' in matrix
    assert '<td class="nothing" data-column="one"><span>-</span></td>' in matrix


def test_a_chart_is_drawn_on_the_page_and_replaced_or_looked_up_elsewhere(capsys):
    chart = drawn(numbers=NUMBERS, instead=(Paragraph("in place of it"),))
    html = html_of(chart)
    assert 'id="chart-lines" role="img" aria-label="what is drawn"' in html
    assert "<figcaption>what is drawn</figcaption><details><summary>The numbers</summary>" in html
    assert r'data-chart="chart-lines">{"data": "\u003cb>' in html
    assert markdown_of(chart) == "in place of it\n"
    show([chart])
    printed = capsys.readouterr().out
    assert printed.index("10% (9% to 11%)") < printed.index("what is drawn")
    assert "<details" not in html_of(drawn())


def test_what_only_a_long_report_has_room_for(capsys):
    words = Excerpt((("good", 0.5), (EVIL, -1.0)), lead=("b", ", labelled a: "))
    blocks = (Extra("More", (words,)), Extra("Open", (NUMBERS,), folded=False), Paragraph("the end"))
    html = html_of(*blocks)
    assert "<details><summary>More</summary>" in html
    assert "<b>b</b>, labelled a: " in html
    assert '<span style="background: rgba(var(--for), 0.35)" title="+0.500">good</span>' in html
    assert '<span style="background: rgba(var(--against), 0.70)" title="-1.000">&lt;b&gt;' in html
    assert "<h3>Open</h3>" in html
    assert markdown_of(*blocks) == "the end\n"
    show(blocks)
    assert "good<b>?[2J|" in capsys.readouterr().out


def test_the_summary_has_the_opening_and_the_sections_that_it_takes():
    whole = page.page(report_of(Paragraph("a text"), in_summary=False))
    assert whole.startswith("<!doctype html>\n")
    assert '<a href="#here">A heading</a>' in whole
    short = summary(report_of(Paragraph("a text"), in_summary=False))
    assert short == "# Summary\n\n**Yes.**\n\nWith 1 %.\n\nAbout: x.\n\n- A figure.\n"


def test_the_charts_that_are_kept_as_pictures_are_those_that_are_named():
    report = report_of(drawn(), drawn(picture="kept"))
    assert [chart.picture for chart in report.pictures()] == ["kept"]


def test_every_file_of_a_section_is_in_the_contents():
    files = [each for each in pkgutil.iter_modules(sections.__path__) if not each.ispkg]
    named = [each.name for each in files if not each.name.startswith("_")]
    of_studies = {each.section for each in studies.all_sections()}
    composers = {importlib.import_module(f"{sections.__name__}.{name}").section for name in named}
    assert composers - {importlib.import_module(f"{sections.__name__}.runs").section} | of_studies == {
        *contents.OF_LABELS,
        *contents.OF_ALL,
    }


def test_the_package_carries_its_templates():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = declared["tool"]["setuptools"]["package-data"]
    for package in ("pipeline/report", "pipeline/inference"):
        carried = {
            file for each in patterns[package.replace("/", ".")] for file in (ROOT / package).glob(each)
        }
        assert carried == {*(ROOT / package / "templates").iterdir()}


PROJECT = Project.load(ROOT / "params.yaml")
STUDIES: dict[str, Callable[[Path], object]] = {
    "layers": lambda out: layers.compare(PROJECT, "ulmfit", "target_lm", 100, out),
    "anatomy": lambda out: anatomy.dissect(PROJECT, "ulmfit", "target_lm", (), 100, out),
    "align": lambda out: alignment.align(PROJECT, "cove", (), 2, out),
    "export": lambda out: export_onnx.export_onnx(
        PROJECT, "ulmfit", out.parent / "onnx", int8=False, out=out
    ),
    "suggest": lambda out: suggest.try_ways(PROJECT, "ulmfit", [10, 20], 2, out),
    "doubt": lambda out: doubt.doubt(PROJECT, "ulmfit", 10, 2, 0.0, out.parent / "doubtful.csv", 1, out),
}


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_whose_folder_cannot_be_made_is_refused_before_any_work(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)  # where nothing could be worked on
    file = tmp_path / "taken"
    file.touch()
    with pytest.raises(ValueError, match=r"no folder for the figures can be made at .*taken"):
        STUDIES[name](file)


def test_a_study_is_read_as_it_was_written(tmp_path):
    study = Forms(headstart="ul-mfit", stage="finetune_classifier", key="abc", num_judged=1, rows=[])
    folder = tmp_path / "new" / "studies"
    written = write_study(folder, study)
    assert written == SavedStudy(study, folder / "onnx-ul-mfit.json")
    assert read_studies(folder, [Forms, Layers]) == [study]
    assert read_studies(folder, [Layers]) == []
    (tmp_path / "taken").touch()
    with pytest.raises(ValueError, match="no folder for the figures"):
        write_study(tmp_path / "taken", study)


@pytest.mark.parametrize("content", ['{"headstart": "ulmfit", "key": "abc"}', '{"version": 1}', "{"])
def test_a_study_of_an_earlier_format_or_a_damaged_one_is_left_out_with_a_warning(tmp_path, caplog, content):
    (tmp_path / "onnx-ulmfit.json").write_text(content, encoding="utf-8")
    assert read_studies(tmp_path, [Forms]) == []
    (record,) = caplog.records
    assert "onnx-ulmfit.json" in record.getMessage()
    assert "remove it, or repeat its command" in record.getMessage()


def test_each_file_of_a_study_is_on_the_page_once():
    folder = Path(studies.__file__).parent
    files = [file for file in folder.glob("*.py") if file.name != "__init__.py"]
    found = studies.all_sections()
    assert len(found) == len({each.order for each in found}) == len(files)
    kinds = [kind.kind for each in found for kind in each.kinds]
    assert len(kinds) == len({*kinds})
    assert not any("-" in kind for kind in kinds)
