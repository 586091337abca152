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
from cdmpp.steps.step_graph import Gradient, ModuleSpan, Op, RankGraph, StepGraph
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
    """Bytes of its output, which its backward pass reads again."""

    def __post_init__(self) -> None:
        for what in COLUMNS[1:]:
            if not (math.isfinite(value := getattr(self, what)) and value >= 0):
                raise DataError(f"layer {self.name!r}: {what} is {value}, expected 0 or more")


COLUMNS = ("name", "forward_s", "backward_s", "parameter_bytes", "output_bytes")
"""Columns of a table of layers, in any order."""


def read_layers(file: Path | str) -> tuple[Layer, ...]:
    """Read the layers of a CSV file with a head, or of a JSON file with a list of objects.

    Args:
        file: ``*.json``, or anything else for CSV, in UTF-8. Columns are ``COLUMNS``; others are refused.

    Raises:
        DataError: a file that cannot be read, columns that lack or are unknown, a value that is no number.
    """
    file = Path(file)
    try:
        text = content_of(file).decode("utf-8")
        rows = parse_json(text) if file.suffix == ".json" else list(csv.DictReader(io.StringIO(text), strict=True))
    except (ValueError, csv.Error) as error:
        raise DataError(f"cannot read {file}: {error}; expected a CSV table or a JSON list of layers") from error
    if not isinstance(rows, list) or not rows:
        raise DataError(f"{file} has no layers: expected a row for each, with {', '.join(COLUMNS)}")
    return tuple(_layer(row, f"{file}, layer {number}") for number, row in enumerate(rows, 1))


def graph_of_layers(layers: Sequence[Layer], ranks: int = 1, update_s: float = 0.0) -> StepGraph:
    """Make a step of equal ranks that run the layers one after the other.

    Each layer is one op of the forward pass, one op of the backward pass, and, where it has parameters, one gradient
    and one FSDP module. The backward op writes the gradient of the layer's input.

    Args:
        layers: in the order of the forward pass.
        ranks: how many, each with its own batch.
        update_s: seconds of the update of all parameters; 0: there is none.

    Raises:
        DataError: no layers, or ``update_s`` that is no time.
        CdmppError: no number of ranks.
    """
    if not layers:
        raise DataError("a step without layers: give one or more")
    count = len(layers)
    last = [2 * count - 1 - place for place in range(count)]
    forward = [
        Op(one.name, "forward", one.forward_s, output_bytes=one.output_bytes, inputs=(place - 1,) if place else ())
        for place, one in enumerate(layers)
    ]
    backward = [
        Op(
            f"{layers[place].name} backward",
            "backward",
            layers[place].backward_s,
            output_bytes=layers[place - 1].output_bytes if place else 0,
            inputs=tuple(dict.fromkeys((place, last[place] - 1))),
            forward=place,
        )
        for place in reversed(range(count))
    ]
    update = [Op("update", "update", update_s)] if update_s else []
    trained = [(place, one) for place, one in enumerate(layers) if one.parameter_bytes]
    gradients = tuple(Gradient(one.name, one.parameter_bytes, last[place], readers=(place,)) for place, one in trained)
    modules = tuple(
        ModuleSpan(one.name, one.parameter_bytes, (place, place), (last[place], last[place])) for place, one in trained
    )
    return scale_ranks(StepGraph((RankGraph(0, (*forward, *backward, *update), gradients, modules),)), ranks)


def _layer(row: Any, where: str) -> Layer:
    if not isinstance(row, Mapping) or set(row) != set(COLUMNS):
        given = ", ".join(map(str, row)) if isinstance(row, Mapping) else str(row)[:60]
        raise DataError(f"{where} has {given}: expected exactly {', '.join(COLUMNS)}")
    values: dict[str, Any] = {"name": str(row["name"])}
    for column in COLUMNS[1:]:
        try:
            values[column] = float(row[column]) if column.endswith("_s") else int(row[column])
        except (TypeError, ValueError) as error:
            kind = "seconds" if column.endswith("_s") else "whole bytes"
            raise DataError(f"{where}: {column} is {str(row[column])[:60]!r}, expected {kind}") from error
    return Layer(**values)
