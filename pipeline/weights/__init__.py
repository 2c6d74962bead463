"""Weights from elsewhere."""
