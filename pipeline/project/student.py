"""The settings by which a student learns from what ships; recipes count this module."""

from __future__ import annotations

from pipeline.settings.loader import overlay, typed
from pipeline.sweeps.settings import DistilClassifier
from pipeline.training.settings import ClassifierTraining


def student_training(settings: DistilClassifier, own: ClassifierTraining) -> ClassifierTraining:
    """Lay `distil_classifier.classifier` over the student's own settings; it trains on all documents.

    Raises ValueError naming each offending key.
    """
    values = overlay(own.model_dump(), settings.classifier)
    training = typed(ClassifierTraining, values, where="params.yaml", prefix="distil_classifier.classifier.")
    return training.model_copy(update={"max_labels": None})
