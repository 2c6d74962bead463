"""The types of the figures that stages report, from the measurement to the page."""
