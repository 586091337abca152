"""How often blocks of AArch64 code run: its loops are matched with those of the IR, whose runs are known."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache

import networkx as nx
import numpy as np
from scipy.optimize import linear_sum_assignment

from cdmpp.machine_code.cpu.assembly import AsmFunction
from cdmpp.machine_code.cpu.block_graph import BlockGraph, runs_of_blocks
from cdmpp.machine_code.cpu.flow import FunctionFlow
from cdmpp.machine_code.cpu.instruction import classify
from cdmpp.machine_code.cpu.instruction_set import decoder
from cdmpp.machine_code.cpu.ir import Function

_UNKNOWN_TRIPS = 4.0
_ORDER_COST, _BLOCK_ORDER_COST, _SHAPE_COST = 0.15, 1.5, 1.0
"""Of two loops or blocks that are to be the same: for their places in the text, and for other loops inside."""
_ARITHMETIC = frozenset(("fma", "fadd", "fmax", "divide"))
_Size = Callable[[str], tuple[float, ...]]
_Sizes = Mapping[str, np.ndarray]


def machine_flow(function: AsmFunction, ir: Function, ir_flow: FunctionFlow) -> FunctionFlow:
    """The flow of ``function``, the machine code of ``ir``; loops that the IR lacks count as unknown branches."""
    nest = _Nest(function, dict(_loops(function)), _machine_size(function.language))
    ir_nest = _Nest(ir, ir_flow.bodies, _ir_size)
    pairs = dict(_match(nest, ir_nest, None, None))
    trips = {h: ir_flow.trips(pairs[h]) if h in pairs else _UNKNOWN_TRIPS for h in nest.bodies}
    given: dict[str, float] = {}
    for header, ir_header in pairs.items():
        given.update(_runs_of_pair(nest, ir_nest, header, ir_header, ir_flow.runs))
    # What the IR tells, else what flows in; what guards the whole function is taken to let it pass.
    runs = runs_of_blocks(
        function.order, nest.bodies, trips, lambda b: (function.successors[b], nest.innermost.get(b)), given, True
    )
    unknown = ir_flow.unknown + len(nest.bodies) - len(pairs)
    entries = {header: runs[header] / trips[header] for header in nest.bodies}
    all_runs = dict.fromkeys(function.blocks, 0.0) | runs
    return FunctionFlow(ir_flow.times, unknown, all_runs, entries, dict(nest.bodies))


class _Nest:
    """Loops inside loops, in the order of the control flow."""

    def __init__(self, function: BlockGraph, bodies: Mapping[str, frozenset[str]], size: _Size) -> None:
        self.bodies, self.place = bodies, function.place
        self.sizes = {b: np.sum([(0.0,) * 4, *map(size, lines)], axis=0) for b, lines in function.blocks.items()}
        self.innermost: dict[str, str] = {}
        self.children: defaultdict[str | None, list[str]] = defaultdict(list)
        for header in sorted(bodies, key=lambda h: len(bodies[h]), reverse=True):
            self.children[self.innermost.get(header)].append(header)
            self.innermost.update(dict.fromkeys(bodies[header], header))
        for inside in self.children.values():
            inside.sort(key=lambda h: min(self.place.get(block, len(self.place)) for block in bodies[h]))

    def shape(self, header: str) -> tuple:
        """The loops inside, as nested tuples."""
        return tuple(self.shape(child) for child in self.children.get(header, ()))

    def weights(self, headers: Sequence[str]) -> _Sizes:
        """Sums of the sizes of the loops' blocks."""
        return {header: np.sum([self.sizes[block] for block in self.bodies[header]], axis=0) for header in headers}

    def own_blocks(self, header: str) -> list[str]:
        """Blocks of the loop that are in no loop inside it, in order."""
        blocks = [b for b in self.bodies[header] if self.innermost[b] == header and b in self.place]
        return sorted(blocks, key=self.place.__getitem__)


