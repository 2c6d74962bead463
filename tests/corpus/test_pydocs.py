from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

import pytest

from pipeline.corpus import distributions, pydocs
from pipeline.execution.recipes import stage_fingerprint
from pipeline.project.project import Project
from pipeline.stages import prepare

ROOT = Path(__file__).resolve().parents[2]

SENTENCE = "This function computes the one thing that a reader of this sentence came here to find, at once."


def _write(file: Path, content: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content, encoding="utf-8")


def _install(site: Path, name: str, version: str, *tops: str) -> None:
    """Give a distribution the modules and packages in `site` that it would have installed."""
    paths = [path for top in tops for path in [site / top, *(site / top).rglob("*.py")] if path.is_file()]
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    record = [str(path.relative_to(site)) for path in paths] + [f"{info.name}/METADATA", "../../bin/a.py"]
    _write(info / "METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    _write(info / "RECORD", "".join(f"{path},,\n" for path in record))


@pytest.fixture
def site(tmp_path, monkeypatch):
    """An environment in which four listed distributions and an unlisted one are installed."""
    listed = {"scipy": "1.17.1", "torch": "2.13.0", "other": "1.0", "another-one": "2.0"}
    monkeypatch.setattr(distributions, "_LIST", tmp_path / "listed.txt")
    lines = [f"{name}=={version}\n" for name, version in listed.items()]
    _write(tmp_path / "listed.txt", "".join(["# A comment.\n", *lines]))
    folder = tmp_path / "site-packages"
    _write(folder / "scipy/a.py", f'"""{SENTENCE} See SciPy.\n\nParameters\n----------\nx : int\n"""\n')
    _write(folder / "scipy/b.py", 'def f():\n    """Too short."""\n')
    _write(folder / "scipy/_vendor/c.py", f'"""{SENTENCE} Vendored."""\n')
    _write(
        folder / "torch/a.py",
        f'class A:\n    """{SENTENCE} First."""\n    def f(self):\n        """{SENTENCE} Second."""\n'
        f'try:\n    pass\nexcept Exception:\n    def g():\n        """{SENTENCE} Third."""\n',
    )
    _write(folder / "torch/broken.py", f'"""{SENTENCE}"""\ndef (:\n')
    _write(folder / "torch/same.py", f'"""{SENTENCE}  FIRST!"""\n')
    _write(
        folder / "other/a.py", f'"""{SENTENCE} Of another package.\n\n    >>> code()\n\nAnd a last line."""\n'
    )
    _write(folder / "other/copy.py", f'"""{SENTENCE} Second."""\n')
    _write(folder / "module.py", f'"""{SENTENCE} Of a module."""\n')
    _write(folder / "module/unlisted.py", f'"""{SENTENCE} Of an unlisted package."""\n')
    _write(folder / "unlisted/a.py", f'"""{SENTENCE} Of another unlisted package."""\n')
    _install(folder, "scipy", "1.17.1", "scipy")
    _install(folder, "torch", "2.13.0+cpu", "torch")
    _install(folder, "other", "1.0", "other")
    _install(folder, "Another_One", "2.0", "module.py")
    _install(folder, "unlisted", "1.0", "unlisted", "module")
    return folder


@pytest.fixture
def standard_library(tmp_path):
    folder = tmp_path / "python"
    _write(
        folder / "pydoc_data/topics.py",
        f"topics = {{'if': '''The \"if\" statement\\n\\n{SENTENCE} Topic.'''}}\n",
    )
    _write(folder / "json/__init__.py", f'"""{SENTENCE} Of the standard library."""\n')
    _write(folder / "test/test_json.py", f'"""{SENTENCE} Of a test."""\n')
    _write(folder / "site-packages/hidden/__init__.py", f'"""{SENTENCE} Hidden."""\n')
    return folder


def test_target_is_the_opening_prose_labelled_with_the_library(site):
    target = pydocs.extract_target(15, [site])
    assert target.label_names == ("scipy", "torch")
    assert target.labels == [0, 1, 1, 1]
    assert target.texts == [f"{SENTENCE} {end}" for end in ("See library.", "First.", "Second.", "Third.")]
    assert target.skipped == {"too_short": 1, "duplicate": 1, "unparsable_file": 1}


def test_general_is_everything_outside_the_target(site, standard_library):
    general = pydocs.extract_general(5, [site], standard_library)
    assert [text.removeprefix(SENTENCE).strip() for text in general.texts] == [
        f'The "if" statement\n{SENTENCE} Topic.'.removeprefix(SENTENCE),
        "Of the standard library.",
        "Of a module.",
        "Of another package.\nAnd a last line.",
    ]
    assert general.label_names is None
    assert general.skipped["duplicate"] == 1


def test_several_processes_give_the_same_documents_as_one(site, monkeypatch):
    alone = pydocs.extract_target(15, [site])
    monkeypatch.setattr(pydocs, "_FILES_WORTH_PROCESSES", 1)
    monkeypatch.setattr(pydocs, "_FILES_PER_TASK", 1)
    assert pydocs.extract_target(15, [site]) == alone


def test_a_quick_trial_reads_only_each_nth_file(site, monkeypatch):
    opened: list[str] = []
    parse = pydocs._docstrings_in

    def noted(file):
        opened.append(str(file.relative_to(site)))
        return parse(file)

    monkeypatch.setattr(pydocs, "_docstrings_in", noted)
    whole = pydocs.extract_target(15, [site])
    all_files, opened[:] = list(opened), []
    part = pydocs.extract_target(15, [site], every=3)
    assert opened == all_files[::3]
    assert len(all_files) > len(opened) > 1
    assert set(part.texts) < set(whole.texts)
    assert part.label_names == whole.label_names


def test_a_package_hides_a_module_of_the_same_name(site, standard_library):
    """As it does when Python imports that name."""
    _write(site / "module/listed.py", f'"""{SENTENCE} Of a package."""\n')
    _install(site, "Another_One", "2.0", "module.py", "module/listed.py")
    assert list(distributions.python_files([site])["module"]) == [site / "module/listed.py"]


def test_listed_versions_that_are_installed_are_no_reason_to_warn(site):
    assert distributions.version_warning("general", [site]) is None


def test_missing_and_other_versions_are_named_in_one_line(site, tmp_path):
    _write(tmp_path / "listed.txt", "".join(f"{name}==3\n" for name in ["other", "scipy", *"abcdef"]))
    assert distributions.version_warning("general", [site]) == (
        "8 of the 8 packages whose documentation is read differ from those of the published figures: "
        "other 1.0 instead of 3, scipy 1.17.1 instead of 3, a is missing, b is missing, c is missing, "
        "and 3 more"
    )
    assert distributions.version_warning("target", [site]) == (
        "1 of the 1 packages whose documentation is read differ from those of the published figures: "
        "scipy 1.17.1 instead of 3"
    )


def test_prepare_remarks_on_other_versions(site, tmp_path, monkeypatch):
    monkeypatch.setattr(distributions, "_site_folders", lambda: [site])
    _write(tmp_path / "listed.txt", "scipy==1.17.2\ntorch==2.13.0\n")
    for name in ("one", "two", "three"):
        _write(site / f"scipy/{name}.py", f'"""{SENTENCE} {name}."""\n')
    _install(site, "scipy", "1.17.1", "scipy")
    found = prepare.run(Project.load(ROOT / "params.yaml"), corpus="target", out=tmp_path / "documents")
    assert found.remarks[-1].endswith("published figures: scipy 1.17.1 instead of 1.17.2")


def test_the_list_agrees_with_the_lock():
    """All but pip, which comes with Python."""
    lock = [line for line in (ROOT / "requirements.lock").read_text().splitlines() if "==" in line]
    listed = distributions.listed_versions("general")
    assert listed.pop("pip")
    assert listed.items() <= dict(line.split("==") for line in lock).items()


def test_the_target_libraries_come_from_the_distributions_that_it_depends_on():
    normal = {re.sub(r"[-_.]+", "-", name).lower() for name in distributions.listed_versions("target")}
    owners = metadata.packages_distributions()
    found = {owner for library in pydocs.TARGET_LIBRARIES for owner in owners[library]}
    assert {re.sub(r"[-_.]+", "-", name).lower() for name in found} <= normal


def test_the_fingerprint_covers_the_versions_of_listed_packages_alone(site, monkeypatch):
    monkeypatch.setattr(distributions, "_site_folders", lambda: [site])
    params = Project.load(ROOT / "params.yaml")

    def text(corpus: str) -> dict[str, str]:
        found = dict(stage_fingerprint("prepare", params, {"corpus": corpus}).text)
        assert found.pop("python")
        return found

    assert text("general") == {"scipy": "1.17.1", "torch": "2.13.0", "other": "1.0", "another-one": "2.0"}
    assert text("target") == {"scipy": "1.17.1", "torch": "2.13.0"}
    _install(site, "late", "1.0", "unlisted")
    (site / "other-1.0.dist-info").rename(site / "gone-1.0.dist-info")
    assert text("general") == {
        "scipy": "1.17.1", "torch": "2.13.0", "other": "not installed", "another-one": "2.0"
    }  # fmt: skip
    assert text("target") == {"scipy": "1.17.1", "torch": "2.13.0"}


def test_fewer_than_two_libraries_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"0 of the libraries .*corpus\.target\.source"):
        pydocs.extract_target(15, [tmp_path])


