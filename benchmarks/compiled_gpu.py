"""Eager and compiled steps and a decode sweep on the GPU at hand, then next to predictions.

``python -m benchmarks.compiled_gpu measure OUT.csv`` takes at most five minutes and needs PyTorch, with Triton, and
nothing else: a GPT and a ResNet are trained eagerly and under ``torch.compile``, in float32 and under autocast to
bfloat16, and a GPT-2 decodes a token at several batches and lengths of its cache. What OUT holds is not measured again.
``python -m benchmarks.compiled_gpu compare OUT.csv DEVICE`` predicts the same modules, and prints both. It has not run
on a GPU yet: ``--tiny`` is for its test, on a CPU.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional

LIMIT_S, WARM, REPEATS = 260.0, 3, 20
"""Seconds after which no further case begins; steps before those that are timed; steps that are timed."""


class Block(nn.Module):
    """A block of GPT-2, which may attend to tokens of a cache."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.first, self.second = heads, nn.LayerNorm(width), nn.LayerNorm(width)
        self.mixed, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Any, past: Any = None) -> tuple[Any, Any]:
        batch, tokens, width = x.shape
        parts = self.mixed(self.first(x)).view(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind(0)
        if past is not None:
            key, value = torch.cat([past[0], key], 2), torch.cat([past[1], value], 2)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=past is None)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.down(functional.gelu(self.up(self.second(x)), approximate="tanh")), (key, value)


