"""How often each block of the machine code runs: its loops are those of the IR, whose trips are known, found again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from cdmpp.machine_code.assembly import AsmFunction
from cdmpp.machine_code.block_graph import BlockGraph
from cdmpp.machine_code.instruction import classify
from cdmpp.machine_code.ir import Function
from cdmpp.machine_code.loops import Loop, bodies_of

_Bodies = Mapping[str, frozenset[str]]
_UNKNOWN_TRIPS = 4.0
_ORDER_COST, _BLOCK_ORDER_COST, _SHAPE_COST = 0.15, 1.5, 1.0
"""Of two loops or blocks that are to be the same: for their places in the text, and for other loops inside."""
_FLOATS = ("vfm", "vfn", "vadd", "vmul", "vsub", "vmax", "vmin", "vdiv")


@dataclass(frozen=True)
class MachineFlow:
    runs: dict[str, float]
    """Block -> runs a call of the function."""
    pieces: list[tuple[tuple[str, ...], str | None]]
    """What runs as one: the usual way through an innermost loop, with its header; other blocks alone, with None."""
    trips: dict[str, float]
    """Header of a loop -> iterations each time it is entered."""
    unmatched_loops: int


def machine_flow(
    function: AsmFunction, ir: Function, loops: Sequence[Loop], ir_runs: Mapping[str, float]
) -> MachineFlow:
    """Flow of the machine code of ``ir``.

    Args:
        loops: of the IR, with their trips.
        ir_runs: runs of each block of the IR, see ``flow.frequencies``.
    """
    order = _postorder(function)[::-1]
    bodies = dict(_loops(function, order))
    ir_bodies = {header: frozenset(body) for header, body in bodies_of(ir).items()}
    ir_order = [block for block in _postorder(ir)[::-1]]
    mine, theirs = _Nest(bodies, order, _machine_size(function)), _Nest(ir_bodies, ir_order, _ir_size(ir))
    same = dict(_match(mine, theirs, None, None))
    trips = {loop.header: loop.trips for loop in loops}
    own_trips = {h: max(1.0, trips.get(same.get(h, ""), 0.0) or _UNKNOWN_TRIPS) for h in bodies}
    known = {}
    for header, other in same.items():
        known.update(_known_runs(mine, theirs, header, other, ir_runs))
    runs = _runs(function, order, mine, known, own_trips)
    pieces = list(_pieces(function, order, mine, runs))
    return MachineFlow(runs, pieces, own_trips, len(bodies) - len(same))


class _Nest:
    """Loops inside loops, in the order of the control flow."""

    def __init__(self, bodies: _Bodies, order: Sequence[str], size: Callable[[str], np.ndarray]) -> None:
        self.bodies, self.order, self.size = bodies, order, size
        self.place = {block: place for place, block in enumerate(order)}
        self.innermost: dict[str, str] = {}
        self.children: defaultdict[str | None, list[str]] = defaultdict(list)
        for header in sorted(bodies, key=lambda h: len(bodies[h]), reverse=True):
            self.children[self.innermost.get(header)].append(header)
            self.innermost.update(dict.fromkeys(bodies[header], header))
        for inside in self.children.values():
            inside.sort(key=lambda h: min(self.place.get(block, len(order)) for block in bodies[h]))

    def shape(self, header: str) -> tuple:
        return tuple(self.shape(child) for child in self.children.get(header, ()))

    def weight(self, header: str) -> np.ndarray:
        return np.sum([self.size(block) for block in self.bodies[header]], axis=0)

    def own_blocks(self, header: str) -> list[str]:
        """Blocks of the loop that are in no loop inside it, in order."""
        blocks = [b for b in self.bodies[header] if self.innermost[b] == header and b in self.place]
        return sorted(blocks, key=self.place.__getitem__)


def _match(mine: _Nest, theirs: _Nest, header: str | None, other: str | None) -> Iterator[tuple[str, str]]:
    """Pairs of the same loop here and there: alike in what they compute, where they stand and what they hold."""
    left, right = mine.children.get(header, []), theirs.children.get(other, [])

    def extra(i: int, j: int) -> float:
        return _ORDER_COST * abs(i - j) + _SHAPE_COST * (mine.shape(left[i]) != theirs.shape(right[j]))

    for a, b in _assigned(left, right, mine.weight, theirs.weight, extra):
        yield a, b
        yield from _match(mine, theirs, a, b)


def _assigned(
    left: Sequence[str],
    right: Sequence[str],
    size: Callable[[str], np.ndarray],
    other_size: Callable[[str], np.ndarray],
    extra: Callable[[int, int], float],
) -> list[tuple[str, str]]:
    from scipy.optimize import linear_sum_assignment

    if not left or not right:
        return []
    if len(left) == len(right) == 1:
        return [(left[0], right[0])]
    here, there = (np.log1p(np.array([f(x) for x in xs])) for f, xs in ((size, left), (other_size, right)))
    cost = np.abs(here[:, None] - there[None]).sum(-1)
    cost += np.array([[extra(i, j) for j in range(len(right))] for i in range(len(left))])
    return [(left[i], right[j]) for i, j in zip(*linear_sum_assignment(cost), strict=True)]


def _known_runs(mine: _Nest, theirs: _Nest, header: str, other: str, ir_runs: Mapping[str, float]) -> dict[str, float]:
    """Runs of the blocks of a loop that the IR has too: where they differ, by the block that is most alike."""
    blocks, others = mine.own_blocks(header), theirs.own_blocks(other)
    most = max(ir_runs[other], 1e-9)
    if len(blocks) == 1 or len({round(ir_runs[b] / most, 3) for b in others}) == 1:
        return dict.fromkeys(blocks, ir_runs[other])

    def extra(i: int, j: int) -> float:
        return _BLOCK_ORDER_COST * abs(i / len(blocks) - j / len(others))

    pairs = _assigned(blocks, others, mine.size, theirs.size, extra)
    return {a: ir_runs[b] for a, b in pairs} | {header: ir_runs[other]}


def _runs(
    function: AsmFunction, order: Sequence[str], nest: _Nest, known: Mapping[str, float], trips: Mapping[str, float]
) -> dict[str, float]:
    """``known`` where it is, else what flows in; what guards the whole function is taken to let it pass."""
    inflow: defaultdict[str, float] = defaultdict(float, {order[0]: 1.0})
    runs: dict[str, float] = {}
    for block in order:
        loop = nest.innermost.get(block)
        runs[block] = known.get(block, inflow[block] * (trips[block] if block in nest.bodies else 1.0))
        targets = function.successors[block]
        for target, share in zip(targets, _shares(nest, loop, targets, trips), strict=True):
            if nest.place[target] <= nest.place[block]:
                continue
            flow = runs[block] * share
            inflow[target] = inflow[target] + flow if loop else max(inflow[target], flow)
    return runs


def _shares(nest: _Nest, loop: str | None, targets: Sequence[str], trips: Mapping[str, float]) -> list[float]:
    if loop is None or len(targets) < 2:
        return [1.0] * len(targets)
    inside = [target in nest.bodies[loop] for target in targets]
    if all(inside) or not any(inside):
        return [1.0 / len(targets)] * len(targets)
    leaving = 1.0 / trips[loop]
    return [1.0 - leaving if stays else leaving for stays in inside]


def _pieces(
    function: AsmFunction, order: Sequence[str], nest: _Nest, runs: Mapping[str, float]
) -> Iterator[tuple[tuple[str, ...], str | None]]:
    done: set[str] = set()
    for header, body in nest.bodies.items():
        if not nest.children.get(header):
            usual = [b for b in order if b in body and function.blocks[b] and runs[b] >= 0.5 * max(runs[header], 1e-9)]
            if usual:
                done.update(usual)
                yield tuple(usual), header
    for block in order:
        if block not in done and function.blocks[block]:
            yield (block,), None


def _machine_size(function: AsmFunction) -> Callable[[str], np.ndarray]:
    """(4,) instructions, arithmetic, stores and loads of a block."""

    def size(block: str) -> np.ndarray:
        counts = np.zeros(4)
        for line in function.blocks[block]:
            name = line.partition(" ")[0]
            stores = line.endswith(")") and name.startswith(("vmov", "mov"))
            counts += (1, name.startswith(_FLOATS), stores, "(" in line and not stores and "lea" not in name)
        return counts

    return _remembered(size)


def _ir_size(function: Function) -> Callable[[str], np.ndarray]:
    def size(block: str) -> np.ndarray:
        counts = np.zeros(4)
        for line in function.blocks[block]:
            counts[0] += 1
            for name, amount in classify(line):
                if name.startswith(("float_", "divide_")):
                    counts[1] += amount
                elif name.startswith("store_") and name != "store_bytes":
                    counts[2] += amount
                elif name.startswith("load_") and name != "load_bytes":
                    counts[3] += amount
        return counts

    return _remembered(size)


def _remembered(size: Callable[[str], np.ndarray]) -> Callable[[str], np.ndarray]:
    known: dict[str, np.ndarray] = {}

    def remembered(block: str) -> np.ndarray:
        if block not in known:
            known[block] = size(block)
        return known[block]

    return remembered


def _postorder(function: BlockGraph) -> list[str]:
    """Blocks that the entry leads to, each after those it leads to, ways back apart."""
    entry = next(iter(function.blocks))
    seen, finished, stack = {entry}, [], [(entry, iter(function.successors[entry]))]
    while stack:
        block, targets = stack[-1]
        target = next((t for t in targets if t not in seen), None)
        if target is None:
            finished.append(block)
            stack.pop()
        else:
            seen.add(target)
            stack.append((target, iter(function.successors[target])))
    return finished


def _loops(function: AsmFunction, order: Sequence[str]) -> Iterator[tuple[str, frozenset[str]]]:
    """(header, body) of nested strongly connected parts: the compiler's last passes also make loops with two entries,
    which natural loops do not describe."""
    place = {block: i for i, block in enumerate(order)}
    work: list[tuple[frozenset[str], frozenset[str]]] = [(frozenset(order), frozenset())]
    while work:
        blocks, heads = work.pop()
        for part in _strongly_connected(function, sorted(blocks, key=place.__getitem__), blocks - heads, heads):
            outside = {b for b in part if any(p in place and p not in part for p in function.predecessors.get(b, ()))}
            entries = outside or {min(part, key=place.__getitem__)}
            yield min(entries, key=place.__getitem__), part
            work.append((part, heads | entries))


def _strongly_connected(
    function: AsmFunction, blocks: Sequence[str], targets: frozenset[str], heads: frozenset[str]
) -> list[frozenset[str]]:
    """Parts of ``blocks`` that lead back to themselves (Tarjan 1972), ways to ``heads`` apart."""
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import connected_components

    number = {block: i for i, block in enumerate(blocks)}
    ways = [(number[b], number[t]) for b in blocks for t in function.successors[b] if t in number and t in targets]
    if not ways:
        return []
    rows, columns = zip(*ways, strict=True)
    graph = csr_matrix((np.ones(len(ways)), (rows, columns)), shape=(len(blocks), len(blocks)))
    _, labels = connected_components(graph, connection="strong")
    parts: defaultdict[int, set[str]] = defaultdict(set)
    for block, label in zip(blocks, labels, strict=True):
        parts[int(label)].add(block)
    alone = {a for a, b in ways if a == b}
    return [frozenset(p) for p in parts.values() if len(p) > 1 or number[next(iter(p))] in alone]
