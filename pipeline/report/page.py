"""The report as one self-contained page: its JavaScript is inside, and it makes no request.

Its looks are in `templates/`. Jinja escapes all text, and a chart's data is in a JSON block that no document
can close. If something gets through all the same, the page's policy runs no script but its own, which it
identifies by its hash.
"""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from pipeline.report.section import Chart, Report

_TEMPLATES = Path(__file__).parent / "templates"


def page(report: Report) -> str:
    """The whole page, as HTML."""
    templates = Environment(
        loader=FileSystemLoader(_TEMPLATES), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    templates.filters["specification"] = _specification
    script = _script()
    return templates.get_template("page.html.j2").render(
        opening=report.opening,
        sections=report.sections,
        policy=_policy(script),
        style=_file("page.css"),
        script=script,
    )


def _script() -> str:
    import vl_convert

    bundle = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;").replace("</script", "<\\/script")
    return f"{bundle}\n{_file('page.js')}".replace("\r\n", "\n")  # as browsers read it before they hash it


def _file(name: str) -> str:
    return (_TEMPLATES / name).read_text(encoding="utf-8")


def _policy(script: str) -> str:
    """Let the page fetch and send nothing, and run only this script: event handlers are blocked, too."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _specification(chart: Chart) -> str:
    """The chart as JSON that ends no script block."""
    specification = {**chart.draw().to_dict(), "description": chart.caption}
    return json.dumps(specification, ensure_ascii=False).replace("<", "\\u003c")
