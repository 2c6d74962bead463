"""Shared by the contestants of `reading.py`: its arguments and its texts."""

from __future__ import annotations

import argparse
import json
from pathlib import Path


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser()
    made.add_argument("--weights", type=Path, required=True)
    made.add_argument("--texts", type=Path, required=True, help="a JSON list")
    made.add_argument("--longest", type=int, required=True)
    return made


def texts(file: Path) -> list[str]:
    texts: list[str] = json.loads(file.read_text(encoding="utf-8"))
    return texts
