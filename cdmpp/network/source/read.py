"""NetworkSource: a whole network as a Relax module, read from what a user has of it. Needs TVM."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any

from cdmpp.errors import UnsupportedNetworkError, UsageError
from cdmpp.network.precision import precision_of
from cdmpp.network.source.onnx import relax_of_onnx
from cdmpp.network.source.torch_network import TorchNetwork, read_torch, refuse_example
from cdmpp.network.workload import Workload
from cdmpp.platform.allocation import within_free_memory
from cdmpp.programs.compiled import TVM, compiled_flag, compiled_noted
from cdmpp.programs.networks import lower, to_relax


@dataclass(frozen=True)
class NetworkSource:
    """This is a network as a Relax module, and the torch model that it came from."""

    name: str
    """Short, for tables: ``resnet50``, ``model.onnx``, the class of a module."""
    module: Any
    """Relax ``IRModule``, legalised and fused; weights are parameters of ``main`` after its first ``num_input``."""
    batch: int
    """First dimension of the first input; 1 where it has none."""
    example: tuple[Any, ...] | None = None
    """Torch tensors: ``torch_model(*example)`` runs. ``None`` where the source is no torch model."""
    torch_model: Any | None = None
    """Torch model in eval mode; ``None`` where the source is no torch model."""
    warnings: tuple[str, ...] = ()
    """Differences from the requested run, a sentence each."""


@within_free_memory("the network, as it is asked for,")
def read_network(workload: Workload, exported: Any = None) -> NetworkSource:
    """Read the network of a workload as a Relax module. Needs TVM.

    ``exported``: of a torch module: what ``exported.export`` made of it before; it is changed.

    Raises:
        UsageError: what was given is not there, or cannot have these shapes.
        CdmppError: it cannot be imported; the message says why and where.
    """
    path = workload.path
    if workload.boxes is not None:
        raise UsageError(
            f"boxes is {workload.boxes}: selections by value are read as PyTorch runs them: --runtime torch"
        )
    if workload.past is not None:
        raise UsageError(f"past is {workload.past}: generation is read as PyTorch runs it: ask for --runtime torch")
    if path is not None and path.suffix == ".onnx":
        refuse_example(path.name, workload.example_inputs)
        module = _with_inputs(relax_of_onnx(path, workload.batch, workload.inputs))
        return _source(path.name, lower(module, precision_of(workload.precision).compiled_dtype))
    if not workload.is_relax:
        return _relaxed(read_torch(workload), exported)
    refuse_example("a Relax module", workload.example_inputs)
    source = _source(
        "Relax module", lower(_with_inputs(workload.network), precision_of(workload.precision).compiled_dtype)
    )
    if workload.inputs or workload.batch not in (None, source.batch):
        raise UsageError(f"a Relax module has its sizes (batch {source.batch}): leave batch and inputs out")
    return source


def _relaxed(network: TorchNetwork, exported: Any = None) -> NetworkSource:
    """Make the Relax module of a network.

    ``exported`` is what ``exported.export`` made of it, if it was exported before.
    """
    model, example = _on_cpu(network.model, network.example)
    kept = exported if model is network.model else None
    with compiled_noted() as compiled:
        module = to_relax(
            model, example, network.precision.compiled_dtype, fold_batch_norm=network.folds, exported=kept
        )
    source = _source(network.name, module, network.example, network.model)
    return replace(source, warnings=compiled_flag(compiled, TVM))


def _on_cpu(model: Any, example: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
    """TVM reads weights there; what they are elsewhere does not change what runs."""
    from torch.utils import _pytree

    devices = {value.device.type for value in [*model.parameters(), *model.buffers()]}
    if devices <= {"cpu"}:
        return model, example
    if "meta" in devices:
        raise UnsupportedNetworkError(
            f"{type(model).__name__} has weights on the device meta: give it values, random ones will do"
        )
    moved = _pytree.tree_map(lambda value: value.cpu() if hasattr(value, "cpu") else value, example)
    return copy.deepcopy(model).cpu(), moved


def _with_inputs(module: Any) -> Any:
    """A Relax module whose ``main`` has no values of weights, but says how many of its parameters are inputs."""
    from tvm import relax

    names = {variable.name_hint: function for variable, function in module.functions_items()}
    main = names.get("main")
    if not isinstance(main, relax.Function):
        what = "is a tensor program" if main is not None else f"is not there (functions: {', '.join(names) or 'none'})"
        raise UnsupportedNetworkError(
            f"the Relax module has no network: its function main {what}; name the Relax function main"
        )
    module = relax.transform.ConvertToDataflow()(relax.frontend.detach_params(module)[0])  # what fusion looks at
    if "num_input" not in (main.attrs or {}):
        module["main"] = module["main"].with_attr("num_input", len(main.params))
    return module


def _source(name: str, module: Any, example: tuple[Any, ...] | None = None, model: Any = None) -> NetworkSource:
    from tvm import relax

    for block in module["main"].body.blocks:
        for binding in block.bindings:
            if isinstance(binding.value, relax.If):
                raise UnsupportedNetworkError(
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
