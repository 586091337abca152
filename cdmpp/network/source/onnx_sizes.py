"""Sizes of the open dimensions of an ONNX file, as they are given by input, by name or as the batch."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cdmpp.errors import CdmppError
from cdmpp.network.source.onnx_file import read_onnx


def read_sized(path: Path, batch: int | None, inputs: Mapping[str, Sequence[int]] | None) -> Any:
    """Read an ``onnx.ModelProto`` whose inputs have sizes along every dimension, and are no weights.

    Raises:
        CdmppError: as of ``read_onnx``, or an open dimension that neither ``inputs`` (shapes by name of an input or of
            a dimension) nor ``batch`` sets.
    """
    model = read_onnx(path)
    _only_real_inputs(model.graph)
    _Sizes(path.name, model.graph).fix(batch, dict(inputs or {}))
    return model


def _only_real_inputs(graph: Any) -> None:
    """Old files list weights as inputs, too."""
    weights = {tensor.name for tensor in graph.initializer}
    kept = [value for value in graph.input if value.name not in weights]
    del graph.input[:]
    graph.input.extend(kept)


class _Sizes:
    """Dimensions of the inputs of a graph: numbers, names of what is open, or empty names."""

    def __init__(self, file: str, graph: Any) -> None:
        self.file, self.graph = file, graph
        self.known: dict[str, int] = {}
        for value in graph.input:
            if value.type.WhichOneof("value") != "tensor_type":
                raise CdmppError(f"{file}: the input {value.name} is no tensor; export the model with tensors alone")

    def fix(self, batch: int | None, inputs: dict[str, Sequence[int]]) -> None:
        """Write a number into every dimension, or refuse."""
        names = [value.name for value in self.graph.input]
        open_names = self._open_names()
        if unknown := [name for name in inputs if name not in names and name not in open_names]:
            near = difflib.get_close_matches(unknown[0], [*names, *open_names], n=1) or names[:1]
            told = f", and no open dimension, but {', '.join(open_names)}" if open_names else ""
            raise CdmppError(
                f"{self.file} has no input {unknown[0]}, but {', '.join(names)}{told}; did you mean {near[0]}?"
            )
        for name in open_names:
            if name in inputs and name not in names:
                self._name(name, inputs[name])
        for value in self.graph.input:
            if value.name in inputs:
                self._take(value, [int(size) for size in inputs[value.name]])
        for place, value in enumerate(self.graph.input):
            shape = value.type.tensor_type.shape
            if batch is not None and shape.dim:
                self._batch(value, shape.dim[0], batch, first=place == 0)
        for value in self.graph.input:
            dims = value.type.tensor_type.shape.dim
            for dim in dims:
                if not dim.dim_value and dim.dim_param in self.known:
                    dim.dim_value = self.known[dim.dim_param]
            if not value.type.tensor_type.HasField("shape") or not all(dim.dim_value for dim in dims):
                raise CdmppError(self._open(value))

    def _open_names(self) -> list[str]:
        """Names of the open dimensions, each once."""
        dims = (dim for value in self.graph.input for dim in value.type.tensor_type.shape.dim)
        return list(dict.fromkeys(dim.dim_param for dim in dims if dim.dim_param and not dim.dim_value))

    def _name(self, name: str, sizes: Sequence[int]) -> None:
        """Set the open dimension ``name`` wherever it is."""
        if len(sizes) != 1 or int(sizes[0]) < 1:
            raise CdmppError(f"{self.file}: {name} is an open dimension: give one size from 1 up, such as {name}=128")
        self.known[name] = int(sizes[0])

    def _take(self, value: Any, sizes: list[int]) -> None:
        shape = value.type.tensor_type.shape
        if not value.type.tensor_type.HasField("shape"):
            for _ in sizes:
                shape.dim.add()
        fixed = all(not dim.dim_value or dim.dim_value == size for dim, size in zip(shape.dim, sizes, strict=False))
        if len(shape.dim) != len(sizes) or not fixed or min(sizes, default=1) < 1:
            raise CdmppError(
                f"{self.file}: the input {value.name} has the shape {_text(shape)}, which {sizes} does not fit; only "
                "open dimensions can be set, so export the model with others"
            )
        for dim, size in zip(shape.dim, sizes, strict=True):
            self._know(value, dim, size)

    def _batch(self, value: Any, dim: Any, batch: int, first: bool) -> None:
        if not dim.dim_value:
            self._know(value, dim, batch)
        elif first and dim.dim_value != batch:
            raise CdmppError(
                f"{self.file}: batch={batch}, but its input {value.name} has the fixed batch {dim.dim_value}: leave "
                "batch out, or export the model with an open first dimension"
            )

    def _know(self, value: Any, dim: Any, size: int) -> None:
        if dim.dim_param and self.known.setdefault(dim.dim_param, size) != size:
            raise CdmppError(
                f"{self.file}: {dim.dim_param} is {self.known[dim.dim_param]} elsewhere, but {size} in {value.name}; "
                "give inputs the same size there"
            )
        dim.dim_value = size

    def _open(self, value: Any) -> str:
        dims = value.type.tensor_type.shape.dim
        usual = {4: [1, 3, 224, 224], 3: [1, 128, 768], 2: [1, 128], 1: [1]}.get(len(dims), [1, 3, 224, 224])
        usual = [*usual, *[16] * len(dims)][: len(dims) or 4]
        sizes = [dim.dim_value or size for dim, size in zip(dims, usual, strict=False)] or usual
        alone = all(dim.dim_value for dim in dims[1:]) and len(dims) > 0
        return (
            f"{self.file}: the input {value.name} has open dimensions, {_text(value.type.tensor_type.shape)}: give "
            f'inputs={{"{value.name}": {sizes}}} (command line: --input {value.name}={",".join(map(str, sizes))})'
            + self._by_name(value)
            + (", or batch" if alone else "")
        )

    def _by_name(self, value: Any) -> str:
        own = [dim.dim_param for dim in value.type.tensor_type.shape.dim if dim.dim_param and not dim.dim_value]
        return f", or each by its name (--input {own[0]}=16)" if own else ""


def _text(shape: Any) -> str:
    return f"[{', '.join(str(dim.dim_value or dim.dim_param or '?') for dim in shape.dim)}]" if shape.dim else "[...]"
