"""Classification by a language model that was never trained to: by how likely each label is behind a text.

Sources: zero-shot by a template, Radford et al. 2019 (GPT-2), section 3; labelled examples before the text,
Brown et al. 2020 (arXiv 2005.14165), section 2; calibration by inputs without content, Zhao et al. 2021
(arXiv 2102.09690), section 5.

Shapes: N texts, C classes, M inputs without content, K examples, V vocabulary.

Departures: each example is a document of its own, as in the text that the model has learned from, where
Brown et al. divide them by line breaks. The likelihoods of a label's tokens are multiplied and not
normalised by their number, as Brown et al. do on some tasks (section 2.4): what a longer label loses, the
calibration by inputs without content takes out. Zhao et al. take the softmax of the calibrated numbers, which
flattens them; here they are divided by their sum. The likeliest class is the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from models.family import State, products_in
from models.heads import LanguageModel
from pipeline.corpus.batches import rng_of
from pipeline.corpus.classifier_batches import by_length, pad, tokens_without_gradient
from pipeline.corpus.normalise import normalise
from pipeline.corpus.settings import Normalise
from pipeline.corpus.tokens import UNLABELLED, TokenShard
from pipeline.evaluation.settings import ZeroShot
from pipeline.evaluation.template import parts_of

WITHOUT_CONTENT = ("N/A", "", "[MASK]")  # Zhao et al. 2021, section 5
_LEAST_TEXT = 8  # tokens of a text below which there is nothing to classify
_ANCHOR = "a"  # stands before words, so that a tokenizer sees that they go on


class Encodes(Protocol):
    """The part of a tokenizer that a prompt needs; see `pipeline.corpus.tokenizer.Tokenizer`."""

    @property
    def eos_id(self) -> int: ...

    @property
    def pad_id(self) -> int: ...

    @property
    def unk_id(self) -> int: ...

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Return the token ids of texts, each with a document's start and end."""


@dataclass(frozen=True)
class Prompt:
    """A template as token ids: what stands before a text and behind it, and the words of each class."""

    before: tuple[int, ...]  # the document's start first
    behind: tuple[int, ...]
    labels: tuple[tuple[int, ...], ...]  # (C)
    end_id: int  # of a document
    pad_id: int

    @property
    def longest_label(self) -> int:
        return max(map(len, self.labels))

    def around(self, text: Sequence[int]) -> list[int]:
        """The tokens of a text up to where its label would stand."""
        return [*self.before, *text, *self.behind]

    def example(self, text: Sequence[int], label: int) -> list[int]:
        """The tokens of a labelled text, a whole document."""
        return [*self.around(text), *self.labels[label], self.end_id]


def check_labels(labels: Iterable[str], class_names: Sequence[str]) -> None:
    """Raise ValueError for a key of `zero_shot.labels` that is no class."""
    unknown = [name for name in labels if name not in class_names]
    if unknown:
        raise ValueError(
            f"zero_shot.labels has {unknown[0]!r}, which is no class; there are {', '.join(class_names)}"
        )


def make_prompt(tokenizer: Encodes, template: str, words: Mapping[str, str]) -> Prompt:
    """Tokenize a template and the words of each class, by its name.

    Raises ValueError for words that the tokenizer does not know, for classes whose words are the same, and
    for words before the text by a tokenizer to which a text is another one there.
    """
    before, behind = parts_of(template)
    (anchor,) = tokenizer.encode_batch([_ANCHOR])
    if before and _continued(tokenizer, f" {_ANCHOR}") != tuple(anchor[1:-1].tolist()):
        raise ValueError(
            f"zero_shot.template is {template!r}, but to this tokenizer a text has other tokens behind words "
            "than at the beginning; begin the template with {text}"
        )
    names = list(words)
    labels = tuple(_continued(tokenizer, f" {words[name]}".rstrip()) for name in names)
    for index, label in enumerate(labels):
        wrong = None
        if not label:
            wrong = "have no tokens"
        elif tokenizer.unk_id in label:
            wrong = f"{words[names[index]]!r} are not all known to the tokenizer"
        elif label in labels[:index]:
            wrong = f"have the tokens of {names[labels.index(label)]}"
        if wrong is not None:
            raise ValueError(f"zero_shot.labels: the words of the class {names[index]} {wrong}; set others")
    (first,) = tokenizer.encode_batch([before])
    return Prompt(
        tuple(first[:-1].tolist()),
        _continued(tokenizer, behind),
        labels,
        tokenizer.eos_id,
        tokenizer.pad_id,
    )


