"""The finished classifier as an MLflow model, logged as code; only MLflow loads this file.

`tracking.register_model` gives MLflow this file and the exported model folder (artifact `model`), so nothing
is pickled. MLflow runs the file to find the model, hence the `set_model` at its end.
"""

from pathlib import Path
from typing import Any

from mlflow.models import set_model
from mlflow.pyfunc import PythonModel


class TextClassifier(PythonModel):
    """Maps each document to its label and the probability of every label."""

    # MLflow would warn, past all filters, that `predict` has no type hints; the model has a signature.
    _skip_type_hint_validation = True

    def load_context(self, context: Any) -> None:
        from pipeline.inference.predict import Predictor

        self.predictor = Predictor.load(Path(context.artifacts["model"]))

    def predict(self, context, model_input, params=None):  # type: ignore[no-untyped-def]
        """Label each document: a column a text, as the model's signature makes a table of whatever comes.

        There are no type hints, as MLflow would take them for another signature.
        """
        from pipeline.inference.answer import Answer
        from pipeline.inference.predict import has_words

        columns = [model_input.iloc[:, number] for number in range(self.predictor.num_texts)]
        texts = [
            [text if isinstance(text, str) else "" for text in column] for column in columns
        ]  # None, NaN
        documents = list(zip(*texts, strict=True))
        predictions = self.predictor.predict(documents)
        return [
            Answer(prediction if has_words(document) else None).to_json()
            for document, prediction in zip(documents, predictions, strict=True)
        ]


set_model(TextClassifier())
