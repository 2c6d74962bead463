"""Distillation against its equations, and what a student begins as."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from models.distillation import (
    Distillation,
    Teacher,
    begin_from_teacher,
    chosen_layers,
    cosine_loss,
    joined_states,
    soft_loss,
    split_states,
    token_losses,
    token_losses_plain,
)
from models.family import lookup
from models.heads import Decoding, LanguageModel
from tests.families import model_of

_N, _V = 1100, 37  # more than two chunks of rows


def decoding(rng: torch.Generator, width: int) -> Decoding:
    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=rng)

    return Decoding(drawn(_N, width), drawn(_V, width), drawn(_V))


def drawn_decodings() -> tuple[Decoding, Decoding, Tensor]:
    rng = torch.Generator().manual_seed(1)
    student, teacher = decoding(rng, 5), decoding(rng, 8)
    return student, teacher, torch.randint(_V, (_N,), generator=rng)


@pytest.mark.parametrize("weights", [(2.0, 5.0, 2.0), (1.0, 1.0, 0.0), (4.0, 0.0, 3.0)])
def test_losses_in_chunks_and_their_gradients_are_those_of_the_plain_form(weights):
    student, teacher, targets = drawn_decodings()
    found: list[list[Tensor]] = []
    for form in (token_losses_plain, token_losses):
        own = [tensor.clone().requires_grad_() for tensor in student]
        objective, nats = form(Decoding(*own), teacher, targets, Distillation(*weights))
        (3 * objective).backward()
        found.append([objective.detach(), nats, *(tensor.grad for tensor in own)])  # type: ignore[list-item]
    for plain, chunked in zip(*found, strict=True):
        torch.testing.assert_close(chunked, plain, rtol=2e-5, atol=2e-4)


def test_the_soft_loss_is_the_divergence_of_softened_distributions_times_the_square_of_the_temperature():
    """Hinton et al. 2015, equation 1: q = exp(z / T) / sum exp(z / T)."""
    z, v = np.array([[1.0, -2.0, 0.5]]), np.array([[0.0, 1.0, 3.0]])
    temperature = 3.0
    q, p = (np.exp(each / temperature) / np.exp(each / temperature).sum() for each in (z, v))
    wanted = temperature**2 * float((p * np.log(p / q)).sum())
    found = soft_loss(torch.from_numpy(z), torch.from_numpy(v), temperature)
    assert float(found) == pytest.approx(wanted)
    # Log probabilities of the teacher serve as well as its logits.
    assert float(soft_loss(torch.from_numpy(z), torch.from_numpy(v).log_softmax(1), temperature)) == (
        pytest.approx(wanted)
    )


def test_at_a_high_temperature_its_gradient_is_the_difference_of_logits_over_their_number():
    """Hinton et al. 2015, equation 4, for logits of mean zero; T² takes out their factor 1 / T²."""
    rng = torch.Generator().manual_seed(2)
    logits = torch.randn(4, 6, generator=rng, dtype=torch.float64)
    taught = torch.randn(4, 6, generator=rng, dtype=torch.float64)
    logits, taught = (each - each.mean(1, keepdim=True) for each in (logits, taught))
    logits.requires_grad_()
    soft_loss(logits, taught, 1e3).backward()
    torch.testing.assert_close(logits.grad, (logits.detach() - taught) / 6, rtol=1e-2, atol=1e-3)


def test_a_student_that_is_its_teacher_has_nothing_to_learn_of_it():
    student, _, targets = drawn_decodings()
    own = [tensor.clone().requires_grad_() for tensor in student]
    objective, _ = token_losses(Decoding(*own), student, targets, Distillation(2.0, soft=5.0, hard=0.0))
    objective.backward()
    assert abs(float(objective.detach())) < 1e-3
    assert all(float(tensor.grad.abs().max()) < 1e-4 for tensor in own if tensor.grad is not None)


def test_the_cosine_loss_is_that_of_torch():
    rng = torch.Generator().manual_seed(3)
    ours, theirs = (torch.randn(7, 4, generator=rng) for _ in range(2))
    wanted = F.cosine_embedding_loss(ours, theirs, torch.ones(7), reduction="sum")
    torch.testing.assert_close(cosine_loss(ours, theirs), wanted)


def test_states_of_student_and_teacher_are_carried_as_one():
    own, taught = (torch.ones(3, 2), torch.ones(3, 1)), (torch.zeros(3, 4, 5),)
    for ours, theirs in ((own, taught), (own, ()), ((), taught), ((), ())):
        found = split_states(joined_states(ours, theirs))
        assert [len(each) for each in found] == [len(ours), len(theirs)]
        assert all(a is b for a, b in zip([*found[0], *found[1]], [*ours, *theirs], strict=True))


def test_every_second_layer_of_twice_as_many_is_taken():
    assert chosen_layers(3, 6) == [0, 2, 4]
    assert chosen_layers(6, 12) == [0, 2, 4, 6, 8, 10]
    assert chosen_layers(2, 6) == [0, 3]
    assert chosen_layers(4, 2) == [0, 0, 1, 1]


def language_model(family: str, **config: int) -> LanguageModel:
    model = model_of(family, **config)
    described = lookup(family)
    encoder = described.build(described.config(**model.config), 20)
    return LanguageModel(encoder, tie_weights=True)


def test_a_student_begins_as_its_teachers_layers_and_embedding():
    teacher, student = (language_model("gpt", num_layers=each) for each in (4, 2))
    taught = teacher.state_dict()
    begun, share = begin_from_teacher(student.state_dict(), taught)
    assert share == 1.0
    for name, tensor in begun.items():
        source = name.replace("layers.1.", "layers.2.")
        assert torch.equal(tensor, taught[source]), name


def test_of_another_shape_a_student_begins_with_nothing_of_its_teacher():
    teacher, student = language_model("gpt", embedding_dim=8), language_model("gpt", embedding_dim=4)
    own = student.state_dict()
    begun, share = begin_from_teacher(own, teacher.state_dict())
    different = {name for name, tensor in begun.items() if not torch.equal(tensor, own[name])}
    assert not different - {name for name in own if own[name].shape == teacher.state_dict()[name].shape}
    assert share < 0.5


def test_a_teacher_reads_on_where_it_stopped():
    torch.manual_seed(0)
    teacher = Teacher(language_model("transformer_xl").eval(), Distillation(2.0, 5.0, 2.0))
    ids_BT = torch.randint(20, (2, 12))
    first = teacher.read(ids_BT[:, :6])
    second = teacher.read(ids_BT[:, 6:], split_states(joined_states((), first.state))[1])
    assert not torch.allclose(second.features, teacher.read(ids_BT[:, 6:]).features)
    assert not second.features.requires_grad
