"""NetworkSource: a whole network, read from what a user has of it."""

from __future__ import annotations

import copy
import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cdmpp.errors import CdmppError
from cdmpp.network.source.checkpoint import checkpoint_entry, read_checkpoints
from cdmpp.network.source.entry import torchvision_entry, with_shape
from cdmpp.network.source.onnx import relax_of_onnx
from cdmpp.network.source.user_code import run_function
from cdmpp.network.source.weightless import as_on_cpu, is_weightless
from cdmpp.platform.allocation import within_free_memory
from cdmpp.programs.caches import register_caches
from cdmpp.programs.compiled import TVM, compiled_flag, compiled_noted
from cdmpp.programs.networks import build_model, lower, network_of, read_zoo, to_relax

_MOST_SIZE = 2**31
"""Of any dimension of an input: torch and TVM count the elements of a tensor with 64 bits."""
Inputs = Mapping[str, Sequence[int]]
"""Name of an input -> its shape."""
KINDS = (
    "a zoo network (bert_tiny, resnet50@b4), torchvision:resnet50, hf:bert-base-uncased, hf:FOLDER with a config.json, "
    "model.onnx, file.py:FUNCTION; in Python also a torch.nn.Module with example inputs, or a Relax module"
)


_MOST_BYTES = 2e9
"""Of weights that are made where their values play no part; of more only the shapes are."""


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
    flags: tuple[str, ...] = ()
    """Differences from the run that was asked for, a sentence each."""


@dataclass(frozen=True)
class TorchNetwork:
    """A torch model in eval mode with inputs that it runs on: ``model(*example)``."""

    name: str
    model: Any
    example: tuple[Any, ...]
    dtype: str
    """``float32``, or ``float16`` for mixed precision."""
    folds: bool = True
    """Whether batch norms are folded into the convolutions before them where TVM compiles it."""


@within_free_memory("the network, as it is asked for,")
def read_torch(
    given: Any,
    example_inputs: Any = None,
    *,
    batch: int | None = None,
    inputs: Inputs | None = None,
    dtype: str = "float32",
    needs_values: bool = True,
) -> TorchNetwork:
    """As ``read_network``, of what is a torch model. Needs no TVM.

    Without ``needs_values`` large models of a name, and those on the device meta, have weights that hold nothing.

    Raises:
        CdmppError: as there, and for ONNX files and Relax modules.
    """
    _check_sizes(batch, inputs)
    if isinstance(given, str | Path):
        if (path := Path(str(given)).expanduser()).suffix == ".onnx":
            raise CdmppError(
                f"{path.name} is no torch model: PyTorch's own kernels run a torch.nn.Module or file.py:FUNCTION"
            )
        most_bytes = math.inf if needs_values else _MOST_BYTES
        network = _torch_of_name(str(given), example_inputs, batch, inputs, dtype, most_bytes)
        return network if needs_values else _with_places(network)
    if _is_a(given, "torch.nn", "Module"):
        network = _torch_of_module(given, example_inputs, batch, inputs, dtype)
        return network if needs_values else _with_places(network)
    raise CdmppError(f"a {type(given).__name__} is no torch model: give {KINDS}")


@within_free_memory("the network, as it is asked for,")
def read_network(
    given: Any,
    example_inputs: Any = None,
    *,
    batch: int | None = None,
    inputs: Inputs | None = None,
    dtype: str = "float32",
    exported: Any = None,
) -> NetworkSource:
    """A network from a name, a file, a torch module or a Relax module.

    Args:
        given: one of ``KINDS``. ``file.py:FUNCTION`` runs that file, and the function without arguments.
        example_inputs: of a torch module: a tensor, a tuple of arguments, or a dict of them by name.
        batch: first dimension of the inputs, where the source leaves it open.
        inputs: shapes by name, where the source leaves them open.
        dtype: ``float16``: mixed precision. A zoo variant that names a dtype has that one.
        exported: of a torch module: what ``networks.export`` made of it; it is changed.

    Raises:
        CdmppError: what was given is not there, or cannot be imported; it says why and where.
    """
    _check_sizes(batch, inputs)
    if isinstance(given, str | Path):
        path = Path(str(given)).expanduser()
        if path.suffix == ".onnx":
            _refuse_example(path.name, example_inputs)
            module = _with_inputs(relax_of_onnx(path, batch, inputs))
            return _source(path.name, lower(module, dtype))
        return _relaxed(_torch_of_name(str(given), example_inputs, batch, inputs, dtype))
    if _is_a(given, "torch.nn", "Module"):
        return _relaxed(_torch_of_module(given, example_inputs, batch, inputs, dtype), exported)
    if _is_a(given, "tvm", "IRModule"):
        _refuse_example("a Relax module", example_inputs)
        source = _source("Relax module", lower(_with_inputs(given), dtype))
        if inputs or batch not in (None, source.batch):
            raise CdmppError(f"a Relax module has its sizes (batch {source.batch}): leave batch and inputs out")
        return source
    raise CdmppError(f"a {type(given).__name__} is no network: give {KINDS}")


