"""What the settings of a classifier, its network and its documents cannot be together."""

from __future__ import annotations

from models.family import Encoder, check_chunks, lookup
from models.mixing import LayerChoice
from pipeline.corpus.text_form import LEAST_TOKENS_OF_PAIRS
from pipeline.training.settings import ClassifierTraining


def check_classifier(
    settings: ClassifierTraining, num_texts: int, family: str, encoder: Encoder, key: str
) -> None:
    """Raise ValueError, naming `key`, the section of the settings, for what cannot be trained.

    Args:
        num_texts: of a document: 1, 2 of a pair, more with answers to choose from.
        encoder: its weights do not matter.
    """
    check_chunks(encoder.tokens_at_once(settings.bptt, settings.max_tokens), encoder, key)
    if settings.method == "contrastive":
        _check_contrastive(settings, key)
    if settings.language_model_weight:
        _check_language_model(settings, family, key)
    if settings.beside is not None:
        _check_beside(settings, num_texts, key)
    if num_texts > 1:
        _check_texts(settings, num_texts, family, encoder, key)
    if settings.pooling == "first" and not encoder.reads_ahead:
        raise ValueError(
            f"{key}.pooling is first, but {family} reads a text's first token before the rest, so it would "
            "see nothing of the text; choose last, mean or concat"
        )


def check_needs_no_validation(settings: ClassifierTraining, key: str) -> None:
    """Raise ValueError, naming `key`, for settings that a training without validation cannot follow."""
    if settings.optimizer.kind == "nt_asgd":
        raise ValueError(
            f"{key}: optimizer.kind is nt_asgd, which begins to average by the validation loss, but "
            "trainings of the label curve have none; set it to sgd or adamw"
        )


def _check_contrastive(settings: ClassifierTraining, key: str) -> None:
    """Raise ValueError for settings that do not go with a head that is fitted on top of the rest."""
    if settings.optimizer.kind == "nt_asgd":
        raise ValueError(
            f"{key}.method is contrastive, but optimizer.kind is nt_asgd, whose average of weights does not "
            "go with a fitted head; set it to sgd or adamw"
        )
    if settings.unfreeze == "head":
        raise ValueError(
            f"{key}.method is contrastive and unfreeze is head, so nothing would train; set unfreeze to "
            "full, or method to plain"
        )
    if settings.language_model_weight:
        raise ValueError(
            f"{key}.method is contrastive, which has no loss beside that of pairs, but language_model_weight "
            f"is {settings.language_model_weight}; set it to 0, or method to plain"
        )


def _check_language_model(settings: ClassifierTraining, family: str, key: str) -> None:
    """Raise ValueError for a language model whose loss cannot be added to the classifier's."""
    weight = f"{key}.language_model_weight is {settings.language_model_weight}, but"
    if lookup(family).objective != "causal":
        raise ValueError(f"{weight} {family} is not trained to predict the next token; set it to 0")
    if not LayerChoice.of(settings.layers, settings.combine).is_top:
        raise ValueError(
            f"{weight} its model reads the top layer, and layers names others; set it to 0, or layers to [-1]"
        )


def _check_beside(settings: ClassifierTraining, num_texts: int, key: str) -> None:
    """Raise ValueError for settings and documents that features of another head start do not go with."""
    beside = f"{key}.beside is {settings.beside}, but"
    if settings.method == "contrastive":
        raise ValueError(
            f"{beside} method is contrastive, which trains the network's own features alone; set "
            "beside to null, or method to plain"
        )
    if num_texts > 2:
        raise ValueError(
            f"{beside} the documents have answers to choose from, of which frozen features tell nothing; set "
            "it to null"
        )


def _check_texts(
    settings: ClassifierTraining, num_texts: int, family: str, encoder: Encoder, key: str
) -> None:
    """Raise ValueError for settings that do not go with documents of several texts."""
    if not lookup(family).takes_pairs:
        raise ValueError(
            f"{key}: documents of corpus.target have {num_texts} texts, which the family {family} does not "
            "tell apart; take this head start out of run.headstarts"
        )
    if settings.max_tokens < LEAST_TOKENS_OF_PAIRS:
        raise ValueError(
            f"{key}.max_tokens is {settings.max_tokens}, but a row of two texts has a token at its start and "
            f"one behind each; set it to at least {LEAST_TOKENS_OF_PAIRS}"
        )
    at_once = encoder.tokens_at_once(settings.bptt, settings.max_tokens)
    if encoder.has_segments and settings.max_tokens > at_once:
        raise ValueError(
            f"{key}.max_tokens is {settings.max_tokens}, but {family} reads both texts of a pair at once, "
            f"and its context is {encoder.context}; lower max_tokens, or raise config.context"
        )
    if num_texts > 2 and settings.method == "contrastive":
        raise ValueError(
            f"{key}.method is contrastive, which has no use for answers to choose from; set it to plain"
        )
