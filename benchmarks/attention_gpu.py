"""Fused attention on the GPU at hand: ``python -m benchmarks.attention_gpu DEVICE OUT``, five minutes on an H100.

Each line of OUT is a call: the device as ``conf/device`` names it, an operator as JSON (``EagerOperator.to_json``),
seconds of its repeats, and what ran it: GPU, torch, cuDNN, clocks before and after. Forward and backward stand apart.
Copied to ``conf/attention/DEVICE.jsonl``, it answers before what was published. It has not run yet: `--tiny` is for its
test, on a CPU.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from cdmpp import devices
from cdmpp.operators.attention import BACKWARD, kind_name
from cdmpp.operators.attention_rules import AttentionCall, backend_of, why_not
from cdmpp.operators.operator import EagerOperator

KERNELS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}
TOKENS, LIMIT_S, WARM = 16384, 270.0, 3
"""Tokens of a call, as in FlashAttention's papers; seconds after which no further call begins; calls before clocks."""


class Shape(NamedTuple):
    """One question."""

    backend: str
    dtype: torch.dtype
    batch: int
    heads: int
    kv_heads: int
    rows: int
    cols: int
    inner: int
    causal: bool


def shapes(tiny: bool = False) -> Iterator[Shape]:
    """Yield the questions, those that tell most first: sequences, head sizes, masks; then groups, batches, queries."""
    if tiny:
        for causal in (False, True):
            yield Shape("flash", torch.float32, 2, 2, 2, 16, 16, 8, causal)
        return
    halves = torch.bfloat16
    for sequence in (512, 1024, 2048, 4096, 8192):
        for inner in (64, 128):
            for backend, dtype in (("flash", halves), ("cudnn", halves), ("efficient", torch.float32)):
                for causal in (True, False):
                    heads = 2048 // inner
                    yield Shape(backend, dtype, TOKENS // sequence, heads, heads, sequence, sequence, inner, causal)
    for backend, dtype, inner, sequence in (
        ("flash", halves, 256, 2048), ("cudnn", halves, 256, 2048), ("flash", torch.float16, 128, 2048),
        ("cudnn", torch.float16, 128, 2048), ("efficient", halves, 64, 2048), ("efficient", halves, 128, 2048),
        ("efficient", torch.float32, 192, 512), ("efficient", torch.float32, 80, 256), ("flash", halves, 64, 128),
        ("cudnn", halves, 64, 128), ("efficient", torch.float32, 64, 128),
    ):  # fmt: skip
        heads = 2048 // inner
        yield Shape(backend, dtype, TOKENS // sequence, heads, heads, sequence, sequence, inner, True)
    for backend in ("flash", "cudnn"):
        for heads, own in ((32, 8), (32, 4), (64, 8)):
            yield Shape(backend, halves, 4, heads, own, 2048, 2048, 128, True)
        for batch in (1, 2):
            yield Shape(backend, halves, batch, 8, 8, 1024, 1024, 128, True)
        for past in (1024, 8192):
            yield Shape(backend, halves, 16, 32, 8, 1, past, 128, False)


def operator_of(shape: Shape, back: bool) -> EagerOperator:
    """Return the question as an operator."""
    own = 0 if shape.kv_heads == shape.heads else shape.kv_heads
    sizes = {"batch": shape.batch, "heads": shape.heads, "kv_heads": own, "rows": shape.rows, "cols": shape.cols}
    sizes |= {"inner": shape.inner, "causal": int(shape.causal)}
    return EagerOperator(kind_name(shape.backend) + BACKWARD * back, sizes, str(shape.dtype).removeprefix("torch."))


def timed(run: Callable[[], Any], place: str, repeats: int) -> list[float]:
    """Seconds of each repeat on the device, by its own events; on a CPU by its clock."""
    for _ in range(WARM):
        run()
    found = []
    for _ in range(repeats):
        if place == "cuda":
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            run()
            end.record()
            end.synchronize()
            found.append(1e-3 * begin.elapsed_time(end))
        else:
            begin_s = time.perf_counter()
            run()
            found.append(time.perf_counter() - begin_s)
    return found


def measured(shape: Shape, place: str, repeats: int) -> Iterator[tuple[EagerOperator, list[float]]]:
    """Yield the operator and its seconds, forward, then backward where it can be trained."""
    options = {"dtype": shape.dtype, "device": place, "requires_grad": shape.rows > 1}
    q = torch.randn(shape.batch, shape.heads, shape.rows, shape.inner, **options)
    k, v = (torch.randn(shape.batch, shape.kv_heads, shape.cols, shape.inner, **options) for _ in range(2))
    more = {"enable_gqa": True} if shape.kv_heads != shape.heads else {}

    def forward() -> torch.Tensor:
        return scaled_dot_product_attention(q, k, v, is_causal=shape.causal, **more)

    with sdpa_kernel(KERNELS[shape.backend]):
        yield operator_of(shape, False), timed(forward, place, repeats)
        if shape.rows > 1:
            out = forward()
            given = torch.randn_like(out)
            run = lambda: torch.autograd.grad(out, (q, k, v), given, retain_graph=True)  # noqa: E731
            yield operator_of(shape, True), timed(run, place, repeats)


def clocks() -> str:
    """Clocks and throttling as the driver tells them; empty without one."""
    asked = "clocks.sm,clocks.mem,power.draw,clocks_throttle_reasons.active"
    try:
        told = subprocess.run(
            ["nvidia-smi", f"--query-gpu={asked}", "--format=csv,noheader"], capture_output=True, text=True, timeout=20
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return told.stdout.strip().splitlines()[0] if told.returncode == 0 and told.stdout.strip() else ""


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("device", help="as conf/device names it, such as h100")
    parser.add_argument("out", type=Path, help="JSON lines; what it holds is not measured again")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--tiny", action="store_true", help="two small calls, on a CPU")
    options = parser.parse_args(arguments)
    sheet, place = devices.get(options.device), "cpu" if options.tiny else "cuda"
    said = {"gpu": "" if options.tiny else torch.cuda.get_device_name(0), "torch": torch.__version__}
    said["cudnn"] = str(torch.backends.cudnn.version())
    lines = options.out.read_text().splitlines() if options.out.exists() else []
    done, begin_s = {json.dumps(json.loads(line)["operator"]) for line in lines}, time.perf_counter()
    for shape in shapes(options.tiny):
        if time.perf_counter() - begin_s > LIMIT_S:
            print("stopped: the time is up; run it again for the rest")
            break
        if json.dumps(json.loads(operator_of(shape, False).to_json())) in done:
            continue
        q, k = (
            torch.empty(shape.batch, heads, rows, shape.inner, dtype=shape.dtype, device="meta")
            for heads, rows in ((shape.heads, shape.rows), (shape.kv_heads, shape.cols))
        )
        call = AttentionCall(q, k, k, None, 0.0, shape.causal, shape.kv_heads != shape.heads, shape.rows > 1)
        if why := why_not(shape.backend, call, sheet.architecture):
            print(f"{shape}: {why}")
            continue
        chosen, before = backend_of(call, sheet.architecture), clocks()
        try:
            with options.out.open("a") as file:
                for operator, seconds in measured(shape, place, options.repeats):
                    row = {"device": options.device, "operator": json.loads(operator.to_json()), "seconds": seconds}
                    row |= {**said, "clocks": [before, clocks()], "is_default": chosen == shape.backend}
                    file.write(json.dumps(row) + "\n")
                    rate = operator.flops / statistics.median(seconds) / 1e12
                    print(f"{operator} {1e6 * statistics.median(seconds):.1f} us, {rate:.1f} TFLOP/s", flush=True)
        except RuntimeError as error:  # no memory, or a kernel that refuses what the rules allow: said, others go on
            print(f"{shape}: {str(error).splitlines()[0]}", flush=True)


if __name__ == "__main__":
    main()