def prompt_of(
    settings: ZeroShot, normalised: Normalise, tokenizer: Encodes, class_names: Sequence[str]
) -> Prompt:
    """Make the prompt that settings ask for, its words normalised as the texts are.

    A class without words of its own has its name. Raises ValueError as `check_labels` and `make_prompt`.
    """
    check_labels(settings.labels, class_names)
    words = [settings.labels.get(name, name) for name in class_names]
    template, *labels = _normalised([settings.template, *words], normalised)
    return make_prompt(tokenizer, template, dict(zip(class_names, labels, strict=True)))


def _normalised(texts: Sequence[str], normalised: Normalise) -> list[str]:
    import polars as pl

    return normalise(pl.Series(texts, dtype=pl.String), normalised).to_list()


def _continued(tokenizer: Encodes, words: str) -> tuple[int, ...]:
    """The tokens of words behind others."""
    anchor, whole = (ids[:-1].tolist() for ids in tokenizer.encode_batch([_ANCHOR, _ANCHOR + words]))
    if whole[: len(anchor)] != anchor:  # the two run together
        anchor, whole = (ids[:-1].tolist() for ids in tokenizer.encode_batch([_ANCHOR, f"{_ANCHOR} {words}"]))
    return tuple(whole[len(anchor) :])


def without_content(tokenizer: Encodes, normalised: Normalise) -> list[list[int]]:
    """The inputs that say nothing of any class, (M), without a document's start and end."""
    return [ids[1:-1].tolist() for ids in tokenizer.encode_batch(_normalised(WITHOUT_CONTENT, normalised))]


def choose_examples(labels: np.ndarray, num_examples: int, seed: int) -> np.ndarray:
    """Return the indices of labelled documents to show, in the order in which they are shown.

    The classes take turns, in a random order; a class comes again when each has come. With the same seed more
    examples contain fewer.
    """
    turns = np.empty(len(labels))
    for label in np.unique(labels):
        members = rng_of(seed, 8, int(label)).permutation(np.flatnonzero(labels == label))
        turns[members] = np.arange(len(members))
    shuffled = rng_of(seed, 9).permutation(len(labels))
    chosen = shuffled[np.argsort(turns[shuffled], kind="stable")[:num_examples]]
    return rng_of(seed, 10, num_examples).permutation(chosen)


def examples_of(prompt: Prompt, train: TokenShard, num: int, example_tokens: int, seed: int) -> list[int]:
    """Return the tokens of labelled examples, one behind the other."""
    labelled = np.flatnonzero(train.labels != UNLABELLED)
    chosen = labelled[choose_examples(train.labels[labelled], num, seed)]
    texts = (train.document(int(index))[1:-1][:example_tokens].tolist() for index in chosen)
    examples = [prompt.example(text, label) for text, label in zip(texts, train.labels[chosen], strict=True)]
    return [token for example in examples for token in example]


def tokens_left(prompt: Prompt, num_examples: int, example_tokens: int, context: int | None) -> int | None:
    """Return the tokens that a context leaves for a text behind examples; None: any number."""
    if context is None:
        return None
    of_example = len(prompt.example((), 0)) - len(prompt.labels[0]) + prompt.longest_label + example_tokens
    return context - num_examples * of_example - len(prompt.around(())) - prompt.longest_label


def why_too_many(prompt: Prompt, num_examples: int, example_tokens: int, context: int | None) -> str | None:
    """Return why a model cannot be shown so many examples; None if it can."""
    left = tokens_left(prompt, num_examples, example_tokens, context)
    if left is None or left >= _LEAST_TEXT:
        return None
    examples = f"{num_examples} examples of {example_tokens} tokens" if num_examples else "the template"
    return f"it reads {context} tokens at once, and {examples} would leave {max(left, 0)} for the text"


