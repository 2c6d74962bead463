"""The Neural Turing Machine: the equations of the paper one by one, memory as state, a copy it learns."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from models.layers import GlobalBatch
from models.ntm import (
    NTM,
    Addressing,
    Config,
    Machine,
    address,
    by_content,
    interpolated,
    layer_groups,
    sharpened,
    shifted,
    written,
)

CONFIG = Config(
    embedding_dim=6, hidden_dim=7, num_slots=5, slot_dim=4, read_heads=2, write_heads=2,
    input_dropout=0.2, output_dropout=0.2,
)  # fmt: skip


def random(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def weights(*shape: int, seed: int = 1) -> Tensor:
    return random(*shape, seed=seed).softmax(-1)


def test_content_is_the_softmax_of_strength_times_cosine():
    """Equations 5 and 6."""
    memory, key, strength = random(2, 5, 4), random(2, 3, 4, seed=2), torch.rand(2, 3) * 4
    found = by_content(memory, key, strength)
    for row in range(2):
        for head in range(3):
            k, beta = key[row, head], strength[row, head]
            powers = [
                math.exp(beta * (k @ memory[row, i]) / (k.norm() * memory[row, i].norm())) for i in range(5)
            ]
            wanted = torch.tensor(powers) / sum(powers)
            torch.testing.assert_close(found[row, head], wanted)


def test_the_gate_chooses_between_content_and_the_place_before():
    """Equation 7."""
    content, before = weights(1, 2, 5), weights(1, 2, 5, seed=2)
    found = interpolated(content, before, torch.tensor([[1.0, 0.25]]))
    torch.testing.assert_close(found[0, 0], content[0, 0])
    torch.testing.assert_close(found[0, 1], 0.25 * content[0, 1] + 0.75 * before[0, 1])


def test_shifts_are_a_circular_convolution():
    """Equation 8: w(i) = sum_j w(j) s(i - j), the indices modulo N."""
    weighting, shifts = weights(2, 3, 5), weights(2, 3, 3, seed=2)
    found = shifted(weighting, shifts)
    for row in range(2):
        for head in range(3):
            for i in range(5):
                wanted = sum(
                    float(weighting[row, head, j]) * float(shifts[row, head, (i - j + 1) % 5])
                    for j in range(5)
                    if (i - j + 1) % 5 < 3
                )
                assert float(found[row, head, i]) == pytest.approx(wanted, abs=1e-6)
    one = torch.eye(5)[None, None, 4]
    assert shifted(one, torch.tensor([[[0.0, 0.0, 1.0]]])).argmax() == 0  # on from the last slot: the first


def test_sharpening_raises_to_a_power_and_scales():
    """Equation 9."""
    weighting, sharpness = weights(2, 3, 5), 1 + torch.rand(2, 3) * 5
    found = sharpened(weighting, sharpness)
    wanted = weighting ** sharpness[..., None]
    torch.testing.assert_close(found, wanted / wanted.sum(-1, keepdim=True))
    torch.testing.assert_close(sharpened(weighting, torch.ones(2, 3)), weighting)
    nowhere = torch.eye(5)[None, None, 1].requires_grad_(True)
    sharpened(nowhere, torch.tensor([[7.0]])).sum().backward()
    assert nowhere.grad is not None
    assert torch.isfinite(nowhere.grad).all()


def test_a_head_erases_and_adds_where_it_looks():
    """Equations 3 and 4."""
    memory, weighting = random(2, 5, 4), weights(2, 2, 5)
    erase, add = random(2, 2, 4, seed=3).sigmoid(), random(2, 2, 4, seed=4)
    found = written(memory, weighting, erase, add)
    for row in range(2):
        for i in range(5):
            kept = memory[row, i].clone()
            for head in range(2):
                kept = kept * (1 - weighting[row, head, i] * erase[row, head])
            wanted = kept + sum(weighting[row, head, i] * add[row, head] for head in range(2))
            torch.testing.assert_close(found[row, i], wanted)
    there = torch.eye(5)[None, None, 2]
    swapped = written(memory[:1], there, torch.ones(1, 1, 4), torch.full((1, 1, 4), 7.0))
    assert (swapped[0, 2] == 7).all()
    assert torch.equal(swapped[0, [0, 1, 3, 4]], memory[0, [0, 1, 3, 4]])


def test_a_head_can_go_on_slot_by_slot_or_find_what_it_seeks():
    memory = torch.eye(5)[None] * 3
    before = torch.eye(5)[None, None, 3]
    key = torch.eye(5)[None, None, 1]
    sharp = torch.tensor([[20.0]])
    on = torch.tensor([[[0.0, 0.0, 1.0]]])
    stay = torch.tensor([[[0.0, 1.0, 0.0]]])
    strong, open_gate, shut = torch.tensor([[50.0]]), torch.tensor([[1.0]]), torch.tensor([[0.0]])
    assert address(memory, before, Addressing(key, strong, shut, on, sharp)).argmax() == 4
    assert address(memory, before, Addressing(key, strong, open_gate, stay, sharp)).argmax() == 1
    assert address(memory, before, Addressing(key, strong, open_gate, on, sharp)).argmax() == 2


@pytest.mark.parametrize("controller", ["lstm", "feedforward"])
def test_a_step_is_controller_then_heads_then_reading(controller):
    torch.manual_seed(1)
    machine = Machine(replace(CONFIG, controller=controller), 6)
    state = machine.initial_state(3)
    assert len(state) == (5 if controller == "lstm" else 3)
    with torch.no_grad():
        for step in range(3):
            before = state
            output, state = machine(random(3, 6, seed=step), before)
            read = torch.cat([random(3, 6, seed=step), before[2].flatten(1)], -1)
            hidden = (
                machine.controller(read, before[3:])[0]
                if controller == "lstm"
                else machine.controller(read).tanh()
            )
            torch.testing.assert_close(output[:, :7], hidden)
            torch.testing.assert_close(output[:, 7:], state[2].flatten(1))
            torch.testing.assert_close(state[2], state[1][:, :2] @ state[0])  # equation 2
            torch.testing.assert_close(state[1].sum(-1), torch.ones(3, 4))
            # The heads are placed by the memory before it is written.
            torch.testing.assert_close(state[1], address(before[0], before[1], machine._addressing(hidden)))
            assert not torch.equal(state[0], before[0])


def test_the_memory_goes_on_from_segment_to_segment():
    torch.manual_seed(1)
    encoder = NTM(CONFIG, 20).eval()
    ids = torch.arange(12).reshape(2, 6)
    whole = encoder(ids)
    first = encoder(ids[:, :4])
    second = encoder(ids[:, 4:], state=first.state)
    torch.testing.assert_close(torch.cat([first.features, second.features], 1), whole.features)
    for ours, theirs in zip(second.state, whole.state, strict=True):
        torch.testing.assert_close(ours, theirs)
    assert not torch.allclose(encoder(ids[:, 4:]).features, second.features)
    assert [state.shape[0] for state in encoder.initial_state(2)] == [2] * 5
    batch = GlobalBatch(1, 0, 2, slice(0, 2))
    assert not torch.equal(encoder(ids, batch=batch).features, whole.features)


def test_every_parameter_is_in_one_group_and_bad_settings_are_refused():
    encoder = NTM(CONFIG, 20)
    found = [id(weight) for group in layer_groups(encoder) for weight in group]
    assert sorted(found) == sorted(id(weight) for weight in encoder.parameters())
    assert replace(CONFIG, tie_weights=False).scaled_dropout(2).input_dropout == pytest.approx(0.4)
    for changes, said in (
        ({"num_slots": 0}, "num_slots is 0"),
        ({"max_shift": 3}, "max_shift is 3, of 5 slots"),
        ({"output_dropout": 1.0}, r"output_dropout is 1\.0"),
    ):
        with pytest.raises(ValueError, match=said):
            replace(CONFIG, **changes)


@pytest.mark.slow
def test_it_learns_to_copy_and_copies_longer_sequences_than_it_saw():
    """Section 4.1, small: 4 bits, trained on up to 6 vectors; the benchmark has 8 bits, and up to 20."""
    torch.manual_seed(1)
    machine = Machine(Config(hidden_dim=32, num_slots=20, slot_dim=8), 6)
    out = torch.nn.Linear(machine.output_dim, 4)
    parameters = [*machine.parameters(), *out.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=0.005)
    generator = torch.Generator().manual_seed(1)

    def copied(num: int, length: int) -> tuple[Tensor, Tensor]:
        bits = torch.randint(2, (num, length, 4), generator=generator).float()
        read = torch.zeros(num, 2 * length + 2, 6)
        read[:, 0, 4] = read[:, length + 1, 5] = 1
        read[:, 1 : length + 1, :4] = bits
        state, outputs = machine.initial_state(num), []
        for x in read.unbind(1):
            output, state = machine(x, state)
            outputs.append(output)
        return out(torch.stack(outputs[-length:], 1)), bits

    for _ in range(1200):
        logits, bits = copied(16, int(torch.randint(1, 7, (), generator=generator)))
        optimizer.zero_grad()
        torch.nn.functional.binary_cross_entropy_with_logits(logits, bits).backward()
        torch.nn.utils.clip_grad_norm_(parameters, 10.0)
        optimizer.step()
    with torch.no_grad():
        wrong = {}
        for length in (6, 9):
            logits, bits = copied(50, length)
            wrong[length] = float(((logits > 0) != (bits > 0.5)).float().mean())
    assert wrong[6] < 0.01
    assert wrong[9] < 0.1  # half would be chance