def _check_sizes(batch: int | None, inputs: Inputs | None) -> None:
    if batch is not None and not 1 <= batch <= _MOST_SIZE:
        raise CdmppError(f"batch={str(batch)[:40]}: give a whole number from 1 to {_MOST_SIZE:,}")
    for name, shape in (inputs or {}).items():
        if wrong := [size for size in shape if not 1 <= size <= _MOST_SIZE]:
            raise CdmppError(f"input {name}: size {str(wrong[0])[:40]}: give whole numbers from 1 to {_MOST_SIZE:,}")


def _relaxed(network: TorchNetwork, exported: Any = None) -> NetworkSource:
    """As TVM compiles it. ``exported``: what ``networks.export`` made of it, where that was asked before."""
    model, example = _on_cpu(network.model, network.example)
    kept = exported if model is network.model else None
    with compiled_noted() as compiled:
        module = to_relax(model, example, network.dtype, fold_batch_norm=network.folds, exported=kept)
    source = _source(network.name, module, network.example, network.model)
    return replace(source, flags=compiled_flag(compiled, TVM))


def _torch_of_name(
    text: str,
    example: Any,
    batch: int | None,
    inputs: Inputs | None,
    dtype: str,
    most_bytes: float = math.inf,
) -> TorchNetwork:
    path = Path(text).expanduser()
    file, _, function = text.rpartition(":") if ":" in text else (text, "", "")
    if file.endswith(".py"):
        made = run_function(Path(file).expanduser(), function, batch)
        return _torch_made(f"{Path(file).name}:{function}", made, example, batch, inputs, dtype)
    _refuse_example(text, example)
    name, entry = _entry(text, path)
    if inputs:
        entry = with_shape(entry, inputs, text)
    sizes = entry["input"]
    if inputs and batch is not None and sizes["batch"] != batch:
        raise CdmppError(f"{text}: batch={batch}, but inputs give {sizes['batch']}: leave one of them out")
    spec = entry if batch is None else {**entry, "input": {**sizes, "batch": batch}}
    model, own = build_model(spec, most_bytes)
    return TorchNetwork(name, model, own, spec.get("dtype", dtype), spec.get("fold_batch_norm", True))


def _entry(text: str, path: Path) -> tuple[str, Mapping[str, Any]]:
    """Short name and entry of a network of the zoo or a library."""
    if text.startswith("torchvision:"):
        name = text.removeprefix("torchvision:")
        return name, torchvision_entry(name)
    if text.startswith("hf:"):
        return checkpoint_entry(text.removeprefix("hf:"))
    name, zoo = text.removeprefix("zoo:"), read_zoo()
    if name in zoo or text.startswith("zoo:"):
        return name, network_of(zoo, name)
    if path.suffix in (".pt", ".pth", ".pt2", ".pkl", ".bin", ".ckpt", ".safetensors"):
        raise CdmppError(f"{text}: weights are no network, and pickles are not loaded: give file.py:FUNCTION or ONNX")
    if path.suffix == ".json" or (path / "config.json").is_file():
        raise CdmppError(f"{text} is no network of the zoo: a config of transformers is given as hf:{text}")
    if path.exists():
        raise CdmppError(f"{text} is no file that holds a network: give {KINDS}")
    known = [*zoo, *(f"hf:{full.split('/')[-1]}" for full in read_checkpoints())]
    near = difflib.get_close_matches(text, known, n=3, cutoff=0.5)
    told = f"nearest: {', '.join(near)}; or " if near else ""
    raise CdmppError(f"there is no network {text!r}: {told}give {KINDS}")


def _torch_made(
    name: str, made: Any, example: Any, batch: int | None, inputs: Inputs | None, dtype: str
) -> TorchNetwork:
    """What a user's function returned: a model, or one with its example inputs."""
    if isinstance(made, tuple) and len(made) == 2:
        made, own = made
        example = own if example is None else example
    if not _is_a(made, "torch.nn", "Module"):
        raise CdmppError(
            f"{name} returned a {type(made).__name__}: return a torch.nn.Module, or (module, example inputs)"
        )
    return _torch_of_module(made, example, batch, inputs, dtype, name)


