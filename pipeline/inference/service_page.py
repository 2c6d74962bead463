"""The page of the HTTP service: a person types a text and sees its label, and which words counted.

Its looks are in `templates/`. It calls `predict` of the same service and nothing else. A text behind `#` in
the address is labelled at once; a browser keeps that part to itself.
"""

from __future__ import annotations

import base64
import functools
import hashlib
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

_TEMPLATES = Path(__file__).parent / "templates"


@functools.cache
def page(num_texts: int, *, takes_token: bool) -> str:
    """Return the page for a classifier of so many texts."""
    templates = Environment(
        loader=FileSystemLoader(_TEMPLATES), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    script = _file("service.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return templates.get_template("service.html.j2").render(
        num_texts=num_texts,
        takes_token=takes_token,
        policy=f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'",
        style=_file("service.css"),
        script=script,
    )


def _file(name: str) -> str:
    return (_TEMPLATES / name).read_text(encoding="utf-8")