class Gpt(nn.Module):
    """Trained: ``(tokens, targets)`` -> loss. Decoding: ``(tokens, cache)`` -> logits and the new cache."""

    def __init__(self, width: int, depth: int, words: int = 50257, positions: int = 8192) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(words, width), nn.Embedding(positions, width)
        self.blocks = nn.ModuleList([Block(width, max(1, width // 64)) for _ in range(depth)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, tokens: Any, other: Any) -> Any:
        decodes = other.dim() == 6
        first = other.shape[4] if decodes else 0
        x = self.words(tokens) + self.positions(torch.arange(first, first + tokens.shape[1], device=tokens.device))
        cache = []
        for place, block in enumerate(self.blocks):
            x, kept = block(x, other[place] if decodes else None)
            cache.append(kept)
        logits = self.head(self.norm(x))
        return (logits, cache) if decodes else functional.cross_entropy(logits.flatten(0, 1).float(), other.flatten())


class Unit(nn.Module):
    """Two convolutions and a skip, as of ResNet-18."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(inside, outside, 3, stride, 1, bias=False), nn.BatchNorm2d(outside)
        self.second, self.last = nn.Conv2d(outside, outside, 3, 1, 1, bias=False), nn.BatchNorm2d(outside)
        self.skip = nn.Conv2d(inside, outside, 1, stride, bias=False) if stride > 1 else nn.Identity()

    def forward(self, x: Any) -> Any:
        return functional.relu(self.last(self.second(functional.relu(self.norm(self.first(x))))) + self.skip(x))


class ResNet(nn.Module):
    """ResNet-18 but for norms of its skips: ``(images, classes)`` -> loss."""

    def __init__(self, width: int) -> None:
        super().__init__()
        sizes = [(width, width, 1), (width, width, 1)]
        for inside in (width, 2 * width, 4 * width):
            sizes += [(inside, 2 * inside, 2), (2 * inside, 2 * inside, 1)]
        self.stem = nn.Sequential(nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        self.body, self.head = nn.Sequential(*(Unit(*one) for one in sizes)), nn.Linear(8 * width, 1000)

    def forward(self, images: Any, classes: Any) -> Any:
        x = self.body(functional.max_pool2d(self.stem(images), 3, 2, 1))
        return functional.cross_entropy(self.head(x.mean((2, 3))).float(), classes)


class Case(NamedTuple):
    """One question; its fields are the first columns of the CSV."""

    network: str
    """``gpt``, ``resnet`` or ``decode``."""
    runtime: str
    """``torch`` or ``torch-compile``."""
    precision: str
    batch: int
    past: int
    """Tokens in the cache of one that decodes; 0: a training step."""
    size: str
    """``whole`` or ``tiny``."""


def cases(tiny: bool) -> Iterator[Case]:
    """Yield the questions, those that tell most first."""
    size = "tiny" if tiny else "whole"
    for precision in ("bf16-autocast", "fp32"):
        for network, batch in (("gpt", 2 if tiny else 8), ("resnet", 2 if tiny else 64)):
            for runtime in ("torch", "torch-compile"):
                yield Case(network, runtime, precision, batch, 0, size)
    for batch in (1, 2) if tiny else (1, 8, 32):
        for past in (4, 16) if tiny else (128, 1024, 4096):
            yield Case("decode", "torch", "bf16", batch, past, size)


def made(case: Case, place: str) -> tuple[nn.Module, tuple[Any, ...]]:
    """Return the module of a case and what it is called with."""
    torch.manual_seed(0)
    is_tiny = case.size == "tiny"
    width, depth, words = (64, 2, 100) if is_tiny else (768, 12 if case.past else 6, 50257)
    with torch.device(place):
        if case.network == "resnet":
            side = 32 if is_tiny else 224
            inputs = torch.rand(case.batch, 3, side, side), torch.randint(0, 1000, (case.batch,))
            return ResNet(8 if is_tiny else 64), inputs
        module = Gpt(width, depth, words)
        if not case.past:
            tokens = (case.batch, 16 if is_tiny else 512)
            return module, (torch.randint(0, words, tokens), torch.randint(0, words, tokens))
        heads = max(1, width // 64)
        cache = torch.randn(depth, 2, case.batch, heads, case.past, width // heads, dtype=torch.bfloat16)
        return module.eval().bfloat16(), (torch.randint(0, words, (case.batch, 1)), cache)


def run_of(case: Case, place: str, backend: str) -> Callable[[], Any]:
    """Return what is timed: a training step with AdamW, or one decoded token."""
    module, inputs = made(case, place)
    called: Any = torch.compile(module, fullgraph=True, backend=backend) if case.runtime == "torch-compile" else module
    if case.past:

        def decode() -> None:
            with torch.no_grad():
                called(*inputs)

        return decode
    optimizer = torch.optim.AdamW(module.parameters())

    def step() -> None:
        optimizer.zero_grad()
        region: AbstractContextManager[Any] = nullcontext()
        if case.precision == "bf16-autocast":
            region = torch.autocast(place, torch.bfloat16)
        with region:
            loss = called(*inputs)
        loss.backward()
        optimizer.step()

    return step


def timed(run: Callable[[], Any], place: str, repeats: int) -> list[float]:
    """Seconds of each repeat, from an idle device to an idle device."""
    wait = torch.cuda.synchronize if place == "cuda" else lambda: None
    found = []
    for repeat in range(WARM + repeats):
        wait()
        begin_s = time.perf_counter()
        run()
        wait()
        if repeat >= WARM:
            found.append(time.perf_counter() - begin_s)
    return found


COLUMNS = (*Case._fields, "median_s", "least_s", "most_s", "repeats", "peak_bytes", "gpu", "torch")


def measure(options: argparse.Namespace) -> None:
    """Time all cases that the file does not have, as long as there is time."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False  # fp32 is float32
    rows = list(csv.DictReader(options.file.open())) if options.file.exists() else []
    done, begin_s = {tuple(row[name] for name in Case._fields) for row in rows}, time.perf_counter()
    for case in cases(options.tiny):
        if tuple(map(str, case)) in done:
            continue
        if time.perf_counter() - begin_s > LIMIT_S:
            print("stopped: the time is up; run it again for the rest")
            return
        torch._dynamo.reset()
        if options.device == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        seconds = timed(run_of(case, options.device, options.backend), options.device, options.repeats)
        peak = torch.cuda.max_memory_allocated() if options.device == "cuda" else 0
        gpu = torch.cuda.get_device_name(0) if options.device == "cuda" else "cpu"
        times = statistics.median(seconds), min(seconds), max(seconds)
        row = (*case, *times, len(seconds), peak, gpu, torch.__version__)
        is_new = not options.file.exists()
        with options.file.open("a", newline="") as file:
            writer = csv.writer(file)
            writer.writerows([COLUMNS, row] if is_new else [row])
        print(case, f"{1e3 * statistics.median(seconds):.2f} ms", flush=True)


def compare(options: argparse.Namespace) -> None:
    """Predict what was measured, and print both as a table in Markdown."""
    import cdmpp
    from benchmarks.publish.markdown import table

    rows = []
    for row in csv.DictReader(options.file.open()):
        case = Case(row["network"], row["runtime"], row["precision"], int(row["batch"]), int(row["past"]), row["size"])
        module, inputs = made(case, "cpu")
        ask = {"device": options.device, "runtime": case.runtime, "progress": False}
        if case.past:
            seconds = cdmpp.predict_network(cdmpp.Workload(module, inputs), **ask).latency_s
            peak = 0
        else:
            loss = lambda output: output  # noqa: E731  # the module returns it
            workload = cdmpp.Workload(module, inputs, loss=loss, precision=case.precision, mode="training_step")
            found = cdmpp.predict_step(workload, **ask)
            seconds, peak = found.latency_s, found.step.peak_bytes
        told = float(row["median_s"])
        held = int(row["peak_bytes"])
        rows.append((
            *row.values(), f"{1e3 * told:.2f}", f"{1e3 * seconds:.2f}", f"{100 * (seconds / told - 1):+.0f}",
            f"{peak / held:.2f}" if held and peak else "",
        ))  # fmt: skip
    shown = [(*row[:5], *row[-4:]) for row in rows]
    heads = [*Case._fields[:5], "measured, ms", "predicted, ms", "off, %", "peak, predicted over held"]
    print("\n".join(table(heads, shown, left=3)))


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    verbs = parser.add_subparsers(required=True)
    measured = verbs.add_parser("measure")
    measured.add_argument("file", type=Path)
    measured.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    measured.add_argument("--tiny", action="store_true", help="small networks")
    measured.add_argument("--backend", default="inductor", help="of torch.compile")
    measured.add_argument("--repeats", type=int, default=REPEATS)
    measured.set_defaults(run=measure)
    compared = verbs.add_parser("compare")
    compared.add_argument("file", type=Path)
    compared.add_argument("device", help="as conf/device names it, such as h100")
    compared.set_defaults(run=compare)
    options = parser.parse_args(arguments)
    options.run(options)


if __name__ == "__main__":
    main()
