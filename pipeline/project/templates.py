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
    deps:
      - models
      - pipeline
      - requirements.lock  # says which packages are installed
"""
_REPORT_DEP = "      - pipeline/report\n"
_ALWAYS = "    always_changed: true  # it looks at the installed code and packages each time, in a second\n"
_IGNORED = "/data/\n/.headstart/\n/dvc_plots/\n/reports/lr_find/\n"
_DVC_IGNORED = "/config.local\n/plots.html\n/tmp\n/cache\n"
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
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copytree(source / "presets", folder / "presets", dirs_exist_ok=True)
    plots = source / "plots" if (source / "plots").is_dir() else source / ".dvc" / "plots"
    shutil.copytree(plots, folder / ".dvc" / "plots")
    for name, text in {
        ".dvc/config": _DVC_CONFIG,
        ".dvc/.gitignore": _DVC_IGNORED,
        ".dvcignore": "__pycache__\n*.pyc\n.venv\n.headstart\n",
        ".gitignore": _IGNORED,
        "params.yaml": (source / "params.yaml").read_text(encoding="utf-8"),
        "dvc.yaml": _without_code((source / "dvc.yaml").read_text(encoding="utf-8")),
        **{f"sources/{name}/.gitignore": "*\n!.gitignore\n" for name in ("general", "target", "weights")},
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if name != ".gitignore" or not (folder / name).exists():
            atomic_write_text(folder / name, text)
    write_plots_page(folder)
    inside = subprocess.run(["git", "rev-parse"], cwd=folder, capture_output=True)
    if inside.returncode:
        subprocess.run(["git", "init", "--quiet"], cwd=folder, check=True)


def _without_code(stages: str) -> str:
    """The stages of a project that has no code of its own: DVC cannot watch that of the package."""
    assert _CODE_DEPS in stages
    assert _REPORT_DEP in stages
    return stages.replace(_CODE_DEPS, _ALWAYS).replace(_REPORT_DEP, "")
