"""Latency of a server at a steady rate of requests, and what a thousand bad ones leave behind.

    python benchmarks/serving.py result.json

Requests are sent when they are due, whether or not earlier ones were answered; latencies count from then on.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
from timing import finish

from tests.serve.attacks import BAD

RATE, SECONDS, CONNECTIONS = 200, 15, 64
BAD_REQUESTS = 1000
NETWORKS = ("hf:gpt2", "hf:bert-base-uncased", "torchvision:resnet50", "bert_tiny", "torchvision:vit_b_16")
DEVICES = ("a100", "h100", "t4", "l4")


@dataclass
class Server:
    """A server process, with its children."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path

    def each(self) -> list[int]:
        """Processes: the one that listens first."""
        found, own = [self.process.pid], 0
        while own < len(found):
            threads = Path(f"/proc/{found[own]}/task").glob("*/children")  # each lists those that it started
            found += [int(one) for children in threads for one in children.read_text().split()]
            own += 1
        return found

    def cpu_s(self) -> float:
        """Seconds of all processes."""
        ticks = 0
        for pid in self.each():
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def state(self) -> dict[str, int]:
        """Memory, open files, threads, processes and temporary files."""
        each = [Path(f"/proc/{pid}") for pid in self.each()]
        pages = [int((one / "statm").read_text().split()[1]) for one in each]
        scratch = self.log.parent.glob("cdmpp-serve-*/*/*")
        return {
            "listening_mb": round(pages[0] * os.sysconf("SC_PAGE_SIZE") / 1e6),
            "processes_mb": round(sum(pages[1:]) * os.sysconf("SC_PAGE_SIZE") / 1e6),
            "files": len(list((each[0] / "fd").iterdir())), "threads": len(list((each[0] / "task").iterdir())),
            "processes": len(each), "temporary": len(list(scratch)),
        }  # fmt: skip


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        server = _started(Path(folder))
        try:
            rows = asyncio.run(_loads(server))
            bad = asyncio.run(_bad(server))
            server.process.send_signal(signal.SIGTERM)
            bad["exit"] = server.process.wait(120)
            bad["tracebacks"] = server.log.read_text().count("Traceback")
        finally:
            server.process.kill()
    finish({"rate": RATE, "seconds": SECONDS, "loads": rows, "bad": bad})


def _started(folder: Path) -> Server:
    log = folder / "log.txt"
    words = [sys.executable, "-m", "cdmpp.cli", "serve", "--port", "0", "--body-mb", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(folder)}
    process = subprocess.Popen(words, cwd=folder, stderr=log.open("wb"), env=environment)
    while not (found := re.search(r"http://127.0.0.1:(\d+)", log.read_text())):
        assert process.poll() is None, log.read_text()
        time.sleep(0.1)
    return Server(process, int(found[1]), log)


async def _loads(server: Server) -> list[dict[str, Any]]:
    kept = [_network(name, device, batch) for name in NETWORKS for device in DEVICES for batch in (1, 8)]
    async with asyncio.timeout(600):
        while (await _ask(server, ("GET", "/v1/health", b"")))[0] != 200:
            await asyncio.sleep(0.5)
        for question in kept:
            assert (await _ask(server, question))[0] == 200
    numbers = count(1)
    one, many = (lambda: _operators(numbers, 1)), (lambda: _operators(numbers, 16))
    rows = [
        await _load(server, "networks that were asked for before", cycle(kept)),
        await _load(server, "one operator, never asked for", iter(one, None)),
        await _load(server, "16 operators, never asked for", iter(many, None)),
    ]
    plans = asyncio.create_task(_plans(server))
    rows.append(await _load(server, "the first, while plans are searched", cycle(kept)))
    plans.cancel()
    return rows


async def _plans(server: Server) -> None:
    for batch in count(1):
        question = {"network": "hf:gpt2", "device": "a100", "ranks": 64, "cluster": "dgx-a100",
                    "global_batch": 64 * batch}  # fmt: skip
        await _ask(server, ("POST", "/v1/plan", json.dumps(question).encode()))


