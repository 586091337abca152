"""NetworkGraph: the kernels that a deployed network runs, by identity of what they read and write."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from cdmpp.errors import CdmppError, DataError
from cdmpp.platform.cache import keep_text
from cdmpp.programs.networks import has_static_shapes, task_of
from cdmpp.programs.task import Task

_Origin = tuple[tuple[int, ...], bool]
"""The origin of a value: places of the calls it comes from; whether it is known when the network is deployed."""


@dataclass(frozen=True)
class Call:
    """A call is one kernel launch of a network."""

    name: str
    """Unique in its network, in the order of the program."""
    task_id: str
    inputs: tuple[int, ...]
    """Places of the calls whose results it reads."""
    output_bytes: int
    """Bytes of all buffers that it writes."""
    resident: tuple[tuple[int, int], ...] = ()
    """Weights and inputs of the network that it reads: (number, bytes). One number is one buffer."""
    saved_bytes: int | None = None
    """Bytes of what it writes that the backward pass reads; None: all, if it reads any."""
    result_bytes: int | None = None
    """Bytes of its result, without what it writes for its backward pass; None: all that it writes."""
    forward: int | None = None
    """Place of the call of the forward pass whose gradients it makes, or that it runs again; None: unknown."""
    workspace_bytes: int = 0
    """Bytes that it holds while it runs, beside what it reads and writes."""
    own_saved_bytes: int | None = None
    """Bytes of ``saved_bytes`` that the backward pass of this call reads, such as a mask; only that of others reads the
    rest, such as the factor of a product. None: all."""
    gradient_bytes: int | None = None
    """Bytes of gradients of parameters among what it writes; None: all, if it makes any."""
    held: tuple[int, ...] = ()
    """Places of calls whose results are held until it ran, beside those that it reads: arguments of its module."""
    is_joined: bool = False
    """True if a library launches it together with the call before: the host dispatches both as one."""

    def at_other_sizes(self, task_id: str, output_bytes: int) -> Call:
        """Return the same call of another task; much faster than ``replace``, for many of them."""
        made = object.__new__(Call)
        made.__dict__.update(self.__dict__, task_id=task_id, output_bytes=output_bytes)
        return made


@dataclass(frozen=True)
class NetworkGraph:
    """The calls are in the order of the program, each after those that it reads from."""

    name: str
    calls: tuple[Call, ...]
    tasks: Mapping[str, Task]
    """Task id -> task, one for each distinct tensor program."""
    folded: int
    """Kernels that read only weights. They run once, when the network is deployed, and are no calls."""
    weight_bytes: int
    input_bytes: int
    results: tuple[int, ...]
    """Places of the calls whose results the network returns: their buffers live to the end."""
    views: int = 0
    """Reshapes that only see a buffer in another shape. They run nothing and are no calls."""

    @property
    def counts(self) -> dict[str, int]:
        """Count the calls that run each task, by task id."""
        found: dict[str, int] = {}
        for call in self.calls:
            found[call.task_id] = found.get(call.task_id, 0) + 1
        return found


@dataclass(frozen=True)
class Ends:
    """The parameters and results of ``main`` have these numbers and places in its graph."""

    parameters: tuple[int | None, ...]
    """Number of each parameter in ``Call.resident``; None: no call reads it."""
    results: tuple[tuple[int, ...], ...]
    """Places of the calls that each returned value comes from."""


def check_runs(graph: NetworkGraph) -> None:
    """Raise ``CdmppError`` for a network without calls: there is nothing to predict."""
    if graph.calls:
        return
    why = f"; its {graph.views} views move nothing" if graph.views else ""
    if graph.folded:
        why = f" when it is deployed; its {graph.folded} kernels read weights alone and run once, before that"
    raise CdmppError(f"{graph.name}: this network runs no operator{why}: there is no time to predict")


def graph_of(module: Any, name: str) -> NetworkGraph:
    """Return only the graph of ``graph_with_ends``."""
    return graph_with_ends(module, name)[0]


def graph_with_ends(module: Any, name: str) -> tuple[NetworkGraph, Ends]:
    """Make the graph of a legalised and fused Relax module.

    The module's ``num_input`` says how many parameters of ``main`` are no weights.

    Raises:
        CdmppError: an operator that was not lowered to a tensor program, or a symbolic shape; each is named.
    """
    import tvm
    from tvm import relax

    module = relax.transform.RewriteDataflowReshape()(module)  # as the build does
    main, found = module["main"], _Found(module, name)
    parameters = list(main.params)
    split = int(main.attrs["num_input"])
    for place, parameter in enumerate(parameters):
        found.origins[_key(parameter)] = ((), place >= split)
    for block in main.body.blocks:
        for binding in block.bindings:
            value = binding.value
            if isinstance(value, tvm.ir.Call):
                found.add(binding.var, value)
            else:  # another name, a tuple, a part of one
                fields = (
                    found.tuples.get(_key(value)) if isinstance(value, relax.Var) else getattr(value, "fields", None)
                )
                if fields is not None:
                    found.tuples[_key(binding.var)] = fields
                found.origins[_key(binding.var)] = found.origin(value)
    sizes = [bytes_of(parameter.ty, f"{name}: the input {parameter.name}") for parameter in parameters]
    results = tuple(dict.fromkeys(found.origin(main.body.body)[0]))
    calls, tasks = tuple(found.calls), found.tasks
    graph = NetworkGraph(name, calls, tasks, found.folded, sum(sizes[split:]), sum(sizes[:split]), results, found.views)
    returned = found.tuples.get(_key(main.body.body), getattr(main.body.body, "fields", [main.body.body]))
    numbers = tuple(found.buffers.get(_key(parameter)) for parameter in parameters)
    return graph, Ends(numbers, tuple(found.origin(value)[0] for value in returned))


class _Found:
    def __init__(self, module: Any, network: str) -> None:
        self.module, self.network = module, network
        self.origins: dict[Any, _Origin] = {}
        self.functions: dict[str, str] = {}
        self.tasks: dict[str, Task] = {}
        self.calls: list[Call] = []
        self.seen_as: dict[Any, Any] = {}
        """View -> what it is a view of."""
        self.buffers: dict[Any, int] = {}
        """Weight, input of the network, or result of a folded kernel -> its number."""
        self.tuples: dict[Any, Sequence[Any]] = {}
        """Tuple -> its fields."""
        self.folded = self.views = 0

    def origin(self, value: Any) -> _Origin:
        from tvm import relax

        if isinstance(value, relax.Tuple):
            parts = [self.origin(field) for field in value.fields]
            return tuple(place for own, _ in parts for place in own), all(known for _, known in parts)
        if isinstance(value, relax.TupleGetItem):
            return self.origin(value.tuple_value)
        return self.origins.get(_key(value), ((), True))  # else a constant, or a shape

    def add(self, variable: Any, call: Any) -> None:
        is_kernel = getattr(call.op, "name", "") == "relax.call_tir"
        reads = [self.origin(argument) for argument in (call.args[1:2] if is_kernel else call.args)]
        if all(known for _, known in reads):
            self.folded += 1
            self.origins[_key(variable)] = ((), True)
            return
        if getattr(call.op, "name", "") == "relax.reshape":
            self.views += 1
            self.origins[_key(variable)] = reads[0]
            self.seen_as[_key(variable)] = self.seen_as.get(_key(call.args[0]), call.args[0])
            return
        if not is_kernel:
            raise CdmppError(
                f"{self.network}: the operator {getattr(call.op, 'name', call.op)} ({variable.name}) has no tensor "
                "program; replace it in the model, or predict the network without the part that it belongs to"
            )
        function = call.args[0]
        name = function.name_hint
        if name not in self.functions:
            task = _task(self.module, function, self.network)
            self.functions[name] = task.task_id
            self.tasks.setdefault(task.task_id, task)
        written = bytes_of(call.ty_args[0], f"{self.network}: what {name} writes")
        inputs = tuple(dict.fromkeys(place for own, _ in reads for place in own))
        resident = tuple(
            dict.fromkeys(self.resident(argument) for argument in call.args[1].fields if self.lies(argument))
        )
        self.calls.append(Call(f"{name}#{len(self.calls)}", self.functions[name], inputs, written, resident))
        self.origins[_key(variable)] = ((len(self.calls) - 1,), False)

    def lies(self, value: Any) -> bool:
        """Return True for a buffer that no call writes."""
        return not self.origin(value)[0] and getattr(value.ty, "shape", None) is not None

    def resident(self, value: Any) -> tuple[int, int]:
        base = self.seen_as.get(_key(value), value)
        return self.buffers.setdefault(_key(base), len(self.buffers)), bytes_of(base.ty, f"{self.network}: a weight")


def _key(value: Any) -> Any:
    return value.__chandle__()


def bytes_of(kind: Any, what: str) -> int:
    """Return the bytes of a tensor type or a tuple of them; ``CdmppError`` says that ``what`` has a symbolic shape."""
    if hasattr(kind, "fields"):
        return sum(bytes_of(part, what) for part in kind.fields)
    sizes = [getattr(extent, "value", None) for extent in getattr(kind.shape, "values", (None,))]
    if any(size is None for size in sizes):
        raise CdmppError(
            f"{what} has the shape {kind.shape}: give sizes for all its dimensions, by other example inputs"
        )
    bits = int("".join(filter(str.isdigit, str(kind.dtype))) or 8)
    return math.prod(int(size) for size in sizes if size is not None) * -(-bits // 8)


def _task(module: Any, function: Any, network: str) -> Task:
    import tvm

    from cdmpp.programs.identity import is_as_printed
    from cdmpp.programs.replay import parsed_path

    program = module[function]
    if not has_static_shapes(program):
        raise CdmppError(
            f"{network}: {function.name_hint} has a symbolic shape: export the model with fixed sizes of its inputs"
        )
    alone = tvm.IRModule({"main": program.with_attr("global_symbol", "main")})
    task = task_of(alone, function.name_hint, network, 1)
    path = parsed_path(task.workload)
    if is_as_printed(alone) and not path.exists():
        graph = tvm.ir.save_json(alone)
        with suppress(DataError):  # for speed alone
            keep_text(path, graph)
    return task
