"""NetworkSource: a whole network, read from what a user has of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cdmpp.errors import CdmppError
from cdmpp.programs.networks import build_model, lower, network_of, read_zoo, to_relax

Inputs = Mapping[str, Sequence[int]]
"""Name of an input -> its shape."""
KINDS = (
    "a zoo network (bert_tiny, resnet50@b4), torchvision:resnet50, hf:bert-base-uncased, hf:FOLDER with a config.json, "
    "model.onnx, file.py:FUNCTION; in Python also a torch.nn.Module with example inputs, or a Relax module"
)


@dataclass(frozen=True)
class NetworkSource:
    """A network as a Relax module, and the torch model that it came from."""

    name: str
    """Short, for tables: ``resnet50``, ``model.onnx``, the class of a module."""
    module: Any
    """Relax ``IRModule``, legalised and fused; weights are parameters of ``main`` after its first ``num_input``."""
    batch: int
    """First dimension of the first input; 1 where it has none."""
    example: tuple[Any, ...] | None = None
    """Torch tensors: ``torch_model(*example)`` runs. ``None`` where the source is no torch model."""
    torch_model: Any | None = None
    """In eval mode; ``None`` where the source is no torch model."""


def read_network(
    given: Any,
    example_inputs: Any = None,
    *,
    batch: int | None = None,
    inputs: Inputs | None = None,
    dtype: str = "float32",
) -> NetworkSource:
    """A network from a name, a file, a torch module or a Relax module.

    Args:
        given: one of ``KINDS``. ``file.py:FUNCTION`` runs that file, and the function without arguments.
        example_inputs: of a torch module: a tensor, a tuple of arguments, or a dict of them by name.
        batch: first dimension of the inputs, where the source leaves it open.
        inputs: shapes by name, where the source leaves them open.
        dtype: ``float16``: mixed precision. A zoo variant that names a dtype has that one.

    Raises:
        CdmppError: what was given is not there, or cannot be imported; it says why and where.
    """
    if batch is not None and batch < 1:
        raise CdmppError(f"batch={batch}: give a number of at least 1")
    if isinstance(given, str | Path):
        return _read_named(str(given), example_inputs, batch, inputs, dtype)
    if _is_a(given, "torch.nn", "Module"):
        return _read_module(given, example_inputs, batch, inputs, dtype)
    if _is_a(given, "tvm", "IRModule"):
        _refuse_inputs("a Relax module", example_inputs, inputs)
        return _source("Relax module", lower(_with_inputs(given), dtype), batch)
    raise CdmppError(f"a {type(given).__name__} is no network: give {KINDS}")


def _read_named(name: str, example_inputs: Any, batch: int | None, inputs: Inputs | None, dtype: str) -> NetworkSource:
    _refuse_inputs(name, example_inputs, inputs)
    short = name.removeprefix("zoo:")
    return _read_entry(short, network_of(read_zoo(), short), batch, dtype)


def _read_entry(name: str, spec: Mapping[str, Any], batch: int | None, dtype: str) -> NetworkSource:
    """A network of an entry as in ``conf/data/networks.yaml``."""
    if batch is not None:
        spec = {**spec, "input": {**spec["input"], "batch": batch}}
    model, example = build_model(spec)
    module = to_relax(model, example, spec.get("dtype", dtype))
    return _source(name, module, None, example, model)


def _read_module(model: Any, example: Any, batch: int | None, inputs: Inputs | None, dtype: str) -> NetworkSource:
    name = type(model).__name__
    if example is None:
        raise CdmppError(f"{name}: give example_inputs, tensors of the sizes that it is run with: (torch.randn(1, 8),)")
    model = model.eval()
    if isinstance(example, Mapping):
        model, example = _by_name(model, tuple(example)), tuple(example.values())
    example = tuple(example) if isinstance(example, tuple | list) else (example,)
    return _source(name, to_relax(model, example, dtype), batch, example, model)


def _by_name(model: Any, names: tuple[str, ...]) -> Any:
    """The model with its arguments in the order of ``names``."""
    import torch

    class ByName(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, *values: Any) -> Any:
            return self.inner(**dict(zip(names, values, strict=True)))

    return ByName().eval()


def _with_inputs(module: Any) -> Any:
    """A Relax module whose ``main`` has no values of weights, but says how many of its parameters are inputs."""
    from tvm import relax

    names = {variable.name_hint: function for variable, function in module.functions.items()}
    main = names.get("main")
    if not isinstance(main, relax.Function):
        what = "is a tensor program" if main is not None else f"is not there (functions: {', '.join(names) or 'none'})"
        raise CdmppError(f"the Relax module has no network: its function main {what}; name the Relax function main")
    module = relax.frontend.detach_params(module)[0]
    if "num_input" not in (main.attrs or {}):
        module["main"] = module["main"].with_attr("num_input", len(main.params))
    return module


def _source(
    name: str, module: Any, batch: int | None, example: tuple[Any, ...] | None = None, model: Any = None
) -> NetworkSource:
    found = _batch_of(module)
    if batch is not None and batch != found:
        raise CdmppError(
            f"{name}: batch={batch}, but its first input has batch {found}: leave batch out, or give inputs of it"
        )
    return NetworkSource(name, module, found, example, model)


def _batch_of(module: Any) -> int:
    main = module["main"]
    if int(main.attrs["num_input"]) < 1:
        return 1
    shape = getattr(main.params[0].ty, "shape", None)
    sizes = [getattr(size, "value", None) for size in getattr(shape, "values", ())]
    return int(sizes[0]) if sizes and sizes[0] is not None else 1


def _refuse_inputs(what: str, example_inputs: Any, inputs: Inputs | None) -> None:
    if example_inputs is not None or inputs:
        raise CdmppError(f"{what} has inputs of its own: leave example_inputs and inputs out")


def _is_a(given: Any, module: str, name: str) -> bool:
    """Whether it is of a class of a library, which is imported only where it may be one."""
    import sys

    return module in sys.modules and isinstance(given, getattr(sys.modules[module], name))