@dataclass(frozen=True)
class InContext:
    """A language model, what it is asked, and the examples that it is shown."""

    model: LanguageModel
    prompt: Prompt
    shown: Sequence[int]  # the examples, one behind the other
    text_tokens: int  # of a text; a longer one is cut at its end

    @classmethod
    def behind_examples(
        cls,
        model: LanguageModel,
        prompt: Prompt,
        train: TokenShard,
        num_examples: int,
        example_tokens: int,
        text_tokens: int,
        seed: int,
    ) -> InContext:
        """Ask behind labelled examples; the text is cut where the model's context has no room for more.

        `why_too_many` has to find nothing wrong with the number of examples.
        """
        left = tokens_left(prompt, num_examples, example_tokens, model.encoder.context)
        assert left is None or left > 0
        shown = examples_of(prompt, train, num_examples, example_tokens, seed)
        return cls(model, prompt, shown, text_tokens if left is None else min(text_tokens, left))

    def log_likelihoods(self, texts: Sequence[Sequence[int]], device: torch.device) -> np.ndarray:
        """Return the log likelihood of the words of each class behind each text (N, C), float64.

        `texts`: their tokens, without a document's start and end.
        """
        prompt = self.prompt
        state, before = self._read_shown(device)
        asked = [[*before, *prompt.around(text[: self.text_tokens])] for text in texts]
        # Classes whose words differ in the last token alone share a row.
        stems = {stem: number for number, stem in enumerate({label[:-1]: None for label in prompt.labels})}
        rows = [np.array([*tokens, *stem]) for tokens in asked for stem in stems]
        likelihoods_NC = np.zeros((len(texts), len(prompt.labels)))
        for chosen in by_length([len(row) for row in rows], tokens_without_gradient(device)):
            batch = [rows[row] for row in chosen]
            ids_BT, mask_BT = (part.to(device) for part in pad(batch, max(map(len, batch)), prompt.pad_id))
            carried = tuple(tensor.expand(len(batch), *tensor.shape[1:]).contiguous() for tensor in state)
            features_BTF = self.model.encoder(ids_BT, mask_BT, carried).features
            for index, row in enumerate(chosen):
                text, stem = divmod(int(row), len(stems))
                first = len(asked[text]) - 1
                logits_TV = self.model.logits(features_BTF[index, first : len(batch[index])])
                log_probs_TV = logits_TV.double().log_softmax(-1).cpu()
                for number, label in enumerate(prompt.labels):
                    if stems[label[:-1]] == stem:
                        likelihoods_NC[text, number] = float(_of(label, log_probs_TV))
        return likelihoods_NC

    def _read_shown(self, device: torch.device) -> tuple[State, Sequence[int]]:
        """The state behind the examples; without one the examples themselves, to be read with each text."""
        if self.model.encoder.context is not None or not self.shown:
            return (), self.shown
        return self.model.encoder(torch.tensor([list(self.shown)], device=device)).state, ()

    @torch.no_grad()
    def probabilities(
        self,
        texts: Sequence[Sequence[int]],
        free_of_content: Sequence[Sequence[int]],
        device: torch.device,
    ) -> np.ndarray:
        """Return the probability of each class (N, C), float64, in float32 products.

        Calibrated by the inputs without content, if there are any.
        """
        with products_in(torch.float32, self.model.encoder):
            likelihoods_NC = self.log_likelihoods(texts, device)
            free_MC = self.log_likelihoods(free_of_content, device) if free_of_content else None
        return class_probabilities(likelihoods_NC, free_MC)


def _of(label: Sequence[int], log_probs_TV: Tensor) -> Tensor:
    return log_probs_TV[torch.arange(len(label)), torch.tensor(label)].sum()


def class_probabilities(log_likelihoods_NC: np.ndarray, free_MC: np.ndarray | None) -> np.ndarray:
    """Return probabilities (N, C): of the classes alone, divided by those that an input without content has.

    Source: Zhao et al. 2021, section 5: W = diag(p)⁻¹, with p the mean over such inputs, and b = 0.
    """
    from scipy.special import log_softmax, logsumexp, softmax

    log_probs_NC = log_softmax(log_likelihoods_NC, axis=1)
    if free_MC is not None:  # in logarithms, as a class may be far less likely than a number can be small
        log_probs_NC = log_probs_NC - logsumexp(log_softmax(free_MC, axis=1), axis=0) + np.log(len(free_MC))
    probs_NC: np.ndarray = softmax(log_probs_NC, axis=1)
    return probs_NC
