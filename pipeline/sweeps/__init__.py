"""Stages of many trainings: their missing trials, MLflow runs and outcomes."""
