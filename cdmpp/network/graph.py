"""NetworkGraph: the kernels that a deployed network runs, by identity of what they read and write."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cdmpp.errors import CdmppError
from cdmpp.programs.networks import has_static_shapes, task_of
from cdmpp.programs.task import Task


@dataclass(frozen=True)
class Call:
    """One kernel launch of a network."""

    name: str
    """Unique in its network, in the order of the program."""
    task_id: str
    inputs: tuple[int, ...]
    """Places of the calls whose results it reads."""
    output_bytes: int
    """Of all buffers that it writes."""


@dataclass(frozen=True)
class NetworkGraph:
    """Calls in the order of the program, each after those that it reads from."""

    name: str
    calls: tuple[Call, ...]
    tasks: Mapping[str, Task]
    """By id, one for each distinct tensor program."""
    folded: int
    """Kernels that read weights alone. They run once, when the network is deployed, and are no calls."""
    weight_bytes: int
    input_bytes: int
    results: tuple[int, ...]
    """Places of the calls whose results the network returns: their buffers live to the end."""

    @property
    def counts(self) -> dict[str, int]:
        """Task id -> how many calls run it."""
        found: dict[str, int] = {}
        for call in self.calls:
            found[call.task_id] = found.get(call.task_id, 0) + 1
        return found


def graph_of(module: Any, name: str) -> NetworkGraph:
    """Of a legalised and fused Relax module; its ``num_input`` says how many parameters are no weights.

    Raises:
        CdmppError: an operator that was not lowered to a tensor program, or a symbolic shape; each is named.
    """
    import tvm
    from tvm import relax

    main, tasks_by_function, tasks = module["main"], {}, {}
    # Of a value: places of the calls it comes from; and whether it is known when the network is deployed.
    sources: dict[Any, tuple[int, ...]] = {}
    constant: dict[Any, bool] = {}
    parameters = list(main.params)
    split = int(main.attrs["num_input"])
    for place, parameter in enumerate(parameters):
        sources[_key(parameter)], constant[_key(parameter)] = (), place >= split
    calls: list[Call] = []
    folded = 0

    def origin(value: Any) -> tuple[tuple[int, ...], bool]:
        if isinstance(value, relax.Tuple):
            parts = [origin(field) for field in value.fields]
            return tuple(place for own, _ in parts for place in own), all(known for _, known in parts)
        if isinstance(value, relax.TupleGetItem):
            return origin(value.tuple_value)
        key = _key(value)
        return (sources[key], constant[key]) if key in sources else ((), True)  # constants and shapes

    for block in main.body.blocks:
        for binding in block.bindings:
            value, key = binding.value, _key(binding.var)
            if isinstance(value, tvm.ir.Call) and getattr(value.op, "name", "") == "relax.call_tir":
                reads, known = origin(value.args[1])
                if known:
                    folded, sources[key], constant[key] = folded + 1, (), True
                    continue
                function = value.args[0]
                if function not in tasks_by_function:
                    task = _task(module, function, name)
                    tasks_by_function[function] = task.task_id
                    tasks.setdefault(task.task_id, task)
                written = _bytes(value.ty_args[0], f"{name}: what {function.name_hint} writes")
                inputs = tuple(dict.fromkeys(reads))
                calls.append(Call(f"{function.name_hint}#{len(calls)}", tasks_by_function[function], inputs, written))
                sources[key], constant[key] = (len(calls) - 1,), False
            elif isinstance(value, tvm.ir.Call) and all(origin(argument)[1] for argument in value.args):
                folded, sources[key], constant[key] = folded + 1, (), True
            elif isinstance(value, tvm.ir.Call):
                told = getattr(value.op, "name", str(value.op))
                raise CdmppError(
                    f"{name}: the operator {told} ({binding.var.name}) has no tensor program; replace it in the "
                    "model, or predict the network without the part that it belongs to"
                )
            else:
                sources[key], constant[key] = origin(value)
    sizes = [_bytes(parameter.ty, f"{name}: the input {parameter.name}") for parameter in parameters]
    results, _ = origin(main.body.body)
    return NetworkGraph(
        name, tuple(calls), tasks, folded, sum(sizes[split:]), sum(sizes[:split]), tuple(dict.fromkeys(results))
    )


def _key(value: Any) -> Any:
    return value.__chandle__()


def _bytes(kind: Any, what: str) -> int:
    """Of a tensor type or a tuple of them."""
    if hasattr(kind, "fields"):
        return sum(_bytes(part, what) for part in kind.fields)
    shape = getattr(kind, "shape", None)
    sizes = [getattr(extent, "value", None) for extent in getattr(shape, "values", ())]
    if shape is None or None in sizes:
        raise CdmppError(f"{what} has the shape {shape}: give sizes for all its dimensions, by other example inputs")
    return math.prod(sizes) * -(-int(str(kind.dtype).lstrip("boluinfta") or 8) // 8)


def _task(module: Any, function: Any, network: str) -> Task:
    import tvm

    program = module[function]
    if not has_static_shapes(program):
        raise CdmppError(
            f"{network}: {function.name_hint} has a symbolic shape: export the model with fixed sizes of its inputs"
        )
    alone = tvm.IRModule({"main": program.with_attr("global_symbol", "main")})
    return task_of(alone, function.name_hint, network, 1)


def peak_activation_bytes(graph: NetworkGraph, order: list[int]) -> int:
    """Most bytes of results alive at a time, where calls run in ``order``: each lives until its last reader has run."""
    last = {place: step for step, place in enumerate(order)}
    ends = dict(last)
    for step, place in enumerate(order):
        for source in graph.calls[place].inputs:
            ends[source] = max(ends[source], step)
    for place in graph.results:
        ends[place] = math.inf
    alive, most = 0, 0
    freed: dict[float, list[int]] = {}
    for place, step in ends.items():
        freed.setdefault(step, []).append(place)
    for step, place in enumerate(order):
        alive += graph.calls[place].output_bytes
        most = max(most, alive)
        alive -= sum(graph.calls[p].output_bytes for p in freed.get(step, ()))
    return most