@pytest.mark.parametrize(
    ("docstring", "opening"),
    [
        ("One line\nand its end.\n\nA second paragraph.", "One line and its end. A second paragraph."),
        ("Prose.\n\nArgs:\n    x: a number\n\nMore.", "Prose."),
        ("Prose.\nArgs:\n    x: a number", "Prose."),
        ("Prose.\n\n:param x: a number", "Prose."),
        ("Prose.\n\n>>> 1 + 1\n2\n\nMore.", "Prose."),
        ("Prose::\n\n    code\n\nMore.", "Prose:"),
        ("Prose.\n\n.. note::\n\n    A note.", "Prose."),
        ("Heading\n=======\n\nProse.", ""),
        ("See :class:`~a.b.C` and :func:`the function <a.f>` or ``x``.", "See a.b.C and the function or x."),
    ],
)
def test_opening_ends_at_the_first_section_parameter_or_code(docstring, opening):
    assert pydocs.opening(docstring) == opening


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("PyTorch, torch.nn and scikit-learn", "library, library.nn and library"),
        ("use pd.DataFrame, nx.Graph", "use library.DataFrame, library.Graph"),
        ("an array of arrays, a display, torchlight", "an array of arrays, a display, torchlight"),
        ("pl is no alias without a dot", "pl is no alias without a dot"),
    ],
)
def test_library_names_are_masked_and_other_words_are_not(text, masked):
    assert pydocs.mask(text) == masked
