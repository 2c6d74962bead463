"""The page of the HTTP service: a person types a text and sees its label, and which words counted.

Its looks are in `templates/`. It calls `predict` of the same service and nothing else. A text behind `#` in
the address is labelled at once; a browser keeps that part to itself.
"""

from __future__ import annotations

import functools
from pathlib import Path

from pipeline.files.templates import Templates, policy

_TEMPLATES = Templates(Path(__file__).parent / "templates")


@functools.cache
def page(num_texts: int, *, takes_token: bool) -> str:
    """Return the page for a classifier of so many texts."""
    script = _TEMPLATES.text("service.js")
    return _TEMPLATES.render(
        "service.html.j2",
        num_texts=num_texts,
        takes_token=takes_token,
        policy=policy(script, "connect-src 'self'"),
        style=_TEMPLATES.text("service.css"),
        script=script,
    )
