"""Time training steps of one network in PyTorch or in JAX, for a table of runs that ``cdmpp fit`` takes.

python examples/time_runs.py torch runs.csv --seconds 240
python examples/time_runs.py jax runs.csv --seconds 240      # needs jax; adds its rows to those that are there

A run is a step of plain gradient descent of a network of dense layers on CPUs, one thread a process. It has so many
layers of so many features, processes that average their gradients (PyTorch: DistributedDataParallel with gloo; JAX:
devices of one host under pmap), samples of a process, and chunks of them whose gradients are summed. Configurations
are drawn at random until the time is up; each is timed for a quarter of a second at least, and its median counts.
"""

import argparse
import csv
import itertools
import os
import random
import statistics
import tempfile
import time
from pathlib import Path

COLUMNS = ("framework", "processes", "layers", "hidden", "local_batch", "chunks", "step_s")
LAYERS, HIDDEN, BATCHES, CHUNKS = (2, 4, 8), (128, 256, 512), (32, 64, 128, 256, 512), (1, 2, 4)
LEAST_S, WARM_UP = 0.25, 2


def configurations(seed):
    """All (layers, hidden, local_batch, chunks), in an order drawn by ``seed``."""
    found = list(itertools.product(LAYERS, HIDDEN, BATCHES, CHUNKS))
    random.Random(seed).shuffle(found)
    return found


def timed(step):
    """How many steps to time, and the step, warmed up."""
    for _ in range(WARM_UP):
        step()
    begun = time.perf_counter()
    step()
    count = max(5, min(100, int(LEAST_S / (time.perf_counter() - begun))))
    return count, step


def median(count, step):
    """Median seconds of ``count`` steps."""
    found = []
    for _ in range(count):
        begun = time.perf_counter()
        step()
        found.append(time.perf_counter() - begun)
    return statistics.median(found)


def torch_step(layers, hidden, batch, chunks, is_parallel):
    """A function that makes one step in PyTorch."""
    import torch
    from torch import nn

    network = nn.Sequential(*(nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU()) for _ in range(layers)))
    if is_parallel:
        network = nn.parallel.DistributedDataParallel(network)
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-3)
    parts = torch.randn(batch, hidden).chunk(chunks)

    def step():
        optimizer.zero_grad()
        for place, part in enumerate(parts):
            if is_parallel:
                network.require_backward_grad_sync = place == len(parts) - 1
            (network(part).square().mean() / chunks).backward()
        optimizer.step()

    return step


def torch_process(rank, processes, seconds, seed, meeting, rows):
    """One process: time the configurations until the time of the first process is up."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=processes)
    begun = time.perf_counter()
    for place, one in enumerate(configurations(seed + processes)):
        count, step = timed(torch_step(*one, processes > 1))
        agreed = torch.tensor([0 if place and time.perf_counter() - begun > seconds else count])
        dist.broadcast(agreed, 0)
        if not agreed:
            break
        rows[(rank, place)] = ("torch", processes, *one, median(int(agreed), step))
    dist.destroy_process_group()


def torch_rows(processes, seconds, seed):
    """Rows of so many processes; the slowest process of a configuration counts."""
    import torch.multiprocessing as mp

    with tempfile.TemporaryDirectory() as folder, mp.Manager() as manager:
        rows = manager.dict()
        mp.spawn(torch_process, (processes, seconds, seed, f"{folder}/meeting", rows), nprocs=processes)
        by_place = {}
        for (_, place), row in rows.items():
            by_place[place] = max(by_place.get(place, row), row, key=lambda one: one[-1])
        return [by_place[place] for place in sorted(by_place)]


def jax_step(layers, hidden, batch, chunks, processes):
    """A function that makes one step in JAX."""
    import jax
    import jax.numpy as jnp

    keys = jax.random.split(jax.random.PRNGKey(0), layers)
    weights = [(jax.random.normal(key, (hidden, hidden)) / hidden**0.5, jnp.zeros(hidden)) for key in keys]
    samples = jax.random.normal(keys[0], (processes, chunks, batch // chunks, hidden))

    def loss(weights, part):
        for matrix, bias in weights:
            part = jax.nn.relu(part @ matrix + bias)
        return jnp.square(part).mean()

    def update(weights, parts):
        zero = jax.tree.map(jnp.zeros_like, weights)
        add = lambda total, part: (jax.tree.map(jnp.add, total, jax.grad(loss)(weights, part)), None)  # noqa: E731
        total = jax.lax.scan(add, zero, parts)[0]
        mean = jax.tree.map(lambda one: jax.lax.pmean(one / chunks, "all"), total)
        return jax.tree.map(lambda weight, slope: weight - 1e-3 * slope, weights, mean)

    compiled = jax.pmap(update, axis_name="all")
    state = [jax.tree.map(lambda one: jnp.stack([one] * processes), weights)]

    def step():
        state[0] = jax.block_until_ready(compiled(state[0], samples))

    return step


def jax_rows(processes, seconds, seed):
    """Rows of so many devices of one host."""
    begun, rows = time.perf_counter(), []
    for one in configurations(seed + processes):
        if rows and time.perf_counter() - begun > seconds:
            break
        rows.append(("jax", processes, *one, median(*timed(jax_step(*one, processes)))))
    return rows


def main(words=None):
    """Time one framework and add its rows to the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("framework", choices=("torch", "jax"))
    parser.add_argument("file", type=Path, help="CSV file, made or continued")
    parser.add_argument("--seconds", type=float, default=240.0, help="in all (default %(default)g)")
    parser.add_argument("--processes", type=int, nargs="*", default=[1, 2], help="counts (default 1 2)")
    parser.add_argument("--seed", type=int, default=0, help="of the order of configurations")
    given = parser.parse_args(words)
    flags = f"--xla_force_host_platform_device_count={max(given.processes)} --xla_cpu_multi_thread_eigen=false"
    os.environ.setdefault("XLA_FLAGS", flags)
    rows = {"torch": torch_rows, "jax": jax_rows}[given.framework]
    is_new = not given.file.exists() or not given.file.stat().st_size
    with given.file.open("a", newline="") as file:
        writer = csv.writer(file)
        if is_new:
            writer.writerow(COLUMNS)
        for processes in given.processes:
            found = rows(processes, given.seconds / len(given.processes), given.seed)
            writer.writerows((*row[:-1], f"{row[-1]:.6g}") for row in found)
            file.flush()
            print(f"{len(found)} runs of {given.framework} on {processes} processes")


if __name__ == "__main__":
    main()