def _match(nest: _Nest, ir_nest: _Nest, header: str | None, ir_header: str | None) -> Iterator[tuple[str, str]]:
    """Pairs of the same loop in both: alike in what they compute, where they stand and what they hold."""
    loops, ir_loops = nest.children.get(header, []), ir_nest.children.get(ir_header, [])

    def extra(i: int, j: int) -> float:
        return _ORDER_COST * abs(i - j) + _SHAPE_COST * (nest.shape(loops[i]) != ir_nest.shape(ir_loops[j]))

    for a, b in _assigned(nest.weights(loops), ir_nest.weights(ir_loops), extra):
        yield a, b
        yield from _match(nest, ir_nest, a, b)


def _assigned(left: _Sizes, right: _Sizes, extra: Callable[[int, int], float]) -> list[tuple[str, str]]:
    """Pairs of the least total cost."""
    if not left or not right:
        return []
    names, right_names = list(left), list(right)
    besides = np.array([[extra(i, j) for j in range(len(right))] for i in range(len(left))])
    pairs = pairs_of_least_cost(np.array(list(left.values())), np.array(list(right.values())), besides)
    return [(names[i], right_names[j]) for i, j in pairs]


def pairs_of_least_cost(left: np.ndarray, right: np.ndarray, extra: np.ndarray) -> list[tuple[int, int]]:
    """Pairs of rows of (n, 4) and (m, 4) sizes, whose ratios and ``extra`` (n, m) they cost."""
    cost = np.abs(np.log1p(left)[:, None] - np.log1p(right)[None]).sum(-1) + extra
    return [(int(i), int(j)) for i, j in zip(*linear_sum_assignment(cost), strict=True)]


def _runs_of_pair(
    nest: _Nest, ir_nest: _Nest, header: str, ir_header: str, ir_runs: Mapping[str, float]
) -> dict[str, float]:
    """Runs of the blocks of a loop that the IR has too: where they differ, by the block that is most alike."""
    blocks, ir_blocks = nest.own_blocks(header), ir_nest.own_blocks(ir_header)
    most = max(ir_runs[ir_header], 1e-9)
    if len(blocks) == 1 or len({round(ir_runs[b] / most, 3) for b in ir_blocks}) == 1:
        return dict.fromkeys(blocks, ir_runs[ir_header])
    sizes, ir_sizes = ({b: nest.sizes[b] for b in blocks}, {b: ir_nest.sizes[b] for b in ir_blocks})
    cost = _BLOCK_ORDER_COST
    pairs = _assigned(sizes, ir_sizes, lambda i, j: cost * abs(i / len(blocks) - j / len(ir_blocks)))
    return {a: ir_runs[b] for a, b in pairs} | {header: ir_runs[ir_header]}


def _machine_size(language: str) -> _Size:
    """What tells instructions, arithmetic, stores and loads of a line."""
    decode = decoder(language)

    def size(line: str) -> tuple[float, ...]:
        operation = decode(line)
        return 1.0, operation.kind in _ARITHMETIC, operation.stores, operation.loads

    return size


@lru_cache(maxsize=65536)
def _ir_size(line: str) -> tuple[float, ...]:
    """The same of a line of the IR."""
    amounts: defaultdict[str, float] = defaultdict(float)
    for name, amount in classify(line):
        amounts[name.partition("_")[0]] += 0.0 if name.endswith("_bytes") else amount
    return 1.0, amounts["float"] + amounts["divide"], amounts["store"], amounts["load"]


def _loops(function: AsmFunction) -> Iterator[tuple[str, frozenset[str]]]:
    """(header, body) of nested strongly connected components: some have two entries, which natural loops have not."""
    place, work = function.place, [(frozenset(function.order), frozenset[str]())]
    while work:
        blocks, headers = work.pop()
        graph = nx.DiGraph(function.graph.subgraph(blocks))
        graph.remove_edges_from(list(graph.in_edges(headers)))
        parts = [frozenset(part) for part in nx.strongly_connected_components(graph) if graph.subgraph(part).edges]
        for body in sorted(parts, key=lambda part: min(place[block] for block in part)):
            outside = {b for b in body if any(p in place and p not in body for p in function.graph.pred[b])}
            entries = outside or {min(body, key=place.__getitem__)}
            yield min(entries, key=place.__getitem__), body
            work.append((body, headers | entries))
