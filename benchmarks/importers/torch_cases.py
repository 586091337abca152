"""Cases of torch: the samples of its own operator tests, and layers, exported and decomposed as TVM takes them."""

from __future__ import annotations

import contextlib
import operator
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from benchmarks.importers.case import Case

SAMPLES = 6
"""Of each operator of torch's tests, spread over its list."""
_LARGEST = 20_000
"""Elements of an input: larger samples take long and say nothing else."""
_LEFT_OUT = ("empty", "rand", "bernoulli", "multinomial", "normal", "dropout", "cauchy", "exponential", "geometric",
             "log_normal", "uniform", "sparse", "fft.", "linalg.", "masked.", "special.", "_refs", "signal.", "native_")  # fmt: skip
"""Parts of names: of operators of which results are random, or which TVM has no converter for."""


def torch_cases() -> Iterator[Case]:
    """The samples, then the layers; what cannot be exported, or has operators without a converter, is left out."""
    import torch
    from torch.testing._internal.common_methods_invocations import op_db

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for described in op_db:
        name = described.name + (f".{described.variant_test_name}" if described.variant_test_name else "")
        if any(part in name for part in _LEFT_OUT):
            continue
        for dtype in (torch.float32, torch.int64, torch.bool):
            if dtype in described.supported_dtypes("cpu"):
                yield from _samples(name, described, dtype)
                if dtype is torch.float32:
                    continue
                break
    from benchmarks.importers.torch_layers import layers

    for name, module, inputs in layers():
        if (case := case_of(name, module, inputs, f"{module}".replace("\n", " ")[:120])) is not None:
            yield case


def _samples(name: str, described: Any, dtype: Any) -> Iterator[Case]:
    import torch

    torch.manual_seed(0)
    try:
        samples = list(described.sample_inputs("cpu", dtype, requires_grad=False))
    except Exception:
        return
    step = max(1, len(samples) / SAMPLES)
    chosen = [samples[int(place * step)] for place in range(SAMPLES) if int(place * step) < len(samples)]
    for place, sample in enumerate(chosen):
        module, tensors = _Called(described.op, sample), _tensors((sample.input, sample.args, sample.kwargs))
        kind = str(dtype).removeprefix("torch.")
        key, shown = f"{name}/{kind}/{place}", _shown(sample)
        if sum(one.numel() for one in tensors) <= _LARGEST and (case := case_of(key, module, tensors, shown)):
            yield case


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


def _module() -> Any:
    import torch

    return torch.nn.Module


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


__all__ = ["Case", "case_of", "operator", "torch_cases"]
