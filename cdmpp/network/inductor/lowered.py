"""From a torch model to the graphs that Inductor schedules: Dynamo, AOTAutograd, and Inductor's own lowering."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from types import FunctionType
from typing import Any, NoReturn

from cdmpp.devices import Device
from cdmpp.errors import CdmppError, UnsupportedNetworkError
from cdmpp.network.inductor.absent_gpu import PLACE, absent_gpu
from cdmpp.programs.autocast import seen_as_on
from cdmpp.programs.autocast_kernels import gpu_rules
from cdmpp.programs.patch import patched
from cdmpp.programs.refusal import first_line, quiet
from cdmpp.programs.unguarded import unguarded

ATTENTION = "scaled_dot_product_attention"
"""Name of attention in what Dynamo finds."""
DROPOUT = "cdmpp_dropout"
"""Key in the ``meta`` of such a node: the share of weights that it drops."""
_PLACE_OF_DROPOUT = 4
_FEW = 8
"""Constants of at most so many elements become numbers in the kernels, so they stay where they have values."""

Seen = Callable[[Any, bool, Sequence[Any]], None]
"""Called with each ``GraphLowering`` that was scheduled, whether it is the backward pass, and the nodes that Dynamo
found, those of checkpointed regions last; Inductor's virtual state is that of the graph meanwhile."""


class _Lowered(Exception):  # noqa: N818  # no error: what was asked for is known
    """All graphs were seen, and nothing is run."""


def lower(name: str, model: Any, example: tuple[Any, ...], trains: bool, device: Device, seen: Seen) -> tuple[str, ...]:
    """Lower ``model(*example)`` as ``torch.compile(model, fullgraph=True)`` does on a GPU, up to code generation.

    Return what was taken for something else, a sentence each. Regions of autocast cast as on a GPU.

    Dynamo and AOTAutograd (decompositions, its joint graph and the partitioner's recomputation) run on tensors of a
    CPU. Their graphs are then moved to a GPU that is not there, and Inductor lowers, fuses and schedules them for it.

    Args:
        name: of the network, for errors.
        model: in the mode in which it is run; not changed.
        example: its positional arguments.
        trains: whether the backward pass is compiled too.
        device: the GPU.
        seen: see ``Seen``; first of the forward pass.

    Raises:
        UnsupportedNetworkError: Dynamo breaks the graph, a size depends on values, or Inductor cannot lower it.
    """
    import torch
    from torch._dynamo.exc import TorchDynamoException
    from torch._functorch import config as functorch
    from torch._functorch import partitioners
    from torch._inductor.compile_fx import compile_fx

    def backend(module: Any, found: Sequence[Any]) -> Any:
        parts = [part for part in module.modules() if isinstance(part, torch.fx.GraphModule) and part is not module]
        inner = [node for part in parts for node in part.graph.nodes if node.op != "placeholder"]  # of checkpoints
        nodes = [*module.graph.nodes, *inner]
        _keep_whole(nodes)

        def scheduled(module: Any, inputs: Sequence[Any], **options: Any) -> Any:
            return _scheduled(module, inputs, options, lambda graph, is_back: seen(graph, is_back, nodes))

        compile_fx(module, found, inner_compile=scheduled)

        def run(*_: Any) -> Any:
            raise _Lowered

        return run

    def whole(*given: Any) -> Any:
        return model(*given)

    told = dict[str, None]()
    _forget_functions()
    # A code object of its own: Dynamo counts compilations by code object and gives up after eight.
    called = FunctionType(whole.__code__.replace(), globals(), "whole", None, whole.__closure__)
    try:
        with (
            quiet(),
            absent_gpu(device),
            gpu_rules(),
            patched(partitioners, "functionalize_rng_ops", _as_they_are),
            seen_as_on("gpu", _refuse, told),
            functorch.patch(force_non_lazy_backward_lowering=True, enable_autograd_cache=False),
            torch.set_grad_enabled(trains),
            _mode_of(model, example),
        ):
            torch._dynamo.optimize(backend, nopython=True, dynamic=False)(called)(*example)
    except _Lowered:
        return tuple(told)
    except TorchDynamoException as error:
        inner = getattr(error, "inner_exception", None)
        if isinstance(inner, CdmppError):
            raise inner from None
        if inner is not None:
            raise UnsupportedNetworkError(_unlowered(name, inner)) from error
        raise UnsupportedNetworkError(_refusal(name, error)) from error
    except Exception as error:
        raise UnsupportedNetworkError(_unlowered(name, error)) from error
    raise UnsupportedNetworkError(f"{name} has nothing that torch.compile would compile: its outputs are its inputs")


def _as_they_are(_: Any, forward: Any, backward: Any, __: int) -> tuple[Any, Any]:
    """Leave graphs without the random states that recomputed dropout and attention are given: the host keeps them."""
    return forward, backward


def _forget_functions() -> None:
    """Let Dynamo look torch's functions up again: exports of this package put others in their places for a while."""
    from torch._dynamo import trace_rules
    from torch._dynamo.variables import torch as functions

    handlers = functions.TorchInGraphFunctionVariable._get_handlers
    for table in (trace_rules.get_torch_obj_rule_map, functions.tracing_state_functions, handlers):
        table.cache_clear()


