"""Cases of torch: the samples of its own operator tests, and layers, exported and decomposed as TVM takes them."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import Any

import numpy as np

from benchmarks.importers.case import Case
from benchmarks.importers.trial import HERE, LEFT_OUT, Outcome
from cdmpp.errors import CdmppError
from cdmpp.programs.exported import export
from cdmpp.programs.importable import make_importable

SAMPLES = {"float32": 4, "int64": 1}
"""Type -> samples of each operator of torch's tests, spread over the first ``_MOST_SAMPLES`` of its list."""
_MOST_SAMPLES = 60
GROUP = 6
"""Layers that are tried as one network."""
_LARGEST = 4_000
"""Elements of an input: larger samples take long and say nothing else."""
_LEFT_OUT = ("empty", "new_empty", "fft.", "linalg.", "masked.", "special.", "signal.", "sparse.")
"""Starts of names: results that nobody may read, and operators that TVM has no converter for, with many samples."""


@dataclass(frozen=True)
class Tried:
    """A module to be tried, not exported yet."""

    name: str
    module: Any
    inputs: tuple[Any, ...]
    setting: str
    operator: str = ""
    """That it is a form of: tried although TVM has no converter for what torch makes of it."""

    def case(self) -> Case | None:
        """None where it cannot be exported, or has operators without a converter."""
        try:
            return case_of(self.name, self.module, self.inputs, self.setting, always=bool(self.operator))
        except CdmppError as error:
            refused = Outcome(HERE, str(error)) if self.operator else Outcome(LEFT_OUT)
        used = (self.operator,) if self.operator else ()
        return Case("torch", self.name, used, self.setting, None, (), (), known=refused)


def torch_groups(wanted: Callable[[str], bool]) -> Iterator[list[Tried]]:
    """In groups that are tried as one network first.

    Forms of our own, samples of torch's tests of the operators that TVM has converters for, layers, then samples of all
    other operators, which torch makes of those.
    ``wanted`` is asked for the name of each layer, form and operator.
    """
    import torch

    from benchmarks.importers.torch_forms import forms
    from benchmarks.importers.torch_layers import layers

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for group in forms():
        yield [Tried(name, module, inputs, setting, setting) for name, module, inputs, setting in group if wanted(name)]
    from torch.testing._internal.common_methods_invocations import op_db  # takes seconds

    others = []
    for described in op_db:
        name = described.name + (f".{described.variant_test_name}" if described.variant_test_name else "")
        if name.startswith(_LEFT_OUT) or not wanted(name):
            continue
        if described.name.rpartition(".")[-1].strip("_") in _converted():
            yield _samples(name, described)
        else:
            others.append((name, described))
    made = [Tried(name, module, inputs, _words(module)) for name, module, inputs in layers() if wanted(name)]
    yield from (made[place : place + GROUP] for place in range(0, len(made), GROUP))
    yield from (_samples(*one) for one in others)


@cache
def _converted() -> frozenset[str]:
    """Names in TVM's table of converters, without overloads."""
    from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

    return frozenset(name.partition(".")[0].strip("_") for name in ExportedProgramImporter().convert_map)


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
    with torch.no_grad(), contextlib.suppress(Exception):
        made = [len(_tensors(one.module.eval()(*one.inputs))) for one in group]
        return case_of("", Together(), [tensor for one in group for tensor in one.inputs], "", made)
    return None


def _operators(nodes: Iterable[Any]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(node.target.__name__ for node in nodes if node.op == "call_function"))


def _sources(results: Sequence[Any]) -> list[Any]:
    """All nodes that the results of a graph are made by."""
    seen, open_ones = dict[Any, None](), list(results)
    while open_ones:
        node = open_ones.pop()
        if node not in seen:
            seen[node] = None
            open_ones.extend(node.all_input_nodes)
    return list(seen)


def _words(module: Any) -> str:
    function = getattr(module, "function", None)
    return f"{function.__defaults__}" if function is not None else " ".join(f"{module}".split())[:160]


def _samples(name: str, described: Any) -> list[Tried]:
    import torch

    torch.manual_seed(0)
    made = []
    for kind, count in SAMPLES.items():
        dtype = getattr(torch, kind)
        with contextlib.suppress(Exception):
            first = islice(described.sample_inputs("cpu", dtype), _MOST_SAMPLES if dtype in described.dtypes else 0)
            listed = [(one, _tensors((one.input, one.args, one.kwargs))) for one in first]
            samples = [one for one in listed if one[1] and all(0 < part.numel() <= _LARGEST for part in one[1])]
            count = min(count, len(samples))
            for place, (sample, tensors) in enumerate(samples[i * len(samples) // count] for i in range(count)):
                called = _Called(described.op, sample)
                made.append(Tried(f"{name}/{kind}/{place}", called, tuple(tensors), _shown(sample)))
    return made


def case_of(
    name: str, module: Any, inputs: Sequence[Any], setting: str, counts: Sequence[int] = (), always: bool = False
) -> Case | None:
    """The module, exported and decomposed as the product does; None where that fails or TVM lacks a converter.

    Args:
        name: of the case.
        module: takes ``inputs``, which it leaves as they are.
        inputs: tensors.
        setting: for the page.
        counts: results of each part, where the module is several.
        always: whatever TVM lacks.
    """
    import torch
    from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

    with torch.no_grad():
        exported = export(module.eval(), tuple(inputs))
        make_importable(exported)
        decomposed = exported.run_decompositions()
        graphs = (exported.graph, decomposed.graph)
        if not always and not set(_operators(decomposed.graph.nodes)) <= set(ExportedProgramImporter().convert_map):
            return None
        results = _tensors(module(*inputs))
        if not results or any(one.is_complex() or one.dtype is torch.bfloat16 for one in (*results, *inputs)):
            return None
        arrays = [np.array(one.detach().numpy(), order="C") for one in inputs]
        expected = [np.array(one.detach().numpy()) for one in results]
        used = _operators(node for graph in graphs for node in graph.nodes)
        parts = []
        for place, count in enumerate(counts):
            last = sum(counts[: place + 1]) - sum(counts)
            made = [list(graph.output_node().args[0])[last - count : last or None] for graph in graphs]
            parts.append(_operators(node for results in made for node in _sources(results)))
        return Case(
            "torch", name, used, setting, decomposed, tuple(arrays), tuple(expected), parts=tuple(parts)
        )  # fmt: skip


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
