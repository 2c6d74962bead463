"""A classifier's network that onnxruntime runs, as `headstart export --format onnx` writes it."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.special import softmax

from pipeline.artifacts.model_folder import checked_card
from pipeline.artifacts.tensor_folder import read_state
from pipeline.corpus.classifier_batches import by_length, pad, tokens_without_gradient
from pipeline.corpus.tokenizer import Tokenizer
from pipeline.corpus.tokenizer_kinds import load_tokenizer
from pipeline.evaluation.text_classifiers import Documents
from pipeline.files.manifest import verify
from pipeline.training.cards import HeadCard, ModelCard, form_of

NETWORK_FILE = "network.onnx"


class OnnxSession:
    """A network in onnxruntime, with as many threads as torch has."""

    def __init__(self, session: Any) -> None:
        self._session = session

    @classmethod
    def open(cls, file: Path) -> OnnxSession:
        """Raises ValueError if onnxruntime is not installed."""
        if importlib.util.find_spec("onnxruntime") is None:
            raise ValueError(f'{file} needs onnxruntime; run pip install "headstart[onnx]"')
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = 3
        return cls(onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"]))

    def logits(self, ids_BT: np.ndarray, mask_BT: np.ndarray) -> np.ndarray:
        """Return the logits (B, C) of rows padded at their end; `mask_BT` is True at real tokens."""
        given = {"ids": ids_BT, "mask": mask_BT}
        read = {entry.name for entry in self._session.get_inputs()}  # not the mask, where nothing looks at it
        logits: np.ndarray = self._session.run(["logits"], {name: given[name] for name in read})[0]
        return logits


@dataclass(frozen=True)
class OnnxNetwork:
    session: OnnxSession
    card: ModelCard
    head: HeadCard
    tokenizer: Tokenizer

    def probabilities(self, documents: Documents) -> np.ndarray:
        """Return probabilities (documents, classes); the device is the CPU, the dtype that of the export."""
        return self.of_tokens(documents.ids(self.tokenizer))

    def features(self, documents: Documents) -> None:
        """Return nothing: the file gives logits alone."""

    def of_tokens(self, documents: Sequence[np.ndarray]) -> np.ndarray:
        """Return probabilities (documents, classes) of documents of tokens, float64."""
        form, probs = form_of(self.card), np.zeros((len(documents), len(self.head.label_names)))
        most = tokens_without_gradient(torch.device("cpu")) // form.rows_each
        rows = [form.rows(document) for document in documents]
        for chosen in by_length([max(map(len, own)) for own in rows], most):
            together = [row for k in chosen for row in rows[k]]
            ids, mask = pad(together, max(map(len, together)), form.pad_id)
            logits = self.session.logits(ids.numpy(), mask.numpy())
            probs[chosen] = softmax(logits.astype(np.float64), axis=1)
        return probs


def load_onnx(folder: Path) -> OnnxNetwork:
    """Raises ValueError if the folder is missing, torn or altered, or onnxruntime is not installed."""
    verify(folder)
    state = read_state(folder)
    card, tokenizer = checked_card(folder, state.get("card", {})), load_tokenizer(folder)
    if card.head is None:
        raise ValueError(f"{folder} holds no classifier; export one again")
    if card.tokenizer_sha256 != tokenizer.sha256:
        raise ValueError(f"the model in {folder} was trained with another tokenizer than the one there")
    return OnnxNetwork(OnnxSession.open(folder / NETWORK_FILE), card, card.head, tokenizer)
