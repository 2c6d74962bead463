"""The figures of `report`."""

from __future__ import annotations

from pipeline.figures.estimates import Figure


class ReportFigures(Figure):
    num_pictures: int
