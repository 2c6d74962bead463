"""Refuses to run the code of one checkout in another, whose own code DVC watches."""

from __future__ import annotations

from pathlib import Path

_RUNNING = Path(__file__).resolve().parents[2]
_PACKAGES = ("pipeline", "models")


def check_runs_own_code(folder: Path, running: Path = _RUNNING) -> None:
    """Raise ValueError if `folder` has code of its own that differs from the code in `running`.

    A folder without code, and a copy with the same, such as that of `dvc exp run --temp`, are fine.
    """
    folder = folder.resolve()
    if folder == running or not (folder / "pipeline" / "__main__.py").exists():
        return
    for package in _PACKAGES:
        for file in sorted((folder / package).rglob("*.py")):
            name = file.relative_to(folder)
            other = running / name
            if not other.exists() or other.read_bytes() != file.read_bytes():
                raise ValueError(
                    f"{name} here differs from that of {running}, whose code `headstart` runs; run "
                    "`make setup` here, or put this folder first in PYTHONPATH"
                )
