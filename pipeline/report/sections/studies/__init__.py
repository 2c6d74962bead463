"""The sections of studies, one file each: the study's type, `blocks(study)`, and `SECTION`.

A study's command prints its blocks. The page finds the sections by their files.
"""

from __future__ import annotations

import importlib
import pkgutil

from pipeline.report.sections._studies import StudySection


def all_sections() -> list[StudySection]:
    """Of each file in this folder, in their order on the page."""
    names = (module.name for module in pkgutil.iter_modules(__path__))
    sections: list[StudySection] = [importlib.import_module(f"{__name__}.{name}").SECTION for name in names]
    return sorted(sections, key=lambda each: each.order)
