"""The copy task of Graves et al. 2014 (section 4.1): a Neural Turing Machine, an LSTM of as many parameters.

A sequence of random bits is read, then an end mark, then the same sequence is to be given out. Both train on
sequences of 1 to 20 vectors, one after the other, for the same minutes; they are judged on new ones, some of
them longer.

    PYTHONPATH=. python benchmarks/copy_task.py

Beside the figures in `--out`, a picture shows them; `--draw` alone draws those that are there again.

Shapes: B sequences, T vectors, K bits of a vector.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from models.ntm import Config, Machine

NUM_BITS, LONGEST, JUDGED_ON = 8, 20, (10, 20, 30, 40)


class MachineCopier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        config = Config(hidden_dim=100, num_slots=128, slot_dim=20, controller="lstm")
        self.machine = Machine(config, NUM_BITS + 2)
        self.out = nn.Linear(self.machine.output_dim, NUM_BITS)

    def forward(self, x_BTI: Tensor) -> Tensor:
        state, outputs = self.machine.initial_state(len(x_BTI)), []
        for x_BI in x_BTI.unbind(1):
            output, state = self.machine(x_BI, state)
            outputs.append(output)
        logits: Tensor = self.out(torch.stack(outputs, 1))
        return logits


class LSTMCopier(nn.Module):
    def __init__(self, hidden_dim: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(NUM_BITS + 2, hidden_dim, batch_first=True)
        self.out = nn.Linear(hidden_dim, NUM_BITS)

    def forward(self, x_BTI: Tensor) -> Tensor:
        logits: Tensor = self.out(self.lstm(x_BTI)[0])
        return logits


def sequences(num: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return what is read, (B, 2 L + 2, K + 2), and the bits to be given out, (B, L, K)."""
    bits = torch.randint(2, (num, length, NUM_BITS), generator=generator).float()
    read = torch.zeros(num, 2 * length + 2, NUM_BITS + 2)
    read[:, 0, NUM_BITS] = 1  # start
    read[:, 1 : length + 1, :NUM_BITS] = bits
    read[:, length + 1, NUM_BITS + 1] = 1  # end
    return read, bits


def logits_of(model: nn.Module, read: Tensor, length: int) -> Tensor:
    logits: Tensor = model(read)[:, -length:]
    return logits


@torch.no_grad()
def judged(model: nn.Module, length: int) -> dict[str, float]:
    """Return the mean cost and number of wrong bits of a sequence, over 100 that no training saw."""
    read, bits = sequences(100, length, torch.Generator().manual_seed(10_000 + length))
    logits = logits_of(model, read, length)
    nats = nn.functional.binary_cross_entropy_with_logits(logits, bits, reduction="sum")
    wrong = (logits > 0) != (bits > 0.5)
    return {"cost_bits": float(nats) / math.log(2) / 100, "wrong_bits": float(wrong.float().sum()) / 100}


def train(model: nn.Module, minutes: float, seed: int, lr: float, name: str) -> dict[str, object]:
    generator, begun = torch.Generator().manual_seed(seed), time.monotonic()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=lr, momentum=0.9)
    curve, step = [], 0
    while (spent := time.monotonic() - begun) < 60 * minutes:
        length = int(torch.randint(1, LONGEST + 1, (), generator=generator))
        read, bits = sequences(16, length, generator)
        loss = nn.functional.binary_cross_entropy_with_logits(logits_of(model, read, length), bits)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        optimizer.step()
        step += 1
        if step % 250 == 0:
            curve.append({"step": step, "minutes": round(spent / 60, 2), **judged(model, 20)})
            print(name, curve[-1], f"{loss.item():.5f}", flush=True)
    return {
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "steps": step,
        "by_length": {length: judged(model, length) for length in JUDGED_ON},
        "curve": curve,
    }


def draw(results: dict[str, Any], file: Path) -> None:
    """Draw the cost of 20 vectors over the minutes, and at the end that of sequences by their length."""
    import altair as alt

    names = {"machine": "Neural Turing Machine", "lstm": "LSTM of as many parameters"}
    learned = [
        {"network": names[name], "minutes": point["minutes"], "bits": point["cost_bits"]}
        for name, figures in results.items()
        for point in figures["curve"]
    ]
    by_length = [
        {"network": names[name], "vectors": int(length), "bits": scores["cost_bits"]}
        for name, figures in results.items()
        for length, scores in figures["by_length"].items()
    ]
    cost = alt.Y("bits:Q", scale=alt.Scale(type="log"), title="cost, bits a sequence")
    network = alt.Color("network:N", title=None, legend=alt.Legend(orient="top"))
    over_time = alt.Chart(alt.Data(values=learned), title="20 vectors, while it trains").mark_line()
    lengths = alt.Chart(alt.Data(values=by_length), title="at the end, trained on up to 20 vectors")
    goal = alt.Chart(alt.Data(values=[{"bits": 0.1}])).mark_rule(strokeDash=[4, 4]).encode(y="bits:Q")
    panels = (
        over_time.encode(x=alt.X("minutes:Q"), y=cost, color=network) + goal,
        lengths.mark_line(point=True).encode(x=alt.X("vectors:Q"), y=cost, color=network) + goal,
    )
    sized = [panel.properties(width=380, height=260) for panel in panels]
    alt.hconcat(*sized).save(str(file), scale_factor=2)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--minutes", type=float, default=5.0)
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--lr", type=float, default=1e-3)
    arguments.add_argument("--threads", type=int, default=1)
    arguments.add_argument("--only", choices=["machine", "lstm"])
    arguments.add_argument("--out", type=Path, default=Path("reports/benchmarks/copy_task.json"))
    arguments.add_argument("--draw", action="store_true")
    given = arguments.parse_args()
    if given.draw:
        draw(json.loads(given.out.read_text(encoding="utf-8")), given.out.with_suffix(".png"))
        return
    torch.set_num_threads(given.threads)
    torch.manual_seed(given.seed)
    machine = MachineCopier()
    wanted = sum(weight.numel() for weight in machine.parameters())
    sizes = range(10, 400)
    num_of = {size: sum(w.numel() for w in LSTMCopier(size).parameters()) for size in sizes}
    models = {"machine": machine, "lstm": LSTMCopier(min(sizes, key=lambda size: abs(num_of[size] - wanted)))}
    chosen = {name: model for name, model in models.items() if given.only in (None, name)}
    results = {
        name: train(model, given.minutes, given.seed, given.lr, name) for name, model in chosen.items()
    }
    given.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    draw(results, given.out.with_suffix(".png"))
    for name, result in results.items():
        print(name, result["parameters"], "parameters,", result["steps"], "steps:", result["by_length"])


if __name__ == "__main__":
    main()
