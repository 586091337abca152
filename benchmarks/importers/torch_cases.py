"""Cases of torch: the samples of its own operator tests, and layers, exported and decomposed as TVM takes them."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from benchmarks.importers.case import Case

SAMPLES = {"float32": 3, "int64": 1, "bool": 1}
"""Type -> samples of each operator of torch's tests, spread over its list."""
GROUP = 6
"""Layers that are tried as one network."""
_LARGEST = 20_000
"""Elements of an input: larger samples take long and say nothing else."""
_LEFT_OUT = ("empty", "rand", "bernoulli", "multinomial", "normal", "dropout", "cauchy", "exponential", "geometric",
             "log_normal", "uniform", "sparse", "fft.", "linalg.", "masked.", "special.", "_refs", "signal.",
             "native_")  # fmt: skip
"""Parts of names: of operators of which results are random, or which TVM has no converter for."""


@dataclass(frozen=True)
class Tried:
    """A module to be tried, not exported yet."""

    name: str
    module: Any
    inputs: tuple[Any, ...]
    setting: str

    def case(self) -> Case | None:
        """None where it cannot be exported, or has operators without a converter."""
        return case_of(self.name, self.module, self.inputs, self.setting)


def torch_groups() -> Iterator[list[Tried]]:
    """The layers, then the samples of torch's operator tests, in groups that are tried as one network first."""
    import torch
    from torch.testing._internal.common_methods_invocations import op_db

    from benchmarks.importers.torch_layers import layers

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    made = [Tried(name, module, inputs, _words(module)) for name, module, inputs in layers()]
    yield from (made[place : place + GROUP] for place in range(0, len(made), GROUP))
    for described in op_db:
        name = described.name + (f".{described.variant_test_name}" if described.variant_test_name else "")
        if not any(part in name for part in _LEFT_OUT):
            served = described.supported_dtypes("cpu")
            known = [dtype for dtype in (torch.float32, torch.int64, torch.bool) if dtype in served]
            yield [one for dtype in known for one in _samples(name, described, dtype)]


def together(group: Sequence[Tried]) -> Case | None:
    """All of a group as one network, which takes a fraction of the time; None where that cannot be."""
    import torch

    counts = [len(one.inputs) for one in group]

    class Together(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.ModuleList(one.module for one in group)

        def forward(self, *inputs: Any) -> Any:
            found, first = [], 0
            for module, count in zip(self.inner, counts, strict=True):
                found.append(module(*inputs[first : first + count]))
                first += count
            return found

    if len(group) < 2:
        return None
    if (case := case_of("", Together(), [tensor for one in group for tensor in one.inputs], "")) is None:
        return None
    with torch.no_grad():
        counts = [len(_tensors(one.module.eval()(*one.inputs))) for one in group]
    results = list(case.model.graph.output_node().args[0])[-sum(counts) :]
    parts = [results[sum(counts[:place]) : sum(counts[: place + 1])] for place in range(len(group))]
    return replace(case, parts=tuple(_operators(part) for part in parts))


def _operators(results: Sequence[Any]) -> tuple[str, ...]:
    """Names of all that the results of a graph are made by."""
    seen, open_ones = dict[Any, None](), list(results)
    while open_ones:
        node = open_ones.pop()
        if node not in seen:
            seen[node] = None
            open_ones.extend(node.all_input_nodes)
    return tuple(dict.fromkeys(node.target.__name__ for node in seen if node.op == "call_function"))


def _words(module: Any) -> str:
    function = getattr(module, "function", None)
    return f"{function.__defaults__}" if function is not None else " ".join(f"{module}".split())[:160]


def _samples(name: str, described: Any, dtype: Any) -> Iterator[Tried]:
    import torch

    torch.manual_seed(0)
    kind = str(dtype).removeprefix("torch.")
    try:
        samples = list(described.sample_inputs("cpu", dtype, requires_grad=False))
    except Exception:
        return
    step = max(1.0, len(samples) / SAMPLES[kind])
    chosen = [samples[int(place * step)] for place in range(SAMPLES[kind]) if int(place * step) < len(samples)]
    for place, sample in enumerate(chosen):
        tensors = _tensors((sample.input, sample.args, sample.kwargs))
        if tensors and sum(one.numel() for one in tensors) <= _LARGEST:
            yield Tried(f"{name}/{kind}/{place}", _Called(described.op, sample), tuple(tensors), _shown(sample))


def case_of(name: str, module: Any, inputs: Sequence[Any], setting: str) -> Case | None:
    """The module, exported and decomposed; None where that fails or TVM lacks a converter."""
    import torch
    from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

    with torch.no_grad(), contextlib.suppress(Exception):
        exported = torch.export.export(module.eval(), tuple(inputs)).run_decompositions()
        used = [node.target.__name__ for node in exported.graph.nodes if node.op == "call_function"]
        if not used or not set(used) <= set(ExportedProgramImporter().convert_map):
            return None
        for node in exported.graph.nodes:  # as the product does
            if node.target is torch.ops.aten.view.default:
                node.target = torch.ops.aten.reshape.default
        results = _tensors(module(*inputs))
        if not results or any(one.is_complex() or one.dtype is torch.bfloat16 for one in (*results, *inputs)):
            return None
        arrays = [np.ascontiguousarray(one.detach().numpy()) for one in inputs]
        expected = [np.array(one.detach().numpy()) for one in results]
        return Case("torch", name, tuple(dict.fromkeys(used)), setting, exported, tuple(arrays), tuple(expected))
    return None


class _Called:
    """``_Called(function, sample)``: a module whose inputs are the sample's tensors, in the order of ``_tensors``."""

    def __new__(cls, function: Any, sample: Any) -> Any:
        import torch
        from torch.utils import _pytree

        leaves, structure = _pytree.tree_flatten((sample.input, tuple(sample.args), dict(sample.kwargs)))
        places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

        class Called(torch.nn.Module):
            def forward(self, *tensors: Any) -> Any:
                filled = list(leaves)
                for place, tensor in zip(places, tensors, strict=True):
                    filled[place] = tensor
                first, args, kwargs = _pytree.tree_unflatten(filled, structure)
                return function(first, *args, **kwargs)

        return Called()


def _tensors(value: Any) -> list[Any]:
    import torch
    from torch.utils import _pytree

    if isinstance(value, tuple) and len(value) == 3 and isinstance(value[2], dict):
        value = (value[0], tuple(value[1]), dict(value[2]))
    return [leaf for leaf in _pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def _shown(sample: Any) -> str:
    import torch

    def text(value: Any) -> str:
        if isinstance(value, torch.Tensor):
            return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
        if isinstance(value, list | tuple):
            return f"[{', '.join(map(text, value))}]"
        return str(value)

    named = [f"{key}={text(value)}" for key, value in sample.kwargs.items()]
    return ", ".join([text(sample.input), *map(text, sample.args), *named])
