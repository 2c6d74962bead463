"""Part `speed`: training steps of this project's networks, beside other libraries' on the same card."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import Any

import numpy as np
import torch

from benchmarks.contestants._timing import SIZES
from benchmarks.gpu_parts.call import Call
from benchmarks.side_by_side import PEERS, Contestant, ContestantStoppedError, Figures, summary


def speed(call: Call) -> dict[str, Any]:
    """Return tokens a second of training steps by contestant, and the rate of the fastest product.

    All contestants have their first round before any has its second.
    """
    figures = call.earlier_figures() or {
        "bf16 product, GFLOP/s": _fastest_product(call.device, 256 if call.tiny else 8192),
        "weights of AWD-LSTM": SIZES[_size_of_awd_lstm(call)].weights_multiplied,
        "share of the bf16 product": {},
        "contestants": {},
    }
    figures["failed"] = {}
    call.write(figures)
    waiting = {
        contestant.name: contestant
        for contestant in _present(call)
        if contestant.name not in figures["contestants"]
    }
    rows: dict[str, list[Figures]] = defaultdict(list)
    for number in range(_num_rounds(call)):
        for name in call.while_time_lasts(waiting):
            if name not in figures["failed"]:
                _run(waiting[name], number, rows[name], figures, call)
                call.write(figures)
    return figures


def _num_rounds(call: Call) -> int:
    if call.arguments.rounds is not None:
        return int(call.arguments.rounds)
    return 1 if call.tiny or call.part != call.arguments.part else 3  # in `all` other parts need the time


def _run(
    contestant: Contestant, number: int, rows: list[Figures], figures: dict[str, Any], call: Call
) -> None:
    """Add a round of a contestant to its rows and to the figures."""
    name = contestant.name
    try:
        rows.append(contestant.run(call.must_stop_now))
    except ContestantStoppedError:
        call.left_out[name] = call.reason_to_stop() or "stopped"
        return
    except SystemExit as error:
        figures["failed"][name] = str(error)[-1000:]
        print(f"{name} failed", flush=True)
        return
    line = ", ".join(f"{key} {value:,.4g}" for key, value in rows[-1].items())
    print(f"round {number + 1}, {name}: {line}", flush=True)
    rates = figures["contestants"][name] = summary(rows)
    if "gflop_per_second" in rates:
        share = rates["gflop_per_second"]["median"] / figures["bf16 product, GFLOP/s"]
        figures["share of the bf16 product"][name] = share


def _present(call: Call) -> list[Contestant]:
    """The contestants that can run here. Notes why the others are left out."""
    present = []
    for contestant in _contestants(call):
        if not contestant.peer or (call.arguments.peers and PEERS.exists()):
            present.append(contestant)
            continue
        why = f"{PEERS.name} is missing; run `make peers`" if call.arguments.peers else "--no-peers"
        print(f"{contestant.name}: left out, {why}", flush=True)
        call.left_out[contestant.name] = why
    return present


def _contestants(call: Call) -> list[Contestant]:
    """All contestants, each peer beside ours; dropout is on for everyone."""
    steps = ["--precision", "bf16", "--steps", "1" if call.tiny else "20"]
    lstm = ["--size", _size_of_awd_lstm(call), *steps]
    contestants = [
        Contestant("AWD-LSTM bf16", "language_model_headstart.py", [*lstm, "--profile"]),
        Contestant("fastai AWD-LSTM bf16", "language_model_fastai.py", lstm, peer=True),
    ]
    rows, tokens = ("4", "32") if call.tiny else ("32", "512")
    size = ["--size", "tiny" if call.tiny else "12x768", *steps, "--rows", rows, "--tokens", tokens]
    # The compiler takes long on a CPU.
    ways: dict[str, list[str]] = {"": []} if call.tiny else {"": [], ", compile": ["--compile"]}
    for family in ("gpt", "bert"):
        named = ["--family", family, *size, "--profile"]
        for way, flags in ways.items():
            contestants += [
                Contestant(f"{family} bf16{way}", "transformer_headstart.py", [*named, *flags]),
                Contestant(
                    f"transformers {family} bf16{way}", "transformer_hugging_face.py",
                    [*named, *flags], peer=True,
                ),
            ]  # fmt: skip
    gpt = ["--family", "gpt", *size, "--profile"]
    contestants += [
        Contestant("gpt bf16, recompute_layers", "transformer_headstart.py", [*gpt, "--recompute-layers"]),
        Contestant("gpt bf16, micro_batch_rows", "transformer_headstart.py", [*gpt, "--micro-rows", "4"]),
    ]
    return contestants


def _size_of_awd_lstm(call: Call) -> str:
    return "tiny" if call.tiny else "a"


def _fastest_product(device: torch.device, width: int) -> float:
    left, right = (torch.randn(width, width, device=device, dtype=torch.bfloat16) for _ in range(2))
    best = np.inf
    for _ in range(10):
        began = time.perf_counter()
        product = left @ right
        float(product[0, 0])  # waits for the device
        best = min(best, time.perf_counter() - began)
    return float(2 * width**3 / best / 1e9)
