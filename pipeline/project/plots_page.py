"""The page in which `dvc plots show` draws: DVC's own loads its JavaScript from the network."""

from __future__ import annotations

from pathlib import Path

from pipeline.files.atomic import atomic_write_text

PAGE = Path(".dvc/plots.html")  # what `plots.html_template` in .dvc/config names; 0.9 MB, so it is not in git

# The plots of DVC call vegaEmbed before a module has loaded, so the calls wait for it.
_TEMPLATE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
{refresh_tag}
<title>headstart: plots</title>
<script>const waiting = []; function vegaEmbed(...plot) { waiting.push(plot); }</script>
</head>
<body>
{plot_divs}
<script type="module">%s</script>
</body>
</html>
"""


def write_plots_page(root: Path) -> Path:
    """Write the page for the project in `root`, and return its path."""
    import vl_convert

    bundle = vl_convert.javascript_bundle("waiting.forEach(plot => vegaEmbed(...plot));")
    atomic_write_text(root / PAGE, _TEMPLATE.replace("%s", bundle.replace("</script", "<\\/script")))
    return root / PAGE
