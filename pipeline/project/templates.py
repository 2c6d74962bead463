"""The files of a new project: those of the checkout, or those that the installed package carries."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from pipeline.files.atomic import atomic_write_text
from pipeline.project.plots_page import write_plots_page

_ROOT = Path(__file__).resolve().parents[2]
_CODE_DEPS = """\
      - models
      - pipeline
      - requirements.lock  # says which packages are installed
"""
_REPORT_DEPS = """\
      - pipeline/report
      - pipeline/figures  # the formats of figures
      - pipeline/settings/arm.py
"""
_ALWAYS = "    always_changed: true  # it looks at the installed code and packages each time, in seconds\n"
_IGNORED = "/data/\n/.headstart/\n/dvc_plots/\n/reports/lr_find/\n"
_DVC_IGNORED = "/config.local\n/plots.html\n/tmp\n/cache\n"
_MINE = """\
# What differs from params.yaml: `headstart use mine.yaml` lays it over.
corpus:
  target:
    source:
      kind: files
      format: auto                       # by each file's ending: parquet, csv, tsv, ndjson, or text
      train: ["sources/target/*.csv"]    # paths, globs, hf://, s3://, https://
      validation: []                     # empty: split off train
      test: []
      unlabelled: []                     # more text for the language models
      text_column: text
      label_column: label                # null: there are no labels
      label_names: null                  # null: the values of the label column
      encoding_errors: refuse            # refuse, replace or skip what is not UTF-8
"""
_DVC_CONFIG = (
    "[core]\n    analytics = false\n    autostage = false\n[plots]\n    html_template = plots.html\n"
)


def template_folder() -> Path:
    """The folder that holds params.yaml, dvc.yaml, `presets` and `plots`."""
    for folder in (_ROOT, _ROOT / "share" / "headstart", Path(sys.prefix) / "share" / "headstart"):
        if (folder / "dvc.yaml").exists() and (folder / "presets").is_dir():
            return folder
    raise ValueError("this installation of headstart lacks its templates; install it again")


def make_project(folder: Path) -> None:
    """Lay out a project: settings, stages, presets, folders for one's files, DVC and git.

    Raises ValueError if the folder holds a project already.
    """
    for name in ("params.yaml", "dvc.yaml", ".dvc"):
        if (folder / name).exists():
            raise ValueError(f"{folder / name} exists; name a folder without a project")
    source = template_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _fill(folder, source)
    except OSError as error:
        raise ValueError(f"{folder} cannot be made a project: {error.strerror}; name another one") from error


def _fill(folder: Path, source: Path) -> None:
    shutil.copytree(source / "presets", folder / "presets", dirs_exist_ok=True)
    plots = source / "plots" if (source / "plots").is_dir() else source / ".dvc" / "plots"
    shutil.copytree(plots, folder / ".dvc" / "plots")
    for name, text in {
        ".dvc/config": _DVC_CONFIG,
        ".dvc/.gitignore": _DVC_IGNORED,
        ".dvcignore": "__pycache__\n*.pyc\n.venv\n.headstart\n",
        "mine.yaml": _MINE,
        "params.yaml": (source / "params.yaml").read_text(encoding="utf-8"),
        "dvc.yaml": _without_code((source / "dvc.yaml").read_text(encoding="utf-8")),
        **{
            f"sources/{name}/.gitignore": "*\n!.gitignore\n"
            for name in ("general", "target", "translation", "weights")
        },
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        atomic_write_text(folder / name, text)
    ignored = folder / ".gitignore"
    before = ignored.read_text(encoding="utf-8") if ignored.exists() else ""
    missing = [line for line in _IGNORED.splitlines() if line not in before.splitlines()]
    if missing:
        begun = before if not before or before.endswith("\n") else f"{before}\n"
        atomic_write_text(ignored, begun + "".join(f"{line}\n" for line in missing))
    write_plots_page(folder)
    inside = subprocess.run(["git", "rev-parse"], cwd=folder, capture_output=True)
    if inside.returncode:
        subprocess.run(["git", "init", "--quiet"], cwd=folder, check=True)


def _without_code(stages: str) -> str:
    """The stages of a project that has no code of its own: DVC cannot watch that of the package."""
    assert _CODE_DEPS in stages
    assert _REPORT_DEPS in stages
    return stages.replace(_CODE_DEPS, _ALWAYS).replace(_REPORT_DEPS, "")
