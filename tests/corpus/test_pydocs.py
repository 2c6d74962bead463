from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.corpus import pydocs

SENTENCE = "This function computes the one thing that a reader of this sentence came here to find, at once."


def _write(file: Path, content: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content, encoding="utf-8")


@pytest.fixture
def site(tmp_path):
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
    _write(folder / "pipeline/a.py", f'"""{SENTENCE} Ours."""\n')
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
