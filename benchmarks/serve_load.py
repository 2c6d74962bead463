"""Requests a second of `headstart serve`, and how long one takes, by clients at once.

    PYTHONPATH=. python benchmarks/serve_load.py --model data/classifier --texts FILE.parquet

The clients run on the same machine as the service, in one process, and each sends its next text when the
last is answered. In the last phase a replica is killed by SIGKILL; a client repeats what was not answered
with 200.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp
import polars as pl
import psutil

from benchmarks.side_by_side import ROOT, machine, markdown
from pipeline.inference.predict import Predictor


def started(arguments: argparse.Namespace) -> tuple[subprocess.Popen[str], float]:
    """Start the service; return it and the seconds until it answered."""
    command = [sys.executable, "-m", "pipeline", "serve", "--model", str(arguments.model)]
    command += ["--port", str(arguments.port), "--replicas", str(arguments.replicas)]
    begun = time.monotonic()
    service = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert service.stdout is not None
    for line in service.stdout:
        if "labels texts as" in line:
            return service, time.monotonic() - begun
    raise SystemExit("the service did not start")


async def phase(
    address: str, texts: Sequence[str], clients: int, seconds: float, killed_after: float | None = None,
    replicas: Sequence[psutil.Process] = (),
) -> dict[str, Any]:  # fmt: skip
    """Let some clients ask for so long; return the rate, the latencies in ms and the statuses."""
    taken: list[float] = []
    statuses: Counter[str] = Counter()
    lost = 0
    end = time.monotonic() + seconds

    async def client(session: aiohttp.ClientSession, number: int) -> None:
        nonlocal lost
        while time.monotonic() < end:
            body = {"texts": [texts[number % len(texts)]]}
            number += clients
            begun = time.monotonic()
            for _ in range(100):
                try:
                    async with session.post(f"{address}/predict", json=body) as answer:
                        status = answer.status
                        await answer.read()
                except aiohttp.ClientError as error:
                    statuses[type(error).__name__] += 1
                    continue
                statuses[str(status)] += 1
                if status == 200:
                    taken.append(time.monotonic() - begun)
                    break
                await asyncio.sleep(0.1)
            else:
                lost += 1

    async def killer() -> None:
        if killed_after is not None:
            await asyncio.sleep(killed_after)
            os.kill(replicas[0].pid, signal.SIGKILL)

    begun = time.monotonic()
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        await asyncio.gather(killer(), *(client(session, number) for number in range(clients)))
    spent = time.monotonic() - begun
    cuts = statistics.quantiles(taken, n=100)
    return {
        "clients": clients, "seconds": spent, "requests a second": len(taken) / spent,
        "p50, ms": 1e3 * cuts[49], "p95, ms": 1e3 * cuts[94], "p99, ms": 1e3 * cuts[98],
        "longest, ms": 1e3 * max(taken),
        "statuses": dict(statuses), "lost": lost,
    }  # fmt: skip


def alone(model: Path, texts: Sequence[str]) -> float:
    """Documents a second of the classifier by itself, one at a time."""
    predictor = Predictor.load(model)
    predictor.predict(texts[:1])
    begun, count = time.monotonic(), 0
    while time.monotonic() - begun < 5:
        predictor.predict([texts[count % len(texts)]])
        count += 1
    return count / (time.monotonic() - begun)


def replicas_of(service: subprocess.Popen[str]) -> list[psutil.Process]:
    below = psutil.Process(service.pid).children(recursive=True)
    return [process for process in below if "ServeReplica" in " ".join(process.cmdline())]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", type=Path, default=Path("data/classifier"))
    parser.add_argument("--texts", type=Path, required=True, help="a parquet file")
    parser.add_argument("--column", default="text")
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=30.0, help="of each phase")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--long", type=float, default=0.0, help="seconds more with 8 clients")
    parser.add_argument("--port", type=int, default=8123)
    parser.add_argument("--out", type=Path, default=ROOT / "reports/benchmarks/serve_load.json")
    arguments = parser.parse_args()
    texts = pl.read_parquet(arguments.texts, columns=[arguments.column])[arguments.column].to_list()[:5000]
    by_itself = alone(arguments.model, texts)
    service, start_up = started(arguments)
    address = f"http://127.0.0.1:{arguments.port}"
    phases = []
    try:
        asyncio.run(phase(address, texts, 4, 5))  # warm-up
        for clients in arguments.clients:
            phases.append(asyncio.run(phase(address, texts, clients, arguments.seconds)))
            print(json.dumps(phases[-1]), flush=True)
        if arguments.long:
            phases.append({"phase": "long"} | asyncio.run(phase(address, texts, 8, arguments.long)))
            print(json.dumps(phases[-1]), flush=True)
        replicas = replicas_of(service)
        killed = asyncio.run(phase(address, texts, 8, arguments.seconds, arguments.seconds / 3, replicas))
        phases.append({"phase": "a replica is killed"} | killed)
        print(json.dumps(phases[-1]), flush=True)
        used = [service.pid, *(child.pid for child in psutil.Process(service.pid).children(recursive=True))]
        memory = sum(psutil.Process(pid).memory_info().rss for pid in used) / 2**20
    finally:
        service.send_signal(signal.SIGTERM)
        service.wait(60)
    figures = {
        "command": " ".join(sys.argv), "machine": machine(), "replicas": arguments.replicas,
        "start-up, seconds": start_up, "memory of all processes, MB": memory,
        "the classifier by itself, one text at a time, a second": by_itself, "phases": phases,
    }  # fmt: skip
    arguments.out.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    columns = ["clients", "requests a second", "p50, ms", "p95, ms", "p99, ms", "longest, ms"]
    rows = [
        [f"{row['clients']}{', ' + row['phase'] if 'phase' in row else ''}"]
        + [f"{row[name]:,.1f}" for name in columns[1:]]
        for row in phases
    ]
    print(markdown("headstart serve", columns, rows))


if __name__ == "__main__":
    main()
