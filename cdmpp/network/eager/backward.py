"""The backward pass of a network of framework operators, behind its forward pass."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from cdmpp.network.eager.formula import GIVEN, Formula
from cdmpp.network.eager.graph import EagerGraph, GrownTasks
from cdmpp.network.eager.learning import Buffer, Factor, Part, trained_places
from cdmpp.network.eager.recomputation import Recomputation
from cdmpp.network.graph import Call, NetworkGraph
from cdmpp.network.liveness import CallBytes, Lifetimes
from cdmpp.operators import attention
from cdmpp.operators.backward import Gradient, accumulation_of, backward_of, table_gradient
from cdmpp.operators.float8 import casts_before
from cdmpp.operators.operator import EagerOperator

ADDING = ("linear", "bmm")
"""Products that may add a third tensor, a bias or one as large as they are."""


class ForwardBackward(NamedTuple):
    """The calls of this network are those of its forward pass, then those of its backward pass."""

    graph: NetworkGraph
    operators: dict[str, EagerOperator]
    """Task id -> operator."""
    forward: int
    """Number of calls of the forward pass."""
    ready: dict[int, int]
    """Number of a parameter, as in ``Call.resident`` -> place of the call that makes its gradient."""
    recomputed: frozenset[int]
    """Places of the calls of the backward pass that run one of the forward pass again."""
    elements: Mapping[int, float]
    """Place of a call that ``EagerOperator.flat`` made -> its elements."""


def with_backward(made: EagerGraph, accumulates: bool = True) -> ForwardBackward:
    """Add calls in the opposite order; what they read of the forward pass lives until then.

    What depends on no parameter has no backward pass, and an input that does not, no gradient. What
    ``torch.utils.checkpoint`` recomputes is not kept: it runs again when the backward pass first needs a result of it.

    Args:
        made: the forward pass.
        accumulates: gradients are added to those of the step before; else they take their places, as torch does it
            where ``zero_grad`` sets them to None.
    """
    return _Backward(made, accumulates).run()


class _Backward:
    def __init__(self, made: EagerGraph, accumulates: bool) -> None:
        self.graph, self.operators, self.learning = made.graph, made.operators, made.learning
        self.accumulates, self.scaling = accumulates, made.scaling
        self.grown = GrownTasks(self.graph.name, self.operators.values())
        self.elements, self.returns, self.places = dict(made.elements), made.returns, made.places
        self.silent, self.convolutions = made.silent, made.convolutions
        self.views, self.weight_views = made.views, made.weight_views
        self.calls = list(self.graph.calls)
        self.saved = dict[int, dict[int, int]]()
        """Call of the forward pass, or that runs one again -> buffers of it that gradients are made from: bytes."""
        self.moved = dict[int, dict[int, int]]()
        """Call that runs one again -> buffers of the call behind it, before which its region stops: bytes."""
        self.again = Recomputation(self.learning)
        self.copies = list[int]()
        """Places of calls of the forward pass that run again."""
        self.trained = trained_places(self.learning, self.graph.results)
        self.held, self.ends = dict[int, tuple[int, ...]](), dict[int, int]()
        """Reentrant region -> calls whose results it holds; the first call of one that is trained -> the region."""
        self.gradients = dict[int, list[int]]()
        """Call of the forward pass -> calls that make the gradient of its result, in parts."""
        self.ready = dict[int, int]()
        self.waiting = dict[tuple[int, int], list[int]]()
        """Call of the forward pass, number of a parameter -> calls that make the gradients of views that it reads."""
        self.heads = list[int]()
        """Call of the forward pass -> the first of those that a library launches with it."""
        for place, call in enumerate(self.graph.calls):
            self.heads.append(self.heads[-1] if call.is_joined else place)
        self.begun = set[int]()
        """First calls of such, of whose backward pass the host has dispatched one."""
        self.made = dict[int, tuple[int, ...]]()
        """Call of the forward pass -> calls that make its gradients."""

    def run(self) -> ForwardBackward:
        for place, one in enumerate(self.learning):
            if one.is_stored and self.trained[place]:  # whether or not a call reads it again
                self.saved[place] = {buffer.number: buffer.bytes for buffer in one.made}
        for place in reversed(range(len(self.graph.calls))):
            if self.trained[place]:
                self._call(place)
        for first, last in self.places.values():
            self._temporaries(first, last)
        copies = frozenset(self.copies)
        for place in (*range(len(self.learning)), *self.copies):
            self.calls[place] = self._kept(place, self.calls[place].forward if place in copies else place)
        for place, size in self._gradient_bytes().items():
            self.calls[place] = replace(self.calls[place], gradient_bytes=size)
        for place in range(len(self.graph.calls)):
            self.calls[place] = replace(self.calls[place], result_bytes=self._result_bytes(place))
        results = tuple(dict.fromkeys((*self.graph.results, *self.ready.values())))
        return ForwardBackward(
            replace(self.graph, calls=tuple(self.calls), tasks=self.grown.tasks, results=results),
            self.grown.operators, len(self.graph.calls), self.ready, copies,
            self.elements,
        )  # fmt: skip

    def _kept(self, place: int, origin: int | None) -> Call:
        """Call ``place``, which is call ``origin`` of the forward pass or runs it again, with the bytes that are kept.

        What it writes for a backward pass that does not read it, since its region runs again, is let go at once.
        """
        call, one = self.calls[place], self.learning[place if origin is None else origin]
        own = {buffer.number: buffer.bytes for buffer in one.kept if buffer.place == origin}
        buffers, made = self.saved.get(place, {}), {buffer.number for buffer in one.made}
        lost = sum(size for number, size in own.items() if number not in made and number not in buffers)
        if lost:
            held = call.workspace_bytes + lost
            call = replace(call, output_bytes=max(call.output_bytes - lost, 0), workspace_bytes=held)
        if place not in self.saved:
            return call
        if moved := self.moved.get(place):
            whole = call.output_bytes + sum(moved.values())
            own, call = own | moved, replace(call, output_bytes=whole, result_bytes=call.output_bytes)
        kept = sum(size for number, size in buffers.items() if number in own)
        return replace(call, saved_bytes=sum(buffers.values()), own_saved_bytes=kept)

    def _gradient_bytes(self) -> dict[int, int]:
        """Call of the backward pass -> bytes of gradients of parameters that it writes beside others."""
        sizes, found = dict(pair for call in self.graph.calls for pair in call.resident), dict[int, int]()
        for number, place in self.ready.items():
            while not self.calls[place].output_bytes and self.calls[place].inputs:  # in place
                place = self.calls[place].inputs[0]
            found[place] = found.get(place, 0) + sizes[number]
        return {place: size for place, size in found.items() if size < self.calls[place].output_bytes}

    def _call(self, place: int) -> None:
        operator, part = self.operators[self.graph.calls[place].task_id], self.learning[place].part
        given = self.gradients.get(place, [])
        tree = None if part else self.views.get(place)
        formula, arrivals = (tree.formula, tree.arrivals) if tree else (None, 1)
        left = arrivals if formula and formula.steps else 1  # it adds them up itself
        for _ in range(max(len(given), arrivals) - left):
            summed = accumulation_of(int((part.whole if part else operator).written_elements), operator.result_dtype)
            given = [self._add(place, summed, given, self._result_bytes(place))]
        if formula and formula.steps:
            given = [self._steps(place, formula, given)[formula.makers[0]]]
        for other in self.again.before(place):
            self._again(other)
        self._hold(place, given)
        begin = len(self.calls)
        if part:
            self._part(place, part, given)
        else:
            self._gradients(place, given, self.learning[place].sources)
        self.made[place] = tuple(range(begin, len(self.calls)))
        self._let_go(place)

    def _hold(self, place: int, given: Sequence[int]) -> None:
        """Let a reentrant region hold its result, which ran again, and the gradient of it, until it is done."""
        for region in self.learning[place].again:
            if not region.waits and region.number not in self.held:
                own = self.again.own[region.number]
                self.held[region.number] = (*given, self.again.latest(own[-1]))
                self.ends[min(one for one in own if self.trained[one])] = region.number

    def _let_go(self, place: int) -> None:
        """Let the last call of a reentrant region's backward pass read what the region held."""
        number = self.ends.get(place)
        if number is not None and len(self.calls) > len(self.learning):
            last = self.calls[-1]
            held = (one for one in self.held[number] if one < len(self.calls) - 1)
            self.calls[-1] = replace(last, inputs=tuple(dict.fromkeys((*last.inputs, *held))))

    def _temporaries(self, first: int, last: int) -> None:
        """Calls of the forward pass from ``first`` to ``last`` are one node: its gradients need temporaries, too.

        Nobody says which of its calls makes them: they count while most is alive.
        """
        made = [one for place in range(last, first - 1, -1) for one in self.made.get(place, ())]
        if not made or not self.learning[last].backward_bytes:
            return
        numbers = {one: number for number, one in enumerate(made, 1)}
        calls = [Call("", "", (), self._result_bytes(last))]
        for one in made:
            read = (
                place for place in self.calls[one].inputs if place >= len(self.learning) and place not in self.copies
            )
            own = tuple(numbers.get(place, 0) for place in read)
            calls.append(replace(self.calls[one], name="", task_id="", inputs=own, resident=(), forward=None))
        most, alive = _most_alive(tuple(calls))
        more = max(self.learning[last].backward_bytes - alive, 0)
        held = self.calls[made[most - 1]].workspace_bytes
        self.calls[made[most - 1]] = replace(self.calls[made[most - 1]], workspace_bytes=held + more)

    def _part(self, place: int, part: Part, given: Sequence[int]) -> None:
        """Call ``place`` writes into a part: its gradient is that of the part, put back into that of the whole."""
        operator = self.operators[self.graph.calls[place].task_id]
        whole = self._add(place, part.whole, given, self._result_bytes(place))
        last = self._add(place, part.part, (whole,), part.bytes)
        if operator.name == "copy" and not self.learning[place].kept:
            self._pass(part.written, last)
            weights = self._weights(place)
            self._give(place, weights, last)
            self._accumulate(place, weights)
            if part.sources:  # the gradient of what was there before is zero
                last = self._add(place, operator, (last,), part.bytes)
        else:
            last = self._gradients(place, [last], part.written, part.bytes)
        if part.sources:
            self._add(place, part.part, (whole, last), 0)
            self._pass(part.sources, whole)

    def _gradients(self, place: int, given: Sequence[int], passed: frozenset[int], part_bytes: int = 0) -> int:
        """Add the calls of an operator's gradient, which is passed on to ``passed`` alone, and return the last."""
        operator, weights, last = self.operators[self.graph.calls[place].task_id], self._weights(place), place
        if place in self.silent:
            for made in given:
                self._pass(passed, made)
                self._give(place, weights, made)
            return given[-1] if given else place
        buffers = [(self._holder(buffer), buffer) for buffer in self.learning[place].kept]
        for owner, buffer in buffers:
            self.saved.setdefault(owner, {})[buffer.number] = buffer.bytes
        if (formula := self.learning[place].formula) is not None:
            return self._by_formula(place, formula, given, tuple(owner for owner, _ in buffers), passed)
        parts, factors = self.returns.get(place) or backward_of(operator), self.learning[place].factors
        added = factors[2] if len(factors) > 2 and operator.name in ADDING else None
        parts = parts[:2] if added else parts
        held = _held(parts, weights, operator.result_element_bytes, factors)
        for index, one in enumerate(parts):
            own = [number for number in weights if index in held[number]]
            sources = self._sources(place, index, one, bool(weights))
            needed = own or sources or one.is_always or not one.of
            if not needed and (operator.name != "bmm" or factors):
                continue
            written = sum(self._result_bytes(key) if key in passed else part_bytes for key in sources)
            written += 0 if operator.name == "embedding" else sum(weights[key] for key in own)
            read = (*given, *(owner for owner, _ in buffers if one.reads_saved))
            for cast in casts_before(one.operator, self.scaling, one.of) if one.operator.dtype == "float8" else ():
                self._add(place, cast, read, 0)
            last = self._add(place, one.operator, read, written, one.of, one.held_bytes)
            self._join(place, last)
            if not one.of:
                given = [last]
            self._pass(passed.intersection(sources), last)
            if operator.name != "embedding":
                self._give(place, {number: weights[number] for number in own}, last)
        last = self._added(place, added, given, passed) or last
        if given and operator.name != "embedding" and all(one.of == "weight" for one in parts):  # of a bias
            self._pass(passed.intersection(self.graph.calls[place].inputs[:1]), given[-1])
        if operator.name == "embedding" and weights:
            whole = table_gradient(sum(weights.values()) // operator.result_element_bytes, operator.result_dtype)
            self._give(place, weights, self._add(place, whole, (last,), sum(weights.values())))
        self._accumulate(place, weights)
        return last

    def _added(self, place: int, added: Factor | None, given: Sequence[int], passed: frozenset[int]) -> int | None:
        """Pass the gradient of a product on to what is added to it: a sum, where that is smaller; return the last call.

        What is as large as the product has the gradient of the result.
        """
        if added is None:
            return None
        operator, weights = self.operators[self.graph.calls[place].task_id], self._weights(place)
        own = {number: size for number, size in weights.items() if number in added.weights}
        sources, whole = passed & added.sources, int(operator.written_elements)
        if not (own or sources):
            return None
        made = next(iter(given[-1:]), None)
        if added.elements < whole:
            sizes = {"rows": added.elements, "cols": whole // added.elements}
            summed = EagerOperator("mean", sizes, operator.result_dtype)
            made = self._add(place, summed, given, added.elements * operator.result_element_bytes)
            self._join(place, made)
        if made is not None:
            self._pass(sorted(sources), made)
            self._give(place, own, made)
        return made

    def _by_formula(
        self, place: int, formula: Formula, given: Sequence[int], saved: tuple[int, ...], passed: frozenset[int]
    ) -> int:
        """Add the kernels of the gradients of a call; without ``given`` what it hands on is that of the result."""
        weights, made = self._weights(place), self._steps(place, formula, given, saved)
        last = made[-1] if made else place
        for argument, maker in formula.makers.items():
            factor = self.learning[place].arguments[argument]
            from_call = made[maker] if maker != GIVEN else next(iter(given[-1:]), None)
            if from_call is not None:
                self._pass(sorted(passed & factor.sources), from_call)
                self._give(place, {number: weights[number] for number in weights.keys() & factor.weights}, from_call)
        self._accumulate(place, weights)
        return last

    def _steps(self, place: int, formula: Formula, given: Sequence[int], saved: tuple[int, ...] = ()) -> list[int]:
        """Add the kernels of a formula, and return the last call of each."""
        made = list[int]()
        for step in formula.steps:
            read = [*(given if GIVEN in step.reads or not step.reads else ()), *(made[i] for i in step.reads if i >= 0)]
            for operator in step.operators:
                written = step.written_bytes
                if operator is not step.operators[-1]:
                    written = min(written, int(operator.written_bytes)) if written else 0
                read = [last := self._add(place, operator, (*read, *saved), written)]
            made.append(last)
        return made

    def _join(self, place: int, made: int) -> None:
        """Note that a library launches call ``made`` with others, as it did call ``place`` of the forward pass."""
        head = self.heads[place]
        if head in self.begun:
            self.calls[made] = replace(self.calls[made], is_joined=True)
        elif self.heads[head + 1 : head + 2] == [head]:
            self.begun.add(head)

    def _weights(self, place: int) -> dict[int, int]:
        """Parameters that the gradient of a call goes to -> their bytes."""
        resident = self.graph.calls[place].resident
        return {number: size for number, size in resident if number in self.learning[place].weights}

    def _accumulate(self, place: int, weights: Mapping[int, int]) -> None:
        operator = self.operators[self.graph.calls[place].task_id]
        for (number, size), tree in ((one, self.weight_views.get((place, one[0]))) for one in weights.items()):
            if tree and tree.formula and (made := self.waiting.pop((place, number), [])):
                self._ready(place, number, size, self._steps(place, tree.formula, made)[tree.formula.makers[0]])
        for number, size in weights.items() if self.accumulates else ():
            summed = accumulation_of(size // operator.result_element_bytes, operator.result_dtype)
            self.ready[number] = self._add(place, summed, (self.ready[number],), size)

    def _pass(self, sources: Iterable[int], made: int) -> None:
        """Call ``made`` has the gradient of the results of ``sources``, or a part of it."""
        for source in sources:
            self.gradients.setdefault(source, []).append(made)

    def _result_bytes(self, place: int) -> int:
        """Bytes of the result of a call, and so of its gradient: not of what it writes for its backward pass."""
        made = self.learning[place].made
        return sum(one.bytes for one in made) if made else self.calls[place].output_bytes

    def _again(self, place: int) -> None:
        """Call ``place`` of the forward pass runs for another time."""
        call = self.calls[place]
        inputs = (*map(self.again.latest, call.inputs), *self.again.given_back())
        for source in inputs:
            for one in self.learning[source].made if source < len(self.learning) else ():
                self.saved.setdefault(source, {})[one.number] = one.bytes
        if place in self.elements:
            self.elements[len(self.calls)] = self.elements[place]
        name = f"{call.name} recomputed#{len(self.calls)}"
        held = tuple(map(self.again.latest, call.held))
        self.calls.append(replace(call, name=name, inputs=inputs, held=held, forward=place))
        self.copies.append(len(self.calls) - 1)
        self.again.done(place, self.copies[-1])

    def _give(self, place: int, weights: Mapping[int, int], made: int) -> None:
        """Call ``made`` has their gradients, or those of views of them, of which autograd makes theirs at the end."""
        for number, size in weights.items():
            tree = self.weight_views.get((place, number))
            if tree and tree.formula and tree.formula.makers[0] != GIVEN:
                self.waiting.setdefault((place, number), []).append(made)
            else:
                self._ready(place, number, size, made)

    def _ready(self, place: int, number: int, size: int, made: int) -> None:
        """Call ``made`` has the gradient of a parameter, to which those that others made of it are added."""
        if number in self.ready and not self.accumulates:
            operator = self.operators[self.graph.calls[place].task_id]
            summed = accumulation_of(size // operator.result_element_bytes, operator.result_dtype)
            self.ready[number] = self._add(place, summed, (self.ready[number], made), size)
        else:  # what is added to the step before is added for each reader
            self.ready[number] = made

    def _sources(self, place: int, index: int, one: Gradient, has_weights: bool) -> tuple[int, ...]:
        """Calls of the forward pass of whose results ``one``, the part ``index``, is the gradient."""
        factors = self.learning[place].factors
        if factors:
            return tuple(sorted(factors[index].sources)) if index < len(factors) else ()
        inputs = tuple(source for source in self.graph.calls[place].inputs if source in self.learning[place].sources)
        if one.of == "inputs" or (one.operator.name == "embedding" and not has_weights):  # looked up in a result
            return inputs
        if one.of == "first":
            return inputs[:1]
        return inputs[1:] if one.of == "second" or (one.of == "weight" and not has_weights) else ()

    def _holder(self, buffer: Buffer) -> int:
        """Return the call that writes a buffer last before a gradient is made of it."""
        place = buffer.place
        if any(buffer.number == one.number for one in self.learning[place].made):
            return self.again.latest(place)
        found = self.again.holder(place)
        if found != self.again.latest(place):
            self.moved.setdefault(found, {})[buffer.number] = buffer.bytes
        return found

    def _add(
        self, place: int, operator: EagerOperator, inputs: Sequence[int], written: int, of: str = "", beside: int = 0
    ) -> int:
        call = self.graph.calls[place]
        name = f"{call.name} backward#{len(self.calls)}"
        read = tuple(dict.fromkeys((*inputs, *self.again.given_back())))
        is_same = operator is self.operators[call.task_id]
        if elements := self.elements.get(place, 0) if is_same else operator.elements:
            self.elements[len(self.calls)] = elements
        if (copies := self.convolutions.get(place)) and of:
            held = copies.of_filter if of == "weight" else copies.of_input
        else:
            held = attention.workspace_bytes(operator.name, operator.sizes, operator.element_bytes)
        made = Call(name, self.grown.task(operator), read, written, call.resident, forward=place)
        held += beside
        self.calls.append(replace(made, workspace_bytes=held) if held else made)
        return len(self.calls) - 1


@lru_cache(maxsize=10_000)
def _most_alive(calls: tuple[Call, ...]) -> tuple[int, int]:
    """Return the call behind the first during which most bytes are alive, and these; what none reads lives on."""
    unread = {*range(1, len(calls))}.difference(*(call.inputs for call in calls))
    order = Lifetimes.of(calls, [(number, False) for number in range(len(calls))])
    alive = order.alive(CallBytes.of(calls), unread)[0].tolist()
    most = max(range(1, len(calls)), key=alive.__getitem__)
    return most, alive[most]


def _held(
    parts: Sequence[Gradient], weights: Mapping[int, int], element_bytes: int, factors: Sequence[Factor]
) -> dict[int, set[int]]:
    """Number of a weight -> which parts make its gradient.

    Those of its factors, else one whose result is as large and that no other has yet, else the first for weights.
    """
    known = {number: {i for i, one in enumerate(factors) if number in one.weights} for number in weights}
    own = [index for index, one in enumerate(parts) if one.of == "weight"] or [len(parts) - 1]
    sizes = {index: int(parts[index].operator.written_elements) * element_bytes for index in own}
    held, free = dict[int, set[int]](), list(own)
    for key, size in weights.items():
        as_large = [i for i in own if sizes[i] == size]
        guess = next((i for i in as_large if i in free), as_large[0] if as_large else own[0])
        held[key] = known[key] or {guess}
        free = [i for i in free if i not in held[key]]
    return held
