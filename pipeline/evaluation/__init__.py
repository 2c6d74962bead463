"""Figures of a classifier: metrics, intervals, baselines, label curves, attributions. Numbers only."""
