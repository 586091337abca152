"""A step graph from a table of layers: seconds and bytes that somebody else measured or published."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cdmpp.errors import DataError
from cdmpp.platform.content import content_of, parse_json
from cdmpp.steps.module_span import ModuleSpan
from cdmpp.steps.step_graph import Gradient, Op, RankGraph, StepGraph
from cdmpp.steps.transforms.scale import scale_ranks


@dataclass(frozen=True)
class Layer:
    """A layer is one row of the table."""

    name: str
    forward_s: float
    """Seconds of its forward pass."""
    backward_s: float
    """Seconds of its backward pass."""
    parameter_bytes: int
    """Bytes of its parameters; its gradients have as many."""
    output_bytes: int
    """Bytes of its output, which the next layer and its own backward pass read."""
    saved_bytes: int | None = None
    """Bytes that its forward pass leaves for its backward pass; None: those of its output."""
    update_s: float = 0.0
    """Seconds of the update of its parameters."""
    examples: int = 1
    """Its seconds and bytes hold for so many examples at a time."""
    weights_s: float = 0.0
    """Seconds of its backward pass that only the gradients of its parameters take: schedules that divide backward
    passes need them."""
    device: str = ""
    """What it was measured on; empty where the table has one device."""

    def __post_init__(self) -> None:
        for what in (*COLUMNS[1:], *OPTIONAL[:-1]):
            value = getattr(self, what)
            least = 1 if what == "examples" else 0
            if not (value is None and what == "saved_bytes") and not (math.isfinite(value) and value >= least):
                raise DataError(f"layer {self.name!r}: {what} is {value}, expected {least} or more")
        if self.weights_s > self.backward_s or (self.weights_s and not self.parameter_bytes):
            raise DataError(
                f"layer {self.name!r}: weights_s is {self.weights_s}, expected a part of backward_s, "
                f"{self.backward_s}, of a layer with parameters"
            )


COLUMNS = ("name", "forward_s", "backward_s", "parameter_bytes", "output_bytes")
"""Columns of every table of layers, in any order."""
OPTIONAL = ("saved_bytes", "update_s", "examples", "weights_s", "device")
"""Columns that a table may have too."""


def read_layers(file: Path | str) -> tuple[Layer, ...]:
    """Read the layers of a CSV file with a head, or of a JSON file with a list of objects.

    Args:
        file: ``*.json``, or anything else for CSV, in UTF-8. Columns are ``COLUMNS``, and any of ``OPTIONAL``; others
            are refused. A layer measured at several numbers of examples, or on several devices, has a row for each.

    Raises:
        DataError: a file that cannot be read, columns that lack or are unknown, a value that is no number.
    """
    file = Path(file)
    try:
        text = content_of(file).decode("utf-8-sig")
        rows = parse_json(text) if file.suffix == ".json" else list(csv.DictReader(io.StringIO(text), strict=True))
    except (ValueError, csv.Error) as error:
        raise DataError(f"cannot read {file}: {error}; expected a CSV table or a JSON list of layers") from error
    if not isinstance(rows, list) or not rows:
        raise DataError(f"{file} has no layers: expected a row for each, with {', '.join(COLUMNS)}")
    return tuple(_layer(row, f"{file}, layer {number}") for number, row in enumerate(rows, 1))


def graph_of_layers(layers: Sequence[Layer], ranks: int = 1, update_s: float = 0.0) -> StepGraph:
    """Make a step of equal ranks that run the layers one after the other.

    Each layer is one op of the forward pass, one op of the backward pass, and, where it has parameters, one gradient
    and one FSDP module. The backward op writes the gradient of the layer's input; that of its parameters comes from
    an op behind it that takes ``weights_s`` of the layer's time and reads what the layer saved.

    Args:
        layers: in the order of the forward pass.
        ranks: how many, each with its own batch.
        update_s: seconds of the update of all parameters, in addition to those of the layers.

    Raises:
        DataError: no layers, or ``update_s`` that is no time.
        CdmppError: no number of ranks.
    """
    if not layers:
        raise DataError("a step without layers: give one or more")
    ops = [
        Op(
            one.name,
            "forward",
            one.forward_s,
            output_bytes=max(one.output_bytes, one.saved_bytes or 0),
            inputs=(place - 1,) if place else (),
            saved_bytes=one.saved_bytes,
            result_bytes=one.output_bytes,
        )
        for place, one in enumerate(layers)
    ]
    gradients, modules, after = list[Gradient](), list[ModuleSpan](), len(layers) - 1
    for place, one in reversed(list(enumerate(layers))):
        before = layers[place - 1].output_bytes if place else 0
        inputs = tuple(dict.fromkeys((place, after)))
        after = len(ops)
        name = f"{one.name} backward"
        ops.append(
            Op(name, "backward", one.backward_s - one.weights_s, output_bytes=before, inputs=inputs, forward=place)
        )
        if one.parameter_bytes:
            made = len(ops)
            name, size = f"{one.name} gradient", one.parameter_bytes
            ops.append(Op(name, "backward", one.weights_s, output_bytes=size, inputs=(place, after), forward=place))
            gradients.append(Gradient(one.name, size, made, readers=(place,)))
            modules.append(ModuleSpan(one.name, size, (place, place), (after, made)))
    if update_s := update_s + sum(one.update_s for one in layers):
        ops.append(Op("update", "update", update_s))
    rank = RankGraph(0, tuple(ops), tuple(reversed(gradients)), tuple(reversed(modules)))
    return StepGraph((rank,)) if ranks == 1 else scale_ranks(StepGraph((rank,)), ranks)


def _layer(row: Any, where: str) -> Layer:
    if not isinstance(row, Mapping) or not set(COLUMNS) <= set(row) <= {*COLUMNS, *OPTIONAL}:
        given = ", ".join(map(str, row)) if isinstance(row, Mapping) else str(row)[:60]
        raise DataError(f"{where} has {given}: expected {', '.join(COLUMNS)}, and any of {', '.join(OPTIONAL)}")
    values: dict[str, Any] = {"name": str(row["name"]), "device": str(row.get("device") or "")}
    for column in (one for one in (*COLUMNS[1:], *OPTIONAL[:-1]) if one in row):
        try:
            values[column] = float(row[column]) if column.endswith("_s") else int(row[column])
        except (TypeError, ValueError) as error:
            kind = "seconds" if column.endswith("_s") else "a whole number"
            raise DataError(f"{where}: {column} is {str(row[column])[:60]!r}, expected {kind}") from error
    return Layer(**values)
