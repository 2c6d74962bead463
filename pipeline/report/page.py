"""The report as one self-contained page: its JavaScript is inside, and it makes no request.

Its looks are in `templates/`. Jinja escapes all text, and a chart's data is in a JSON block that no document
can close. If something gets through all the same, the page's policy runs no script but its own, which it
identifies by its hash.
"""

from __future__ import annotations

import json
from pathlib import Path

from pipeline.files.templates import Templates, policy
from pipeline.report.section import Chart, Report


def page(report: Report) -> str:
    """The whole page, as HTML."""
    script = _script()
    return _TEMPLATES.render(
        "page.html.j2",
        opening=report.opening,
        sections=report.sections,
        policy=policy(script, "img-src data:"),
        style=_TEMPLATES.text("page.css"),
        script=script,
    )


def _script() -> str:
    import vl_convert

    bundle = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;").replace("</script", "<\\/script")
    # As browsers read it before they hash it.
    return f"{bundle}\n{_TEMPLATES.text('page.js')}".replace("\r\n", "\n")


def _specification(chart: Chart) -> str:
    """The chart as JSON that ends no script block."""
    specification = {**chart.draw().to_dict(), "description": chart.caption}
    return json.dumps(specification, ensure_ascii=False).replace("<", "\\u003c")


_TEMPLATES = Templates(Path(__file__).parent / "templates", {"specification": _specification})