Question = tuple[str, str, bytes]


def _network(name: str, device: str, batch: int) -> Question:
    asked = {"network": name, "device": device, "batch": batch, "runtime": "torch"}
    return "POST", "/v1/network", json.dumps(asked).encode()


def _operators(numbers: Iterator[int], many: int) -> Question:
    each = [{"name": "linear", "sizes": f"{64 + next(numbers)}x1024x1024"} for _ in range(many)]
    return "POST", "/v1/predict", json.dumps({"device": "h100", "programs": {"operators": each}}).encode()


async def _load(server: Server, title: str, questions: Iterator[Question]) -> dict[str, Any]:
    """Send ``RATE`` requests a second for ``SECONDS``."""
    latencies, statuses = list[float](), Counter[int]()
    free: asyncio.LifoQueue[Any] = asyncio.LifoQueue()
    for _ in range(CONNECTIONS):
        free.put_nowait(await asyncio.open_connection("127.0.0.1", server.port))

    async def send(question: Question, due_s: float) -> None:
        streams = await free.get()
        status, _ = await _exchange(streams, question)
        free.put_nowait(streams)
        latencies.append(time.perf_counter() - due_s)
        statuses[status] += 1

    before_s, begin_s, tasks = server.cpu_s(), time.perf_counter() + 0.1, []
    for number, question in enumerate(islice(questions, RATE * SECONDS)):
        due_s = begin_s + number / RATE
        await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
        tasks.append(asyncio.create_task(send(question, due_s)))
    await asyncio.gather(*tasks)
    took_s = time.perf_counter() - begin_s
    while not free.empty():
        free.get_nowait()[1].close()
    median, late, worst = np.percentile(latencies, [50, 99, 100]) * 1e3
    return {
        "load": title, "requests": len(latencies), "refused": sum(statuses.values()) - statuses[200],
        "per_s": len(latencies) / took_s, "median_ms": median, "p99_ms": late, "most_ms": worst,
        "cpu_ms": (server.cpu_s() - before_s) / len(latencies) * 1e3,
    }  # fmt: skip


async def _bad(server: Server) -> dict[str, Any]:
    """Every kind of bad request in turns; what the first 200 leave is not counted, since libraries load late."""
    kinds = [(bad.method, bad.address, bad.body, dict(bad.headers)) for bad in BAD.values()]
    wrong, statuses, before = list[str](), Counter[int](), {}
    for number, (name, kind) in enumerate(islice(cycle(zip(BAD, kinds, strict=True)), 200 + BAD_REQUESTS)):
        if number == 200:
            before = server.state()
        status, body = await _ask(server, kind[:3], kind[3])
        statuses[status] += number >= 200
        if status not in BAD[name].statuses or b"Traceback" in body:
            wrong.append(name)
    return {"requests": BAD_REQUESTS, "kinds": len(kinds), "before": before, "after": server.state(),
            "statuses": {str(key): many for key, many in sorted(statuses.items())}, "wrong": wrong}  # fmt: skip


async def _ask(server: Server, question: Question, headers: dict[str, str] | None = None) -> tuple[int, bytes]:
    streams = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        return await _exchange(streams, question, headers)
    finally:
        streams[1].close()


async def _exchange(streams: Any, question: Question, headers: dict[str, str] | None = None) -> tuple[int, bytes]:
    """Send a request and read its answer: as little of HTTP as that takes, for the client has the same cores."""
    (reader, writer), (method, address, body) = streams, question
    told = {"content-type": "application/json"} if headers is None else headers
    lines = [f"{method} {address} HTTP/1.1", "host: x", f"content-length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in told.items()]
    writer.write("\r\n".join([*lines, "", ""]).encode() + body)
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    size = re.search(rb"content-length: (\d+)", head)
    return int(head.split(None, 2)[1]), await reader.readexactly(int(size[1]) if size else 0)


if __name__ == "__main__":
    main()
