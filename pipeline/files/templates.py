"""Pages from templates that a designer can edit, filled in by Jinja2. All text is escaped."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined


@dataclass(frozen=True)
class Templates:
    """The files of a folder. `filters`: functions that a template may apply."""

    folder: Path
    filters: dict[str, Callable[..., str]] = field(default_factory=dict)

    def render(self, name: str, **values: Any) -> str:
        environment = Environment(
            loader=FileSystemLoader(self.folder), autoescape=True, undefined=StrictUndefined,
            trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
        )  # fmt: skip
        environment.filters |= self.filters
        return environment.get_template(name).render(**values)

    def text(self, name: str) -> str:
        return (self.folder / name).read_text(encoding="utf-8")


def policy(script: str, *more: str) -> str:
    """Let a page fetch and send nothing, and run only this script; event handlers are blocked, too.

    `more` allows further things.
    """
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    rules = (f"script-src 'sha256-{digest}'", "style-src 'unsafe-inline'", *more)
    return "; ".join(("default-src 'none'", *rules, "base-uri 'none'", "form-action 'none'"))
