"""What PyTorch's host takes in a training step besides the dispatch of each kernel, timed on the machine at hand.

``python -m benchmarks.host_costs``: no GPU is needed. Tensors have a few elements, so that the host's own work is all
there is; kernels of an update are taken out, which leaves its Python. Prints the numbers of ``conf/host`` as YAML:
medians of nine rounds, of differences between two runs where a difference is meant.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

ROUNDS, CALLS, LAYERS, PARAMETERS = 9, 40, 50, 100


def seconds(run: Callable[[], Any], prepare: Callable[[], Any] = lambda: None) -> float:
    """Median over rounds of the mean time of ``run``, each run after ``prepare``, which does not count."""
    found = []
    for _ in range(ROUNDS + 1):
        whole = 0.0
        for _ in range(CALLS):
            prepare()
            begin = time.perf_counter()
            run()
            whole += time.perf_counter() - begin
        found.append(whole / CALLS)
    return statistics.median(found[1:])


def chain(x: torch.Tensor, times: int) -> torch.Tensor:
    """Apply an elementwise operator so many times."""
    for _ in range(times):
        x = torch.nn.functional.relu(x)
    return x


def forward_and_backward() -> dict[str, float]:
    """Seconds of autograd for a call of the forward pass, a node of the backward pass, and a parameter's gradient."""
    x = torch.ones(4)
    tracked = x.clone().requires_grad_()
    with torch.inference_mode():
        plain = seconds(lambda: chain(x, LAYERS)) / LAYERS
        written = seconds(lambda: [torch.ops.aten.threshold_backward(x, x, 0) for _ in range(LAYERS)]) / LAYERS
    recorded = seconds(lambda: chain(tracked, LAYERS)) / LAYERS
    held: list[torch.Tensor] = []

    def again() -> None:
        held[:] = [chain(tracked, LAYERS).sum()]
        tracked.grad = None

    node = seconds(lambda: held[0].backward(), again)
    held_short: list[torch.Tensor] = []

    def again_short() -> None:
        held_short[:] = [chain(tracked, 1).sum()]
        tracked.grad = None

    short = seconds(lambda: held_short[0].backward(), again_short)
    each = (node - short) / (LAYERS - 1)
    parameters = [nn.Parameter(torch.ones(4)) for _ in range(PARAMETERS)]

    def summed(ones: list[Any]) -> torch.Tensor:
        return torch.cat([one.view(4) for one in ones]).sum()

    def prepare(count: int) -> None:
        for one in parameters:
            one.grad = None
        held[:] = [summed(parameters[:count])]

    many = seconds(lambda: held[0].backward(), lambda: prepare(PARAMETERS))
    few = seconds(lambda: held[0].backward(), lambda: prepare(1))
    modules = nn.Sequential(*(nn.ReLU() for _ in range(LAYERS)))
    with torch.inference_mode():
        of_modules = seconds(lambda: modules(x)) / LAYERS
    return {
        "module_us": of_modules - plain,
        "record_us": recorded - plain,
        "node_us": each - written,
        "accumulate_us": (many - few) / (PARAMETERS - 1) - 2 * each,  # next to a view's node and a part of cat's
        "backward_us": short - 2 * each,
    }


@contextmanager
def without_kernels() -> Iterator[None]:
    """Let updates over many tensors at a time run no kernel."""
    names = [name for name in dir(torch) if name.startswith(("_foreach", "_fused"))]
    kept = {name: getattr(torch, name) for name in names}
    for name in names:
        setattr(torch, name, lambda given, *_, **__: given)
    try:
        yield
    finally:
        for name, value in kept.items():
            setattr(torch, name, value)


def updates() -> dict[str, dict[str, float]]:
    """Seconds of the Python of an update: once, and for each parameter."""
    found: dict[str, dict[str, float]] = {}
    kinds: dict[str, Callable[..., torch.optim.Optimizer]] = {
        "sgd": lambda ones: torch.optim.SGD(ones, lr=1e-4, momentum=0.9, foreach=True),
        "adam": lambda ones: torch.optim.Adam(ones, foreach=True),
        "adamw": lambda ones: torch.optim.AdamW(ones, foreach=True),
        "adamw-fused": lambda ones: torch.optim.AdamW(ones, fused=True),
    }
    for name, make in kinds.items():
        times = {}
        for count in (10, PARAMETERS + 10):
            ones = [nn.Parameter(torch.ones(4)) for _ in range(count)]
            for one in ones:
                one.grad = torch.ones(4)
            optimizer = make(ones)
            optimizer.step()  # makes the states
            with without_kernels():
                times[count] = seconds(optimizer.step)
        each = (times[PARAMETERS + 10] - times[10]) / PARAMETERS
        found[name] = {"step_us": times[10] - 10 * each, "parameter_us": each}
    ones = [nn.Parameter(torch.ones(4)) for _ in range(PARAMETERS)]
    cleared = torch.optim.SGD(ones, lr=0.1)

    def give() -> None:
        for one in ones:
            one.grad = torch.ones(4)

    found["zero_grad"] = {"parameter_us": seconds(cleared.zero_grad, give) / PARAMETERS}
    return found


class Many(nn.Module):
    """A network of many small parameters."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.own = nn.ParameterList(nn.Parameter(torch.ones(4)) for _ in range(count))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x * one for one in self.own]).sum()


def data_parallel() -> dict[str, float]:
    """Seconds of ``DistributedDataParallel`` on one rank: once a step, and for each parameter."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29533"}
    torch.distributed.init_process_group("gloo", rank=0, world_size=1)
    times = {}
    for count in (10, PARAMETERS + 10):
        x, plain = torch.ones(4), Many(count)
        wrapped = nn.parallel.DistributedDataParallel(Many(count))

        def step(network: nn.Module, x: torch.Tensor = x) -> None:
            network(x).backward()
            network.zero_grad()

        times[count] = seconds(lambda one=wrapped: step(one)) - seconds(lambda one=plain: step(one))
    torch.distributed.destroy_process_group()
    each = (times[PARAMETERS + 10] - times[10]) / PARAMETERS
    return {"step_us": times[10] - 10 * each, "parameter_us": each}


def main() -> None:
    """Print what was timed."""
    torch.set_num_threads(1)
    for name, value in forward_and_backward().items():
        print(f"{name}: {1e6 * value:.2f}")
    for name, parts in (*updates().items(), ("ddp", data_parallel())):
        print(f"{name}: {{{', '.join(f'{key}: {1e6 * value:.2f}' for key, value in parts.items())}}}")


if __name__ == "__main__":
    main()
