"""Open read: the operators of a network at any batch of a range, where each number of the read is on a line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from cdmpp.errors import CdmppError
from cdmpp.network.eager.eager_network import EagerNetwork
from cdmpp.network.eager.plain_read import plain_read, restored_operator, restored_read
from cdmpp.operators.operator import EagerOperator
from cdmpp.operators.operator_task import task_id

_EACH, _MORE = "each", "more"
"""A number on a line: what an example adds, and what is there without any."""


def plain_open_read(low: EagerNetwork, high: EagerNetwork) -> dict[str, Any]:
    """Return the read of all batches between two, as plain values of JSON; whoever stores it proves it.

    ``CdmppError``: the calls of both reads differ in more than numbers, or one of these is on no line of whole numbers.
    """
    both, plain = (low, high), (plain_read(low), plain_read(high))
    ids = list(zip(*([call.task_id for call in read.graph.calls] for read in both), strict=False))
    pairs = {pair: place for place, pair in enumerate(dict.fromkeys(ids))}
    own = [[read.operators[key] for read, key in zip(both, pair, strict=True)] for pair in pairs]
    flat = [all(one.elements and _flat(asdict(one)) == one for one in pair) for pair in own]
    for side, read in enumerate(plain):
        read["operators"] = [
            {**asdict(pair[side]), **({"sizes": None} if is_flat else {})}
            for pair, is_flat in zip(own, flat, strict=True)
        ]
    for *calls, pair in zip(*(read["graph"]["calls"] for read in plain), ids, strict=False):
        place = pairs[pair]
        is_result = all(c["output_bytes"] == one.written_bytes for c, one in zip(calls, own[place], strict=True))
        for call in calls:
            call |= {"task_id": place} | ({"output_bytes": None} if flat[place] and is_result else {})
    return {"least": low.batch, "most": high.batch, "read": _line(*plain, low.batch, high.batch)}


def is_open(stored: Any) -> bool:
    """Return True for what ``plain_open_read`` made."""
    return isinstance(stored, dict) and "least" in stored


def read_at(stored: Mapping[str, Any], batch: int) -> EagerNetwork | None:
    """Return the read of ``batch`` examples that ``plain_open_read`` tells of; None where it does not.

    ``CdmppError`` or a built-in error of values that are none.
    """
    if not stored["least"] <= batch <= stored["most"]:
        return None
    plain = _at(stored["read"], batch)
    made = [_flat(one) if one["sizes"] is None else restored_operator(one) for one in plain["operators"]]
    ids = list(map(task_id, made))
    for call in plain["graph"]["calls"]:
        place = call["task_id"]
        call["task_id"] = ids[place]
        if call["output_bytes"] is None:
            call["output_bytes"] = int(made[place].written_bytes)
    operators: dict[str, EagerOperator] = {}
    for key, one in zip(ids, made, strict=True):
        operators.setdefault(key, one)
    return restored_read(plain, operators)


def _flat(one: Mapping[str, Any]) -> EagerOperator:
    return EagerOperator.flat(one["name"], one["elements"], one["dtype"], tuple(one["reads"]))


def _line(low: Any, high: Any, first: int, last: int) -> Any:
    """One value for both batches: numbers that differ are on a line, all else is equal."""
    if type(low) is not type(high):
        raise CdmppError(f"{low!r} at batch {first} is {high!r} at {last}")
    if isinstance(low, dict) and low.keys() == high.keys():
        return {name: _line(value, high[name], first, last) for name, value in low.items()}
    if isinstance(low, list | tuple) and len(low) == len(high):
        return [_line(*pair, first, last) for pair in zip(low, high, strict=True)]
    if low == high:
        return low
    if type(low) in (int, float):
        each = (high - low) / (last - first) if type(low) is float else (high - low) // (last - first)
        if (more := low - first * each) + last * each == high:
            return {_EACH: each, _MORE: more}
    raise CdmppError(f"{str(low)[:60]} at batch {first} is {str(high)[:60]} at {last}: on no line of whole numbers")


def _at(value: Any, batch: int) -> Any:
    """Return the value at a batch."""
    if isinstance(value, dict):
        if value.keys() == {_EACH, _MORE}:
            return value[_EACH] * batch + value[_MORE]
        return {name: _at(own, batch) for name, own in value.items()}
    return [_at(own, batch) for own in value] if isinstance(value, list) else value
