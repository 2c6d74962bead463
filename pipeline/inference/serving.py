"""The finished classifier as an MLflow model, logged as code; only MLflow loads this file.

`tracking.register_model` gives MLflow this file and the exported model folder (artifact `model`), so nothing
is pickled. MLflow runs the file to find the model, hence the `set_model` at its end.
"""

from pathlib import Path
from typing import Any

from mlflow.models import set_model
from mlflow.pyfunc import PythonModel


class TextClassifier(PythonModel):
    """Maps each text to its label and the probability of every label."""

    def load_context(self, context: Any) -> None:
        from pipeline.inference.predict import Predictor

        self.predictor = Predictor.load(Path(context.artifacts["model"]))

    def predict(self, model_input: list[str]):  # type: ignore[override, no-untyped-def]
        """Label each text. MLflow derives the input schema from the hint, and accepts a one-column DataFrame.

        There is no hint for the result: MLflow has no schema for {"label": str, "probabilities": {str:
        float}} and would warn at each load.
        """
        predictions = self.predictor.predict(model_input)
        return [{"label": each.label, "probabilities": dict(each.probabilities)} for each in predictions]


set_model(TextClassifier())
