"""Checkpoints and exported models on disk."""