def _keep_whole(nodes: Sequence[Any]) -> None:
    """Take the dropout out of attention, which a CPU would not fuse then; GPUs drop inside of their kernels.

    What it was is kept as ``DROPOUT`` in the ``meta`` of the node.
    """
    for node in nodes:
        if ATTENTION in str(node.target) and node.op == "call_function":
            if "dropout_p" in node.kwargs:
                node.meta[DROPOUT] = node.kwargs["dropout_p"]
                node.update_kwarg("dropout_p", 0.0)
            elif len(node.args) > _PLACE_OF_DROPOUT:
                node.meta[DROPOUT] = node.args[_PLACE_OF_DROPOUT]
                node.update_arg(_PLACE_OF_DROPOUT, 0.0)


def _refuse(why: str) -> NoReturn:
    raise UnsupportedNetworkError(why)


def _unlowered(name: str, error: Exception) -> str:
    import torch

    return (
        f"{name} cannot be lowered by Inductor of torch {torch.__version__}: {first_line(error)}. "
        "--runtime torch answers without torch.compile"
    )


def _refusal(name: str, error: Exception) -> str:
    """Say what Dynamo says, and where in the model."""
    text = str(error)
    reason = " ".join(line.strip() for line in text.split("Developer debug context")[0].splitlines() if line.strip())
    _, _, code = text.partition("from user code:")
    places = [line.strip() for line in code.splitlines() if line.strip().startswith("File ")]
    place = f" ({places[-1]})" if places else ""
    return f"{name} is not one graph for torch.compile{place}: {reason[:400]}. --runtime torch answers without it"


@contextlib.contextmanager
def _mode_of(model: Any, example: tuple[Any, ...]) -> Iterator[None]:
    """Enter the mode of tensors that hold nothing, if the model has such."""
    from torch._guards import detect_fake_mode

    mode = detect_fake_mode([*model.parameters(), *model.buffers(), *example])
    with mode if mode is not None else contextlib.nullcontext():
        yield


def _scheduled(module: Any, inputs: Sequence[Any], options: dict[str, Any], seen: Callable[[Any, bool], None]) -> Any:
    """Lower one graph and schedule it: the steps of ``compile_fx_inner`` until code is generated."""
    import torch
    from torch._inductor import compile_fx as steps
    from torch._inductor.debug import DebugContext
    from torch._inductor.graph import GraphLowering
    from torch._inductor.virtualized import V
    from torch.utils._pytree import tree_leaves

    made = [node.meta.get("val") for node in module.graph.nodes]
    tensors = [one for one in tree_leaves([*inputs, *made]) if isinstance(one, torch.Tensor)]
    if any(isinstance(size, torch.SymInt) for one in tensors for size in one.shape):
        raise UnsupportedNetworkError("a size depends on the values of tensors: such networks are not answered")
    is_inference, is_backward = options.get("is_inference", False), options.get("is_backward", False)
    environment = steps.shape_env_from_inputs(list(inputs))
    steps.view_to_reshape(module)
    with torch.no_grad():
        mode = steps.fake_tensor_prop(module, list(inputs))
    inputs = [_on_gpu(one) for one in inputs]
    _move(module)
    steps._recursive_record_original_output_strides(module)
    with V.set_fake_mode(mode), unguarded():
        steps._recursive_post_grad_passes(module, is_inference=is_inference)
    with V.set_fake_mode(mode), unguarded(), steps.maybe_disable_comprehensive_padding(inputs):
        graph = GraphLowering(
            module,
            example_inputs=inputs,
            shape_env=environment,
            graph_id=options.get("graph_id"),
            is_inference=is_inference,
            is_backward=is_backward,
            get_decomp_fn=options["get_decomp_fn"],
            inputs_to_check=(),
        )
        graph.freeze_runtime_asserts()
        state = (V.set_debug_handler(DebugContext()), V.set_graph_handler(graph), V.set_extern_kernel_nodes([]))
        with state[0], state[1], state[2]:
            graph.run(*inputs)
            graph.init_wrapper_code()
            graph._update_scheduler()
            seen(graph, is_backward)
    return _output_code()


def _on_gpu(value: Any) -> Any:
    import torch
    from torch._subclasses.fake_tensor import FakeTensor

    hollow = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    return FakeTensor(value.fake_mode, hollow, torch.device(PLACE))


def _move(module: Any) -> None:
    """Move what a graph makes, and its large constants, to the GPU."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensor
    from torch.utils._pytree import tree_map_only

    def moved(given: Any) -> Any:
        return torch.device(PLACE) if isinstance(given, torch.device) and given.type == "cpu" else given

    for part in module.modules():
        if not isinstance(part, torch.fx.GraphModule):
            continue
        for node in part.graph.nodes:
            node.args, node.kwargs = (torch.fx.node.map_aggregate(one, moved) for one in (node.args, node.kwargs))
            if "val" in node.meta and node.op != "get_attr":
                node.meta["val"] = tree_map_only(FakeTensor, _on_gpu, node.meta["val"])
            value = getattr(part, str(node.target), None) if node.op == "get_attr" else None
            if isinstance(value, FakeTensor) and value.device.type == "cpu" and value.numel() > _FEW:
                setattr(part, str(node.target), _on_gpu(value))


def _output_code() -> Any:
    """Return what stands for compiled code, which nobody calls."""
    from torch._inductor.output_code import OutputCode

    class Never(OutputCode):  # type: ignore[misc]
        _boxed_call = True
        _fx_graph_cache_key = None

        def __call__(self, inputs: Sequence[Any]) -> Any:
            raise _Lowered

        def post_compile(self, *_: Any, **__: Any) -> None:
            """Do nothing: there is no code."""

        def prepare_for_serialization(self) -> None:
            """Do nothing, as above."""

        def set_triton_bundle(self, triton_bundle: Any) -> None:
            """Do nothing, as above."""

    return Never()
