"""Networks to tasks: a torch model with random weights through Relax to its distinct tensor programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from cdmpp.errors import CdmppError
from cdmpp.programs import batch_norm
from cdmpp.programs.exported import export, without_collector
from cdmpp.programs.importable import make_importable
from cdmpp.programs.models import build_model
from cdmpp.programs.refusal import first_line, import_refusal, quiet
from cdmpp.programs.task import Task
from cdmpp.programs.zoo import network_of, read_zoo

DTYPES = ("float32", "float16")


def import_network(name: str, spec: Mapping[str, Any] | None = None) -> list[Task]:
    """Import tasks of the zoo network ``name`` (or of ``spec``), one per structurally distinct PrimFunc.

    Where ``spec`` names an optimizer to ``train`` with, those of its training step. Tasks with symbolic shapes are left
    out. ``CdmppError`` where the network or its library is not there.
    """
    if spec is None:
        spec = network_of(read_zoo(), name)
    model, inputs = build_model(spec)
    if optimizer := spec.get("train"):
        from cdmpp.programs.training.lowering import training_module

        return tasks_of_module(training_module(model.train(), inputs, optimizer), name)
    folded = spec.get("fold_batch_norm", spec["source"] == "torchvision")
    return tasks_of_module(to_relax(model, inputs, spec.get("dtype", "float32"), fold_batch_norm=folded), name)


def to_relax(
    model: Any,
    inputs: tuple[Any, ...],
    dtype: str = "float32",
    *,
    fold_batch_norm: bool = False,
    exported: Any = None,
) -> Any:
    """Make a Relax module with operators legalised and fused into PrimFuncs; weights are inputs.

    ``dtype="float16"``: mixed precision, products in float16 and the casts fused into what surrounds them.
    ``fold_batch_norm``: into the convolution before it, as inference engines do. ``exported``: what ``export`` made of
    the same, where it was asked before; it is changed.
    ``CdmppError`` where torch cannot export the model or TVM cannot import what it exported.
    """
    exported = exported or export(model, inputs)
    if fold_batch_norm:
        batch_norm.fold_batch_norm(exported)
    return lower(relax_of_exported(exported), dtype)


@without_collector()
def relax_of_exported(exported: Any) -> Any:
    """Import an ``ExportedProgram`` as a Relax module, not legalised; weights are inputs, after the others."""
    from tvm import relax

    from cdmpp.programs.torch_import import imported

    make_importable(exported)
    with quiet():
        try:
            module = imported(exported.run_decompositions())
        except CdmppError as error:
            refusal = error.with_traceback(None)
        except Exception as error:
            refusal = import_refusal(error, exported)
        else:
            return relax.frontend.detach_params(module)[0]
    raise refusal  # here: what its trace would hold alive complains when it dies


@without_collector()
def lower(module: Any, dtype: str = "float32") -> Any:
    """Legalise and fuse the operators of a Relax module into PrimFuncs; one that was legalised stays so."""
    if dtype not in DTYPES:
        raise CdmppError(f"network dtype {dtype!r} is unknown: use {', '.join(DTYPES)}")
    import tvm
    from tvm import relax

    passes = relax.transform
    mixed = [passes.ToMixedPrecision(out_dtype="float16")] if dtype == "float16" else []
    legal = [passes.DecomposeOpsForInference(), passes.CanonicalizeBindings(), *mixed, passes.LegalizeOps()]
    fused = [passes.AnnotateTIROpPattern(), passes.FoldConstant(), passes.FuseOps(), passes.FuseTIR()]
    with quiet():
        try:
            return tvm.transform.Sequential([*legal, *fused, passes.DeadCodeElimination()])(module)
        except Exception as error:
            raise CdmppError(f"TVM cannot lower the network to tensor programs: {first_line(error)}") from error


def tasks_of_module(module: Any, network: str) -> list[Task]:
    """Make tasks of ``network`` from the distinct tensor programs of a legalised and fused Relax module."""
    import tvm
    from tvm.s_tir import meta_schedule

    tasks: dict[str, Task] = {}
    host = tvm.target.Target({"kind": "llvm", "num-cores": 1})
    for extracted in meta_schedule.relax_integration.extract_tasks(module, host):
        if not has_static_shapes(extracted.dispatched[0]["main"]):
            continue
        task = task_of(extracted.dispatched[0], str(extracted.task_name), network, int(extracted.weight))
        if task.task_id in tasks:
            weight = task.networks[network] + tasks[task.task_id].networks[network]
            task = replace(task, networks={network: weight})
        tasks[task.task_id] = task
    return list(tasks.values())


def task_of(module: Any, name: str, network: str, weight: int) -> Task:
    """Make the tensor program ``main`` of ``module`` a task that ``network`` calls ``weight`` times."""
    import tvm

    from cdmpp.programs import identity

    module = identity.without_offsets(module)
    workload = module.script()
    # Identity is that of the text, because every later step starts from it.
    program = module if identity.is_as_printed(module) else tvm.script.from_source(workload)
    work = (identity.flops(program), identity.io_bytes(program))
    op_class = identity.op_class(name, program)
    return Task(identity.task_id(program), name, op_class, workload, *work, {network: weight}, origin="torch")


def has_static_shapes(function: Any) -> bool:
    """Return True if every parameter of a PrimFunc has a shape of plain numbers."""
    from tvm.tirx import IntImm

    shapes = [getattr(parameter, "shape", None) for parameter in function.params]
    return all(shape is not None and all(isinstance(n, int | IntImm) for n in shape) for shape in shapes)
