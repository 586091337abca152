"""The layer profiles of PipeDream: a graph and seconds for each network."""

from __future__ import annotations

import csv
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from cdmpp.collectives.interconnect import AlphaBeta
from cdmpp.errors import DataError
from cdmpp.partition.devices import StageDevice
from cdmpp.partition.graph import Layer, Parameter, PartitionGraph


@dataclass(frozen=True)
class Profile:
    """A network as it was profiled on one GPU; neither the GPU nor the batch is in the files."""

    name: str
    rows: tuple[dict[str, str], ...]
    edges: tuple[tuple[str, str], ...]

    @cached_property
    def graph(self) -> PartitionGraph:
        """Layers, their parameters, and what they read. A layer that takes no time saves nothing: it is a view."""
        numbers = {row["node"]: place for place, row in enumerate(self.rows)}
        inputs = defaultdict[int, set[int]](set)
        for source, place in self.edges:
            inputs[numbers[place]].add(numbers[source])
        layers, parameters = [], []
        for place, row in enumerate(self.rows):
            size, held = (round(float(row[key])) for key in ("activation_bytes", "parameter_bytes"))
            saved = size if self.seconds[:, place].any() else 0
            layers.append(Layer(f"{row['node']} {row['layer']}", tuple(sorted(inputs[place])), size, True, saved))
            if held:
                parameters.append(Parameter(row["node"], held, (place,)))
        return PartitionGraph(tuple(layers), tuple(parameters))

    @cached_property
    def seconds(self) -> np.ndarray:
        """Seconds of forward (first row) and backward pass of each layer."""
        return np.array([[float(row[key]) / 1e3 for row in self.rows] for key in ("forward_ms", "backward_ms")])

    def devices(self, count: int, link: AlphaBeta, memory_bytes: float) -> tuple[StageDevice, ...]:
        """Return so many of the GPUs."""
        return tuple(
            StageDevice(f"gpu {number}", *self.seconds, link, memory_bytes=memory_bytes) for number in range(count)
        )


def profiles(data: Path) -> dict[str, Profile]:
    """Read the folder ``pipedream`` of ``data``; ``DataError`` where it is no such folder."""
    rows, edges = defaultdict[str, list[dict[str, str]]](list), defaultdict[str, list[tuple[str, str]]](list)
    try:
        for file, found in (("nodes.csv", rows), ("edges.csv", edges)):
            with (data / "pipedream" / file).open(newline="") as lines:
                for row in csv.DictReader(lines):
                    found[row["model"]].append(row if found is rows else (row["from_node"], row["to_node"]))  # type: ignore[index]
    except (OSError, KeyError) as error:
        raise DataError(f"{data} has no pipedream/nodes.csv and edges.csv with their columns: {error}") from error
    return {name: Profile(name, tuple(own), tuple(edges[name])) for name, own in sorted(rows.items())}
