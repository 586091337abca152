"""Child process that runs a whole network through TVM's virtual machine: it may crash, hang or take a gigabyte."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import numpy as np

from cdmpp.platform.workers import Reply, Request, serve

COMMAND = ("-m", "cdmpp.network.compiled.worker")
_ROUND_S = 0.05
"""Runs of a fast network that are timed together last at least this long."""
_MOST_RUNS = 60
_ALONE_S = 0.15
"""Seconds for which one kernel runs by itself; it runs at least twice."""
_kept: dict[str, Any] = {}
_built: dict[tuple[str, str], Any] = {}


def ready(_: Request) -> Reply:
    """Import TVM now rather than within the time limit of the first request."""
    import tvm

    return {"tvm": tvm.__version__}


def build(request: Request) -> Reply:
    """Compile ``module`` (path of a JSON graph) with ``schedules``: name of a function -> [workload, schedule].

    Weights are drawn as torch initialises them, and folded as they are when a network is deployed; inputs are those of
    ``inputs`` (path of an npz, by number), else drawn too. Replies with the ``names`` of its kernels.
    """
    import tvm
    from tvm import relax
    from tvm.relax.backend.cpu_generic import pipeline

    from cdmpp.network.compiled.deployed import FOLD, split_known
    from cdmpp.programs.replay import parse_target, parse_workload, replay_on

    target, random = parse_target(request["target"]), np.random.default_rng(0)
    module, told = split_known(tvm.ir.load_json(Path(request["module"]).read_text()))
    count = int(module["main"].attrs["num_input"])
    given = dict(np.load(request["inputs"], allow_pickle=False)) if request["inputs"] else {}
    inputs = [
        _tensor(given.get(str(i)), "input", parameter.ty, random)
        for i, parameter in enumerate(module["main"].params[:count])
    ]
    weights = [_tensor(None, name, kind, random) for name, kind in told]
    for variable in module.get_global_vars():
        if (program := request["schedules"].get(variable.name_hint)) is not None:
            scheduled = replay_on(parse_workload(program[0]), program[1]).mod["main"]
            named = scheduled.with_attr("global_symbol", variable.name_hint)
            module[variable] = named.with_attr("tirx.is_scheduled", True)
    names = [v.name_hint for v in module.get_global_vars() if isinstance(module[v], tvm.tirx.PrimFunc)]
    with target:
        passes = [*pipeline.dataflow_lower_passes(target), *pipeline.finalize_passes(target)]
        module = tvm.transform.Sequential(passes)(module)
    built = tvm.compile(module, target=target, relax_pipeline=None)
    machine = relax.VirtualMachine(built, tvm.cpu())
    folded = machine[FOLD](*weights)
    _kept.update(machine=machine, arguments=[*inputs, *folded], names=set(names))
    return {"names": names}


def run(request: Request) -> Reply:
    """Time the built network in rounds of at least 50 ms, about ``within_s`` in all; seconds a run, one a round."""
    import tvm

    timer = _kept["machine"].time_evaluator
    once_s = timer("main", tvm.cpu(), number=1, repeat=1)(*_kept["arguments"]).results[0]
    number = max(1, math.ceil(_ROUND_S / once_s))
    rounds = max(1, min(30, int(request["within_s"] / (number * once_s))))
    result = timer("main", tvm.cpu(), number=number, repeat=rounds)(*_kept["arguments"])
    return {"samples": [float(value) for value in result.results]}


def inside(request: Request) -> Reply:
    """Time each kernel within the built network, in order of its calls: seconds, the least of all runs ``within_s``.

    Also ``planned_bytes``: what the virtual machine allocates for results in one run.
    """
    seen: list[tuple[str, float]] = []
    allocated: list[int] = []

    def look(_function: Any, name: str, before: bool, _result: Any, *arguments: Any) -> None:
        if name in _kept["names"]:
            seen.append((name, time.perf_counter()))
        elif before and name == "vm.builtin.alloc_storage":
            allocated.append(math.prod(int(extent) for extent in arguments[1]))

    machine, least, names = _kept["machine"], dict[int, float](), list[str]()
    machine.set_instrument(look)
    try:
        begin, runs = time.perf_counter(), 0
        while runs < 2 or (runs < _MOST_RUNS and time.perf_counter() - begin < request["within_s"]):
            seen.clear()
            allocated.clear()
            machine["main"](*_kept["arguments"])
            for place, ((_, start), (_, end)) in enumerate(zip(seen[::2], seen[1::2], strict=True)):
                least[place] = min(least.get(place, math.inf), end - start)
            names, runs = [name for name, _ in seen[::2]], runs + 1
    finally:
        machine.set_instrument(_nothing)
    return {"kernels": [[name, least[i]] for i, name in enumerate(names)], "planned_bytes": sum(allocated)}


def alone(request: Request) -> Reply:
    """Time one kernel by itself: ``workload``, ``schedule``, ``target``, ``arguments`` ([[shape, dtype], ...]).

    Replies with seconds a call, ``warm`` (its data in cache, as records are measured) and, where
    ``flush_bytes`` is not 0, ``cold`` (none of it), least of several. A kernel that was built once is not built again.
    """
    import tvm

    from cdmpp.measure.timing import tensors_for
    from cdmpp.programs.replay import replay

    key = request["workload"], request["schedule"]
    if key not in _built:
        program = replay(*key, request["target"])
        _built[key] = tvm.compile(program.module, target=program.target).mod
    module = _built[key]
    tensors = tensors_for(request["arguments"], "cpu")
    once_s = module.time_evaluator("main", tvm.cpu(), number=1)(*tensors).results[0]
    repeats = max(2, min(30, int(_ALONE_S / once_s)))
    warm = module.time_evaluator("main", tvm.cpu(), number=1, repeat=repeats, min_repeat_ms=1)(*tensors).results
    reply = {"warm": float(min(warm))}
    if flush_bytes := request["flush_bytes"]:
        flushed = module.time_evaluator(
            "main", tvm.cpu(), number=1, repeat=min(repeats, 8), cache_flush_bytes=flush_bytes
        )
        reply["cold"] = float(min(flushed(*tensors).results))
    return reply


def _nothing(*_: Any) -> None:
    """The instrument of a machine that nobody looks at."""


def _tensor(value: np.ndarray | None, name: str, kind: Any, random: np.random.Generator) -> Any:
    import tvm

    return tvm.runtime.tensor(_drawn(name, kind, random) if value is None else value)


def _drawn(name: str, kind: Any, random: np.random.Generator) -> np.ndarray:
    """Values of the size that torch begins with: the time of an error function hangs on them, denormals are slow."""
    shape, dtype = tuple(int(extent) for extent in kind.shape.values), str(kind.dtype)
    if "int" in dtype or dtype == "bool":
        return np.ones(shape, dtype)
    if name == "input":
        return random.standard_normal(shape, np.float32).astype(dtype)
    if len(shape) > 1:
        deviation = 1.0 / math.sqrt(3.0 * math.prod(shape[1:]))
    elif name.endswith(("bias", "beta", "mean")):
        deviation = 0.02
    else:
        return np.ones(shape, dtype)
    return (deviation * random.standard_normal(shape, np.float32)).astype(dtype)


OPERATIONS = {"ready": ready, "build": build, "run": run, "inside": inside, "alone": alone}

if __name__ == "__main__":
    serve(OPERATIONS)