def _torch_of_module(
    model: Any, example: Any, batch: int | None, inputs: Inputs | None, dtype: str, name: str = ""
) -> TorchNetwork:
    import torch

    name = name or type(getattr(model, "_orig_mod", model)).__name__
    if example is not None and inputs:
        raise CdmppError(f"{name}: give example inputs or the shapes of inputs, not both")
    if example is None and not inputs:
        raise CdmppError(
            f"{name}: a module says nothing about its inputs: give example_inputs, such as (torch.randn(1, 8),); "
            "a function in file.py returns (module, example inputs)"
        )
    register_caches()
    example = {key: torch.randn(*shape) for key, shape in inputs.items()} if inputs else example
    model = model.eval()
    _check_elements(name, example)
    named, example = positional(model, example)
    own = _first_size(example)
    if batch not in (None, own):
        raise CdmppError(
            f"{name}: batch={batch}, but its example inputs have batch {own}: leave batch out, or give "
            "example inputs of that batch (a function in file.py may take batch)"
        )
    return TorchNetwork(name, named, example, dtype)


def _check_elements(name: str, example: Any) -> None:
    """``CdmppError`` of example inputs without elements: no kernel runs on nothing."""
    from torch.utils import _pytree

    for path, value in _pytree.tree_flatten_with_path(example)[0]:
        if getattr(value, "is_sparse", False) is False and hasattr(value, "numel") and value.numel() == 0:
            where = _pytree.keystr(path)
            raise CdmppError(
                f"{name}: the example input{f' {where}' if where else ''} has the shape {tuple(value.shape)}, without "
                "elements: give at least one along each axis"
            )


def _first_size(example: tuple[Any, ...]) -> int:
    """First dimension of the first input; 1 where it has none."""
    shape: Sequence[int] = getattr(example[0], "shape", ()) if example else ()
    return int(shape[0]) if len(shape) else 1


def _on_cpu(model: Any, example: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
    """TVM reads weights there; what they are elsewhere does not change what runs."""
    from torch.utils import _pytree

    devices = {value.device.type for value in [*model.parameters(), *model.buffers()]}
    if devices <= {"cpu"}:
        return model, example
    if "meta" in devices:
        raise CdmppError(f"{type(model).__name__} has weights on the device meta: give it values, random ones will do")
    moved = _pytree.tree_map(lambda value: value.cpu() if hasattr(value, "cpu") else value, example)
    return copy.deepcopy(model).cpu(), moved


def _with_places(network: TorchNetwork) -> TorchNetwork:
    """Of a model on the device meta, one with places for its weights, which nothing fills."""
    if not is_weightless(network.model):
        return network
    model, example = as_on_cpu(network.model, network.example)
    return replace(network, model=model, example=example)


def positional(model: Any, example: Any) -> tuple[Any, tuple[Any, ...]]:
    """A model that takes the example inputs in their order, and these."""
    if isinstance(example, Mapping):
        return by_name(model, tuple(example)), tuple(example.values())
    return model, tuple(example) if isinstance(example, tuple | list) else (example,)


def by_name(model: Any, names: tuple[str, ...]) -> Any:
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

    names = {variable.name_hint: function for variable, function in module.functions_items()}
    main = names.get("main")
    if not isinstance(main, relax.Function):
        what = "is a tensor program" if main is not None else f"is not there (functions: {', '.join(names) or 'none'})"
        raise CdmppError(f"the Relax module has no network: its function main {what}; name the Relax function main")
    module = relax.transform.ConvertToDataflow()(relax.frontend.detach_params(module)[0])  # what fusion looks at
    if "num_input" not in (main.attrs or {}):
        module["main"] = module["main"].with_attr("num_input", len(main.params))
    return module


def _source(name: str, module: Any, example: tuple[Any, ...] | None = None, model: Any = None) -> NetworkSource:
    from tvm import relax

    for block in module["main"].body.blocks:
        for binding in block.bindings:
            if isinstance(binding.value, relax.If):
                raise CdmppError(
                    f"{name}: {binding.var.name} is a choice between two branches by the value of a tensor. Only "
                    "networks that run the same operators for every input can be predicted: keep one branch"
                )
    return NetworkSource(name, module, _batch_of(module), example, model)


def _batch_of(module: Any) -> int:
    main = module["main"]
    if int(main.attrs["num_input"]) < 1:
        return 1
    shape = getattr(main.params[0].ty, "shape", None)
    sizes = [getattr(size, "value", None) for size in getattr(shape, "values", ())]
    return int(sizes[0]) if sizes and sizes[0] is not None else 1


def _refuse_example(what: str, example: Any) -> None:
    if example is not None:
        raise CdmppError(f"{what} has inputs of its own: leave example_inputs out, or give shapes as inputs")


def _is_a(given: Any, module: str, name: str) -> bool:
    """Whether it is of a class of a library, which is imported only where it may be one."""
    import sys

    return module in sys.modules and isinstance(given, getattr(sys.modules[module], name))
