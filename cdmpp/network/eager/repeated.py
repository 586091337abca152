"""The calls of a network of equal blocks, from those of the same network with a few of them.

Copies of a block are put between the two in the middle, in the forward and in the backward pass. What is said of the
whole network is what reading all of it says, call by call.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

from cdmpp.errors import CdmppError
from cdmpp.network.eager.backward import ForwardBackward
from cdmpp.network.eager.divided import NodeExchange
from cdmpp.network.eager.graph import EagerGraph
from cdmpp.network.graph import Call
from cdmpp.network.source.blocks import Blocks

_REFERRING = ("name", "inputs", "held", "forward", "resident")
"""Fields of a call by which it names others."""
_Value = TypeVar("_Value")


class UnlikeBlocksError(CdmppError):
    """Blocks of a network do not run the same calls, so that all have to be read."""


class WholeStep(NamedTuple):
    """Both passes of the whole network."""

    made: EagerGraph
    """The forward pass: its calls, parameters and places of nodes are those of all blocks."""
    both: ForwardBackward
    shapes: Mapping[str, tuple[int, ...]]
    """Name of a parameter that is divided -> its shape on one rank."""
    apart: Mapping[str, tuple[str, ...]]
    """The field of ``DividedExport`` that has the same name."""
    meshes: Mapping[str, tuple[str, ...]]
    """The same."""
    exchanges: tuple[NodeExchange, ...]
    placeholders: Mapping[str, str]
    """Name of a node of the graph -> the parameter that it is."""
    warnings: tuple[str, ...] = ()
    """Warnings of the division."""


def as_read(exported: Any, made: EagerGraph, both: ForwardBackward) -> WholeStep:
    """Return what was read of a graph in which nothing is left out."""
    names = exported.graph_signature.inputs_to_parameters
    shapes, apart, meshes = (getattr(exported, what, {}) for what in ("shapes", "apart", "meshes"))
    exchanges, warnings = getattr(exported, "exchanges", ()), getattr(exported, "warnings", ())
    return WholeStep(made, both, shapes, apart, meshes, exchanges, names, warnings)


def repeated(read: WholeStep, exported: Any, blocks: Blocks, path: str) -> WholeStep:
    """Return what reading all blocks would give.

    Args:
        read: a network with the first few of its blocks.
        exported: its graph.
        blocks: all of them.
        path: name of their list in the module that was exported.

    Raises:
        UnlikeBlocksError: the blocks in the middle run other calls, or read other results.
    """
    return _Repetition(read, exported, blocks, path).whole()


@dataclass(frozen=True)
class _Period:
    """Calls of two blocks that follow each other: those from ``first`` up, and those from ``second`` to ``end``."""

    first: int
    second: int
    end: int

    @property
    def length(self) -> int:
        return self.second - self.first

    @property
    def is_even(self) -> bool:
        return 0 < self.length == self.end - self.second


@dataclass(frozen=True)
class _Repetition:
    read: WholeStep
    exported: Any
    blocks: Blocks
    path: str

    def whole(self) -> WholeStep:
        read, both = self.read, self.read.both
        calls = self._calls()
        nodes = {self._node(name): self._span(span) for name, span in read.made.places.items()}
        for name, span in read.made.places.items():
            if self.forward.first <= span[0] < self.forward.second:
                for turn in range(1, self.copies + 1):
                    past = turn * self.forward.length
                    nodes[self._node(name, turn)] = span[0] + past, span[1] + past
        graph = replace(
            both.graph, calls=calls, weight_bytes=both.graph.weight_bytes + self.copies * self._block_bytes,
            results=self._results(), views=both.graph.views + self.copies * self._views,
        )  # fmt: skip
        last = both.forward + self.copies * self.forward.length
        made = read.made._replace(
            graph=replace(graph, calls=calls[:last], results=tuple(map(self.place, read.made.graph.results))),
            parameters=self._numbered(read.made.parameters),
            frozen=self._numbered(read.made.frozen),
            stand_ins=self._by_place(read.made.stand_ins),
            places=nodes,
        )
        again = frozenset(self._by_place(dict.fromkeys(both.recomputed, True)))
        found = both._replace(
            graph=graph, forward=last, ready=self._ready, recomputed=again, elements=self._by_place(both.elements)
        )
        shapes, apart, meshes = self._named(read.shapes), self._named(read.apart), self._named(read.meshes)
        warnings = tuple(map(self._warning, read.warnings))
        return WholeStep(made, found, shapes, apart, meshes, tuple(self._exchanges()), self._placeholders(), warnings)

    @property
    def copies(self) -> int:
        return self.blocks.copies

    @property
    def middle(self) -> int:
        return self.blocks.middle

    @cached_property
    def forward(self) -> _Period:
        return self._period(range(self.read.both.forward), (self.middle, self.middle + 1, self.middle + 2))

    @cached_property
    def backward(self) -> _Period:
        places = range(self.read.both.forward, len(self.read.both.graph.calls))
        return self._period(places, (self.middle + 1, self.middle, self.middle - 1))

    def _period(self, places: Iterable[int], blocks: tuple[int, int, int]) -> _Period:
        """The calls of two blocks, and the begin of a third.

        Those before the first one that reads a parameter of a block count to the block before it.
        """
        first = dict[int, int]()
        for place in places:
            for number, _ in self.read.both.graph.calls[place].resident:
                if (block := self._owners.get(number)) is not None:
                    first.setdefault(block, place)
        if missing := [number for number in blocks if number not in first]:
            raise UnlikeBlocksError(f"block {missing[0]} reads no parameter")
        found = _Period(*(first[number] for number in blocks))
        if not found.is_even:
            raise UnlikeBlocksError("blocks in the middle do not run as many calls as each other")
        return found

    def place(self, old: int) -> int:
        """Return the place among all calls of a call of the few blocks."""
        if old < self.forward.second:
            return old
        return old + self.copies * (self.forward.length + (old >= self.backward.second) * self.backward.length)

    def _span(self, span: tuple[int, int]) -> tuple[int, int]:
        return self.place(span[0]), self.place(span[1])

    def _calls(self) -> tuple[Call, ...]:
        found, end = list[Call](), len(self.read.both.graph.calls)
        for place in range(self.forward.first):
            self._move(place, found)
        self._copy(self.forward, False, found)
        for place in range(self.forward.end, self.backward.first):
            self._move(place, found)
        self._copy(self.backward, True, found)
        for place in range(self.backward.end, end):
            self._move(place, found)
        return tuple(found)

    def _move(self, place: int, found: list[Call]) -> None:
        """Add a call in front of both blocks, or behind them."""
        call = self.read.both.graph.calls[place]

        def moved(other: int) -> int:
            is_behind = place >= self.backward.end
            if self.forward.first <= other < self.forward.end:
                if not is_behind and place >= self.forward.end and other < self.forward.second:
                    return self._before_last(place, other)
                is_behind = is_behind and other >= self.forward.second
            else:
                is_behind = is_behind and self.backward.first <= other < self.backward.second
            if is_behind:
                raise UnlikeBlocksError(f"{call.name} reads results of a block that is not next to it")
            return self.place(other)

        of = None if call.forward is None else moved(call.forward)
        before = self._node(call.name.partition("#")[0]) if of is None else found[of].name
        resident = tuple((self._number(number), size) for number, size in call.resident)
        name = f"{before}{_pass(call)}{len(found)}"
        found.append(_with(call, name, tuple(map(moved, call.inputs)), tuple(map(moved, call.held)), of, resident))

    def _before_last(self, place: int, other: int) -> int:
        """The place of a result of the block before the last copy that call ``place`` behind all blocks refers to.

        It prepares the backward pass of that block, as a call of the next block does for the one before that.
        """
        calls, next_ = self.read.both.graph.calls, place + self.backward.length
        pair = [calls[place], calls[next_]] if self.backward.first <= next_ < self.backward.second else []
        if not pair or _sizes(pair[0]) != _sizes(pair[1]) or other - self.forward.length not in _read_by(pair[1]):
            raise UnlikeBlocksError(f"{calls[place].name} reads results of a block that is not next to it")
        return other + self.copies * self.forward.length

    def _copy(self, period: _Period, is_backward: bool, found: list[Call]) -> None:
        """Add all blocks, of which the first and the last are the two in the middle."""
        calls = self.read.both.graph.calls
        rows = [
            self._row(calls[place], calls[place + period.length], is_backward)
            for place in range(period.first, period.second)
        ]
        for turn in range(self.copies + 2):
            block = self.copies + 1 - turn if is_backward else turn
            for call, node, name, places, numbers in rows:
                inputs, held, own = (tuple(start + turn * each for start, each in one) for one in places)
                of = own[0] if own else None
                before = self._node(node, block) if of is None else found[of].name
                resident = tuple((start + block * each, size) for start, each, size in numbers)
                found.append(_with(call, f"{before}{name}{len(found)}", inputs, held, of, resident))

    def _row(self, one: Call, two: Call, is_backward: bool) -> tuple[Any, ...]:
        """A call of the first of two neighbours, and what its copies refer to: where, and how much further each time.

        Names of nodes and numbers of parameters are those of the earlier block; places begin with the first of its
        pass.
        """
        if _sizes(one) != _sizes(two):
            raise UnlikeBlocksError(f"{one.name} is another call in the next block")
        length = self.backward.length if is_backward else self.forward.length

        def moving(first: int, second: int) -> tuple[int, int]:
            if first == second and not any(one.first <= first < one.end for one in (self.forward, self.backward)):
                return self.place(first), 0
            if second - first == length:  # in the same pass, or before it
                return self.place(first) if is_backward else first, length
            if is_backward and first - second == self.forward.length and second < self.read.both.forward:
                return first + self.copies * self.forward.length, -self.forward.length
            raise UnlikeBlocksError(f"{one.name} reads results of another place in the next block")

        places = [tuple(map(moving, getattr(one, name), getattr(two, name))) for name in ("inputs", "held")]
        own = () if one.forward is None or two.forward is None else (moving(one.forward, two.forward),)
        earlier, later = (two, one) if is_backward else (one, two)
        numbers = []
        for (number, size), (other, _) in zip(earlier.resident, later.resident, strict=True):
            if number == other:
                numbers.append((self._number(number), 0, size))
            elif self._owners.get(number, self.blocks.few) <= self.middle and other - number == self._stride(number):
                numbers.append((self._number(number), other - number, size))
            else:
                raise UnlikeBlocksError(f"{one.name} reads another tensor in the next block")
        return one, earlier.name.partition("#")[0], _pass(one), (*places, own), tuple(numbers)

    def _results(self) -> tuple[int, ...]:
        kept = (self.place(place) for place in self.read.made.graph.results)
        return tuple(dict.fromkeys((*kept, *self._ready.values())))

    @cached_property
    def _ready(self) -> dict[int, int]:
        """Number of a parameter -> place of the call that makes its gradient, in the order of the backward pass."""
        found, own, ready = dict[int, int](), list[int](), self.read.both.ready
        for number in (*ready, -1):
            if self._owners.get(number) == self.middle:
                own.append(number)
                continue
            for turn in range(self.copies, -1, -1) if own else ():
                found |= {self._number(each, turn): self._made(each, turn) for each in own}
            own = []
            if number >= 0:
                found[self._number(number)] = self.place(ready[number])
        return found

    def _made(self, number: int, turn: int) -> int:
        """Place of the call that makes the gradient of a parameter of the block in the middle, or of a copy."""
        ready = self.read.both.ready
        later = ready.get(number + self._stride(number))
        if later is None or ready[number] - later != self.backward.length:
            raise UnlikeBlocksError("gradients are not made in the same order in the next block")
        return later + self.copies * self.forward.length + (self.copies + 1 - turn) * self.backward.length

    def _by_place(self, values: Mapping[int, _Value]) -> dict[int, _Value]:
        """Return what is said of some calls for all of them, in their order."""
        found = dict[int, _Value]()
        for place, value in values.items():
            found[self.place(place)] = value
            for period, is_backward in ((self.forward, False), (self.backward, True)):
                if period.first <= place < period.second:
                    start = place + is_backward * self.copies * self.forward.length
                    for turn in range(1, self.copies + 1):
                        found[start + turn * period.length] = value
        return dict(sorted(found.items()))

    @cached_property
    def _inputs(self) -> list[tuple[str, str]]:
        """Name of each node that is an input of the graph, and of the parameter or buffer that it is."""
        signature = self.exported.graph_signature
        targets = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
        return [
            (node.name, targets.get(node.name, "")) for node in self.exported.graph.nodes if node.op == "placeholder"
        ]

    def _block(self, name: str) -> int | None:
        """Return the block of a parameter or buffer."""
        head = f"{self.path}."
        first = name.removeprefix(head).partition(".")[0] if name.startswith(head) else None
        return None if first is None else self.blocks.names.index(first)

    @cached_property
    def _owners(self) -> dict[int, int]:
        """Number of a parameter or buffer of a block -> the block."""
        found = {number: self._block(name) for number, (_, name) in enumerate(self._inputs)}
        return {number: block for number, block in found.items() if block is not None}

    @cached_property
    def _groups(self) -> dict[int, tuple[int, int]]:
        """Number of a parameter or buffer of a block -> (first of its kind in the middle one, how many it has)."""
        signature, found = self.exported.graph_signature, dict[int, tuple[int, int]]()
        for names in (signature.inputs_to_parameters, signature.inputs_to_buffers):
            own = [number for number in self._owners if self._inputs[number][0] in names]
            each = [[number for number in own if self._owners[number] == block] for block in range(self.blocks.few)]
            if own != [number for numbers in each for number in numbers] or len({*map(len, each)}) != 1:
                raise UnlikeBlocksError("parameters of blocks are not one behind the other")
            if own and own != list(range(own[0], own[-1] + 1)):
                raise UnlikeBlocksError("parameters of blocks are not one behind the other")
            found |= {number: (each[self.middle][0], len(each[self.middle])) for number in own}
        return found

    def _stride(self, number: int) -> int:
        return self._groups[number][1]

    def _number(self, number: int, turn: int = 0) -> int:
        """The number of an input of the graph among those of all blocks; of the one in the middle that of its copy."""
        past = turn * self._stride(number) if turn else 0
        for first, length in dict.fromkeys(self._groups.values()):
            past += self.copies * length * (number >= first + length)
        return number + past

    @cached_property
    def _block_bytes(self) -> int:
        """Bytes of all parameters and buffers of a block, as the graph has them."""
        from cdmpp.network.eager.divided import bytes_of_value

        nodes = [node for node in self.exported.graph.nodes if node.op == "placeholder"]
        own = (nodes[number] for number, block in self._owners.items() if block == self.middle)
        return sum(bytes_of_value(node.meta.get("val")) for node in own)

    @cached_property
    def _nodes(self) -> tuple[list[str], list[str]]:
        """Nodes of the two blocks in the middle, in their order."""
        places = self.read.made.places
        nodes = [node.name for node in self.exported.graph.nodes if node.op == "call_function"]
        starts = {
            place: at
            for at, name in enumerate(nodes)
            if name in places
            for place in range(places[name][0], places[name][1] + 1)
        }
        first, second, end = (starts[place] for place in (self.forward.first, self.forward.second, self.forward.end))
        return nodes[first:second], nodes[second:end]

    @property
    def _views(self) -> int:
        """Nodes of a block that run nothing."""
        return sum(name not in self.read.made.places for name in self._nodes[0])

    def _parameter(self, name: str, turn: int = 0) -> str:
        """The name of a parameter or buffer among those of all blocks; of the one in the middle that of its copy."""
        block = self._block(name)
        if block is None:
            return name
        own = self.blocks.names[block + turn if block <= self.middle else block + self.copies]
        rest = name.removeprefix(f"{self.path}.").partition(".")
        return f"{self.path}.{own}.{rest[2]}"

    def _turns(self, name: str) -> range:
        return range(self.copies + 1 if self._block(name) == self.middle else 1)

    def _named(self, values: Mapping[str, _Value]) -> dict[str, _Value]:
        return {self._parameter(name, turn): value for name, value in values.items() for turn in self._turns(name)}

    def _numbered(self, names: Mapping[int, str]) -> dict[int, str]:
        found = {
            self._number(number, turn): self._parameter(name, turn)
            for number, name in names.items()
            for turn in self._turns(name)
        }
        return dict(sorted(found.items()))

    @cached_property
    def _counts(self) -> dict[str, tuple[int, int]]:
        """First part of the names of nodes -> the last number that one has in the middle block, and how many it has.

        Nodes are numbered through, as ``torch.fx`` does it. Names that are not get no new ones.
        """
        steps, last = dict[str, set[int]](), dict[str, int]()
        for (base, number), (other, further) in zip(*(map(_split, names) for names in self._nodes), strict=False):
            steps.setdefault(base, set()).add(further - number if base == other else 0)
            last[base] = max(last.get(base, 0), number)
        return {base: (last[base], *each) for base, each in steps.items() if len(each) == 1}  # type: ignore[misc]

    def _node(self, name: str, turn: int = 0) -> str:
        """The name of a node among those of all blocks; of the one in the middle that of its copy."""
        base, number = _split(name)
        last, each = self._counts.get(base, (number, 0))
        if turn and not each:
            return f"{name}.{turn}"
        return name if not each else _joined(base, number + each * (turn if number <= last else self.copies))

    def _placeholders(self) -> dict[str, str]:
        """Return the node of each parameter; those of copies have names of their own."""
        found = dict[str, str]()
        for node, name in self.read.placeholders.items():
            for turn in self._turns(name):
                found[f"{node}.{turn}" if turn else node] = self._parameter(name, turn)
        return found

    def _exchanges(self) -> Iterator[NodeExchange]:
        """Return the exchanges of all blocks, those of copies behind those in the middle."""
        own = list[NodeExchange]()
        for one in (*self.read.exchanges, None):
            is_own = one is not None and self._is_of_middle(one)
            if own and not is_own:
                for turn in range(1, self.copies + 1):
                    yield from (self._exchange(each, turn) for each in own)
                own = []
            if one is not None:
                own += [one] * is_own
                yield self._exchange(one, 0)

    def _is_of_middle(self, one: NodeExchange) -> bool:
        if (name := self.read.placeholders.get(one.node)) is not None:
            return self._block(name) == self.middle
        return self.forward.first <= self.read.made.places.get(one.node, (-1, -1))[0] < self.forward.second

    def _exchange(self, one: NodeExchange, turn: int) -> NodeExchange:
        def named(name: str) -> str:
            if name in self.read.placeholders:
                return f"{name}.{turn}" if turn else name
            return self._node(name, turn) if name else ""

        place = self.read.made.places.get(one.node, (self.forward.second, 0))[0]
        past = turn if place < self.forward.second else self.copies
        if (parameter := self.read.placeholders.get(one.node)) is not None:
            past = turn if (self._block(parameter) or 0) <= self.middle else self.copies
        return replace(one, node=named(one.node), of=named(one.of), name=self._title(one.name, past))

    def _place_in(self, title: str) -> tuple[int, tuple[int, int]] | None:
        """Return the number of the block in which a title is, and where the title says it; None where it is in none."""
        last = self.path.rpartition(".")[2]
        found = re.search(rf"(?<![^. ]){re.escape(last)}\.([^. ,]+)", title)
        if found is None or found[1] not in self.blocks.names[: self.blocks.few]:
            return None
        return self.blocks.names.index(found[1]), found.span(1)

    def _title(self, title: str, past: int) -> str:
        """The same title so many blocks further."""
        if (found := self._place_in(title)) is None:
            return title
        block, (first, end) = found
        return f"{title[:first]}{self.blocks.names[block + past]}{title[end:]}"

    def _warning(self, text: str) -> str:
        """A warning that lists layers, with those of all blocks."""
        found = list[str]()
        for one in text.split(", "):
            block = (self._place_in(one) or (-1,))[0]
            found.append(self._title(one, self.copies if block > self.middle else 0))
            if block == self.middle:
                found += [self._title(one.rpartition(" ")[2], turn) for turn in range(1, self.copies + 1)]
        return ", ".join(found)


def _pass(call: Call) -> str:
    """This stands between the name of a node, or of a call of the forward pass, and the place of a call."""
    return "#" if call.forward is None else f" {call.name.rpartition(' ')[2].rstrip('0123456789')}"


def _sizes(call: Call) -> dict[str, Any]:
    return {
        **{name: value for name, value in vars(call).items() if name not in _REFERRING},
        "refers": [len(call.inputs), len(call.held), call.forward is None, [size for _, size in call.resident]],
    }


def _read_by(call: Call) -> tuple[int | None, ...]:
    return *call.inputs, *call.held, call.forward


def _with(
    call: Call, name: str, inputs: tuple[int, ...], held: tuple[int, ...], forward: int | None,
    resident: tuple[tuple[int, int], ...],
) -> Call:  # fmt: skip
    """Return the same call elsewhere; much faster than ``replace``, for many of them."""
    made = object.__new__(Call)
    made.__dict__.update(call.__dict__, name=name, inputs=inputs, held=held, forward=forward, resident=resident)
    return made


def _split(name: str) -> tuple[str, int]:
    base, _, number = name.rpartition("_")
    return (base, int(number)) if base and number.isdecimal() else (name, 0)


def _joined(base: str, number: int) -> str:
    return f"{base}_{number}" if number else base
