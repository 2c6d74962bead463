"""The finished classifier as an MLflow model: logged as code, loaded by MLflow only.

`tracking.register_model` hands this file to MLflow beside the exported model folder (artifact
`model`), so nothing is pickled. MLflow runs the file to find the model, hence `set_model` at its end.
"""

from pathlib import Path
from typing import Any

from mlflow.models import set_model
from mlflow.pyfunc import PythonModel


class TextClassifier(PythonModel):
    """Texts in, for each its label and the probability of every label out."""

    def load_context(self, context: Any) -> None:
        from pipeline.predict import Predictor

        self.predictor = Predictor.load(Path(context.artifacts["model"]))

    def predict(self, model_input: list[str]):  # type: ignore[override, no-untyped-def]
        """MLflow derives the schema from the hints, and takes a DataFrame of one column for a list.

        No hint says what is returned: MLflow has no schema for {"label": str, "probabilities": {str: float}}
        and would warn at each load.
        """
        predictions = self.predictor.predict(model_input)
        return [{"label": each.label, "probabilities": dict(each.probabilities)} for each in predictions]


set_model(TextClassifier())
