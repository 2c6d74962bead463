"""Says of a report that it is stale: a stage has run since it was made, or settings have changed."""

from __future__ import annotations

from html import escape
from pathlib import Path

from pipeline.files.atomic import atomic_write_text
from pipeline.project.lock_file import LockFile
from pipeline.project.stages import STAGES
from pipeline.settings.loader import read_yaml

_PREFIX = "Stale: "
_BODY = "<body>\n"


def mark(stage: str, root: Path) -> None:
    """Write on the first line of the page and of the summary that `stage` has run since they were made.

    Making the report anew replaces both.
    """
    _write(
        root,
        f"{_PREFIX}`{stage}` has run since this report was made, so it describes earlier settings or inputs; "
        "`dvc repro` makes it anew.",
    )


def mark_changed_settings(root: Path, params: Path) -> None:
    """Write there which settings have changed since the stages ran, if any: for a report made by hand."""
    if said := changed_settings(root, params):
        _write(root, said)


def changed_settings(root: Path, params: Path) -> str | None:
    """A sentence that names settings that have changed since the stages ran; None if none has."""
    if not (root / "dvc.lock").exists() or not params.exists():
        return None
    counted = {path for stage in STAGES.values() for path in stage.settings}
    changed = [
        path
        for path in LockFile(root).changed_settings(read_yaml(params))
        if path in counted or not path.startswith(("run.", "presets"))
    ]  # the others change no figure
    if not changed:
        return None
    more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
    return f"{_PREFIX}{', '.join(changed[:3])}{more} changed since; `dvc repro` makes the report anew."


def _write(root: Path, said: str) -> None:
    file = root / "dvc.yaml"
    if not file.exists():
        return
    outputs = read_yaml(file)["stages"].get("report", {}).get("outs", [])
    paths = [root / (each if isinstance(each, str) else next(iter(each))) for each in outputs]
    for path in paths:
        if path.suffix == ".md" and path.exists():
            text = path.read_text(encoding="utf-8")
            if not text.startswith(f"**{_PREFIX}"):
                atomic_write_text(path, f"**{said}**\n\n{text}")
        elif path.suffix == ".html" and path.exists():
            text = path.read_text(encoding="utf-8")
            notice = f'<p class="stale" role="alert">{escape(said)}</p>\n'
            if f'{_BODY}<p class="stale"' not in text:
                atomic_write_text(path, text.replace(_BODY, _BODY + notice, 1))
