"""Child process that runs a whole network through TVM's virtual machine: it may crash, hang or take a gigabyte."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import numpy as np

from cdmpp.workers import Reply, Request, serve

COMMAND = ("-m", "cdmpp.network.worker")
_ROUND_S = 0.05
"""Runs of a fast network that are timed together last at least this long."""
_kept: dict[str, Any] = {}


def ready(_: Request) -> Reply:
    """Import TVM now rather than within the time limit of the first request."""
    import tvm

    return {"tvm": tvm.__version__}


def build(request: Request) -> Reply:
    """Compile ``module`` (path of a JSON graph) with ``schedules``: name of a function -> [workload, schedule].

    Weights are made up and folded, as they are when a network is deployed; inputs are those of ``inputs`` (path of an
    npz, by number), else made up too. Replies with the ``names`` of its kernels.
    """
    import tvm
    from tvm import relax
    from tvm.relax.backend.cpu_generic import pipeline

    from cdmpp.programs.replay import parse_target, parse_workload, replay_on

    target, random = parse_target(request["target"]), np.random.default_rng(0)
    module = relax.transform.LiftTransformParams()(tvm.ir.load_json(Path(request["module"]).read_text()))
    main, fold = module["main"], module["main_transform_params"]
    count = int(main.attrs["num_input"])
    given = dict(np.load(request["inputs"], allow_pickle=False)) if request["inputs"] else {}
    inputs = [_tensor(given.get(str(i)), p.ty, random) for i, p in enumerate(main.params[:count])]
    weights = [_tensor(None, kind, random) for kind in fold.params[0].ty.fields]
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
    folded = machine["main_transform_params"](tvm.runtime.convert(weights))
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
    """Seconds of each kernel within the built network, in the order of its calls, the least of ``runs`` runs.

    Also ``planned_bytes``: what the virtual machine allocates for results in one run.
    """
    seen: list[tuple[str, float]] = []
    allocated: list[int] = []

    def look(_function: Any, name: str, before: bool, _result: Any, *arguments: Any) -> None:
        if name in _kept["names"]:
            seen.append((name, time.perf_counter()))
        elif before and name == "vm.builtin.alloc_storage":
            allocated.append(math.prod(int(extent) for extent in arguments[1]))

    machine = _kept["machine"]
    machine.set_instrument(look)
    least: dict[int, float] = {}
    try:
        for _ in range(request["runs"]):
            seen.clear()
            allocated.clear()
            machine["main"](*_kept["arguments"])
            for place, ((_, start), (_, end)) in enumerate(zip(seen[::2], seen[1::2], strict=True)):
                least[place] = min(least.get(place, math.inf), end - start)
            names = [name for name, _ in seen[::2]]
    finally:
        machine.set_instrument(_nothing)
    return {"kernels": [[name, least[i]] for i, name in enumerate(names)], "planned_bytes": sum(allocated)}


def alone(request: Request) -> Reply:
    """Time one kernel by itself: ``workload``, ``schedule``, ``target``, ``arguments`` ([[shape, dtype], ...]).

    Replies with seconds a call, ``warm`` (its data in cache, as records are measured) and ``cold`` (none of it), least
    of several.
    """
    import tvm

    from cdmpp.measure.timing import tensors_for
    from cdmpp.programs.replay import replay

    program = replay(request["workload"], request["schedule"], request["target"])
    module = tvm.compile(program.module, target=program.target).mod
    tensors = tensors_for(request["arguments"], "cpu")
    once_s = module.time_evaluator("main", tvm.cpu(), number=1)(*tensors).results[0]
    repeats = 30 if once_s < 0.002 else 8 if once_s < 0.05 else 2
    warm = module.time_evaluator("main", tvm.cpu(), number=1, repeat=repeats, min_repeat_ms=1)(*tensors).results
    flush = {"cache_flush_bytes": request["flush_bytes"]}
    cold = module.time_evaluator("main", tvm.cpu(), number=1, repeat=min(repeats, 8), **flush)(*tensors).results
    return {"warm": float(min(warm)), "cold": float(min(cold))}


def _nothing(*_: Any) -> None:
    """The instrument of a machine that nobody looks at."""


def _tensor(value: np.ndarray | None, kind: Any, random: np.random.Generator) -> Any:
    import tvm

    return tvm.runtime.tensor(_filled(kind, random) if value is None else value)


def _filled(kind: Any, random: np.random.Generator) -> np.ndarray:
    """Numbers that stay of ordinary size through many layers: denormals and infinities would run at other speeds."""
    shape, dtype = tuple(int(extent) for extent in kind.shape.values), str(kind.dtype)
    if "int" in dtype or dtype == "bool":
        return np.ones(shape, dtype)
    if len(shape) < 2:
        return random.uniform(0.5, 1.5, shape).astype(dtype)
    fan_in = math.prod(shape[1:])
    return (random.standard_normal(shape, np.float32) * math.sqrt(2.0 / fan_in)).astype(dtype)


OPERATIONS = {"ready": ready, "build": build, "run": run, "inside": inside, "alone": alone}

if __name__ == "__main__":
    serve(OPERATIONS)
