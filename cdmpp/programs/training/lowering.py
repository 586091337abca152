"""A joint graph with an optimizer's update to a Relax module of fused tensor programs."""

from __future__ import annotations

import re
from typing import Any

from cdmpp.errors import CdmppError
from cdmpp.programs.refusal import first_line, node_at_fault, quiet
from cdmpp.programs.torch_import import imported
from cdmpp.programs.training.converters import converters
from cdmpp.programs.training.joint import JointGraph, NoJointGraphError, joint_graph
from cdmpp.programs.training.loss import with_loss
from cdmpp.programs.training.optimizers import Optimizer, optimizer_of, update_module


def step_tensors(joint: JointGraph, optimizer: Optimizer, rate: float = 1e-3, step: int = 1) -> tuple[Any, ...]:
    """Return arguments of the lowered step: tensors of the graph, states of zeros, and the optimizer's scalars."""
    import torch

    states = [
        torch.zeros_like(joint.tensors[parameter]) for parameter, _ in joint.pairs for _ in range(optimizer.states)
    ]
    return (*joint.tensors, *states, *(torch.tensor(one) for one in optimizer.scalars_of(rate, step)))


def lowered_step(joint: JointGraph, optimizer: Optimizer) -> Any:
    """Make a Relax module of fused tensor programs; ``main`` and ``NoJointGraphError`` as of ``step_to_relax``."""
    return fuse(lower_unfused(step_to_relax(joint, optimizer)))


def training_module(model: Any, example: tuple[Any, ...], optimizer: str) -> Any:
    """Lower a module in training mode by ``lowered_step``, with cross-entropy of its first output, random targets."""
    return lowered_step(joint_graph(*with_loss(model, example, "cross_entropy")), optimizer_of(optimizer))


def step_to_relax(joint: JointGraph, optimizer: Optimizer) -> Any:
    """Make a Relax module, not legalised. ``main`` takes ``step_tensors``, returns results, then new values.

    Raises:
        NoJointGraphError: TVM cannot import an operator; it is named with its place in the model.
    """
    import torch

    with quiet():
        whole = update_module(optimizer, joint.module, len(joint.tensors), joint.pairs)
        exported = torch.export.export(whole, step_tensors(joint, optimizer), strict=False)
        try:
            return imported(exported, False, converters())
        except CdmppError as error:
            raise NoJointGraphError(str(error)) from error
        except Exception as error:
            raise NoJointGraphError(_refusal(error, joint)) from error


def lower_unfused(module: Any) -> Any:
    """Legalise to tensor programs, each operator by itself."""
    from tvm.relax import transform

    return _through(
        module,
        transform.CanonicalizeBindings(), transform.DeadCodeElimination(), transform.LegalizeOps(),
        transform.AnnotateTIROpPattern(), transform.FoldConstant(), transform.DeadCodeElimination(),
    )  # fmt: skip


def fuse(module: Any) -> Any:
    """Fuse the programs of a module that ``lower_unfused`` made."""
    from tvm.relax import transform

    fused = _through(module, transform.FuseOps(), transform.FuseTIR(), transform.DeadCodeElimination())
    main = fused["main"]
    # Nothing is known when the step is deployed: parameters change at each.
    fused["main"] = main.with_attr("num_input", len(main.params))
    return fused


def _through(module: Any, *passes: Any) -> Any:
    import tvm

    with quiet():
        try:
            return tvm.transform.Sequential(list(passes))(module)
        except Exception as error:
            raise NoJointGraphError(
                f"TVM cannot lower the training step to tensor programs: {first_line(error)}"
            ) from error


def _refusal(error: Exception, joint: JointGraph) -> str:
    text, why = str(error), ""
    if missing := re.findall(r"'([^']+)'", text) if "Unsupported function types" in text else []:
        operators = missing
    elif (node := node_at_fault(error, "target")) is not None and node.op == "call_function":
        operators, why = [getattr(node.target, "__name__", str(node.target))], f": {first_line(error)}"
    else:
        return f"TVM cannot import the training step: {first_line(error)}"
    told = [f"{name} at {place}" if (place := joint.place_of(name)) else name for name in operators]
    return (
        f"TVM cannot import the torch operator {', '.join(told)}{why}. Replace it in the model by operators that TVM "
        "knows, or leave the part that it belongs to out"
    )
