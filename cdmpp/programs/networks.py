"""Networks to tasks: a torch model with random weights through Relax to its distinct tensor programs."""

from __future__ import annotations

import contextlib
import difflib
import gc
import importlib
import inspect
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import yaml

from cdmpp.errors import CdmppError, UsageError
from cdmpp.platform.paths import conf_folder
from cdmpp.platform.torch_pair import import_torchvision, torchvision_fault
from cdmpp.programs import batch_norm
from cdmpp.programs.as_eager import Noted, as_eager
from cdmpp.programs.caches import register_caches
from cdmpp.programs.casts import with_casts
from cdmpp.programs.decoder import cache_bytes, cache_of, decoder_of, encoder_decoder_of, states_of
from cdmpp.programs.experts import IMBALANCE
from cdmpp.programs.importable import make_importable
from cdmpp.programs.refusal import export_refusal, first_line, import_refusal, quiet
from cdmpp.programs.regions import FLAGS, inlined
from cdmpp.programs.task import VARIANT_MARK, Task
from cdmpp.programs.watch import watched
from cdmpp.programs.wrappers import check_calls, check_wrappers

DTYPES = ("float32", "float16")
INPUTS = ("image", "tokens", "audio", "mel", "vector")


def read_zoo() -> dict[str, dict[str, Any]]:
    """Read the shipped zoo and expand it by ``expand_zoo``. ``CdmppError`` where it cannot be read."""
    path = conf_folder() / "data" / "networks.yaml"
    try:
        zoo = yaml.safe_load(path.read_text(encoding="utf-8"))["zoo"]
    except (OSError, yaml.YAMLError, KeyError, TypeError) as error:
        raise CdmppError(f"cannot read the networks of {path}: {error}") from error
    return expand_zoo(zoo)


def expand_zoo(zoo: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Make each variant an entry of its own, by network name: ``resnet50``, ``resnet50@b4`` ..."""
    expanded = {}
    for name, entry in zoo.items():
        spec = dict(entry)
        variants = spec.pop("variants", None) or {}
        expanded[str(name)] = spec
        for suffix, changes in variants.items():
            inputs = {**spec["input"], **changes}
            own = {key: inputs.pop(key) for key in ("dtype", "train") if key in inputs}
            expanded[f"{name}{VARIANT_MARK}{suffix}"] = {**spec, "input": inputs, **own}
    return expanded


def network_of(zoo: Mapping[str, dict[str, Any]], name: str) -> dict[str, Any]:
    """Return the entry ``name`` of an expanded zoo; ``CdmppError`` where there is none."""
    if name not in zoo:
        near = ", ".join(difflib.get_close_matches(name, zoo, n=3) or sorted(zoo))
        raise CdmppError(f"network {name!r} is not in the zoo; nearest: {near} (conf/data/networks.yaml)")
    return zoo[name]


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


def build_model(spec: Mapping[str, Any], most_bytes: float = math.inf) -> tuple[Any, tuple[Any, ...]]:
    """Build ``(torch module in eval mode, example inputs)`` of one zoo entry.

    Of more than ``most_bytes`` of weights and inputs only the shapes are made: they are on the device meta.
    """
    import torch

    torch.manual_seed(0)
    if most_bytes < math.inf:
        with contextlib.suppress(Exception), torch.device("meta"):  # some ask for values while they are made
            described, example = build_model(spec)
            if sum(one.nbytes for one in described.parameters()) + cache_bytes(example) > most_bytes:
                return described, example
    builders = {"torchvision": _build_torchvision, "transformers": _build_transformers, "handmade": _build_handmade}
    if (library := spec["source"]) not in builders:
        raise CdmppError(f"network source {library!r} is unknown: use {', '.join(builders)}")
    try:
        model = builders[library](spec)
    except ImportError as error:
        raise CdmppError(f"{library} is not installed ({error}): pip install 'cdmpp[networks]'") from error
    except CdmppError:
        raise
    except Exception as error:  # a config may ask for what its model cannot be
        raise CdmppError(f"{library} cannot build {spec['build']}: {first_line(error)}") from error
    example = _example(spec["input"])
    if (past := spec.get("past")) and (tokens := spec.get("decoder_tokens")):
        states = states_of(model, example)
        new = torch.randint(0, 100, (len(example), tokens))
        return model.eval(), (new, states, cache_of(model, len(example), past, states))
    if past:
        return model.eval(), (example, cache_of(model, len(example), past))
    if tokens := spec.get("decoder_tokens"):
        return model.eval(), (example, torch.randint(0, 100, (len(example), tokens)))
    return model.eval(), (example,)


def _example(given: Mapping[str, Any]) -> Any:
    import torch

    shape = dict(given)
    batch = shape.pop("batch", 1)
    if len(shape) != 1 or not set(shape) <= set(INPUTS):
        raise CdmppError(f"network input {dict(given)} must name one of {', '.join(INPUTS)} and may name batch")
    kind, size = shape.popitem()
    if kind == "tokens":
        return torch.randint(0, 100, (batch, size))
    if kind == "image" and isinstance(size, int):
        return torch.randn(batch, 3, size, size)
    return torch.randn(batch, *([size] if isinstance(size, int) else size))


@contextlib.contextmanager
def without_collector() -> Iterator[None]:
    """Look for no cycles: exporters make a million objects and hardly one, and looking takes as long as the rest."""
    if enabled := gc.isenabled():
        gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


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
def export(
    model: Any,
    inputs: tuple[Any, ...],
    eager: bool = False,
    trains: bool = False,
    kind: str = "",
    imbalance: float = 1.0,
    dynamic: Any = None,
    boxes: int | None = None,
) -> Any:
    """Export a module by ``torch.export``; ``CdmppError`` has the place that is not traced, or what no graph can tell.

    Args:
        model: a torch module.
        inputs: ``model(*inputs)`` runs.
        eager: with ``as_eager``.
        trains: with gradients on, as a training step has them: what ``regions`` says of its nodes is there.
        kind: of the device whose rules regions of autocast follow, ``cpu`` or ``gpu``; empty: they are refused.
        imbalance: tokens of the busiest expert over the mean, of what is eager.
        boxes: elements that each selection by value keeps, of what is eager; None: such are refused.
        dynamic: ``dynamic_shapes`` of ``torch.export``: sizes of inputs that stay open; None: none do. They leave
            casts of autocast to ``with_casts``, where sizes are known.
    """
    import torch

    check_wrappers(model, trains)
    run: Any = as_eager(imbalance, boxes, kind) if eager else contextlib.nullcontext(Noted({}, set()))
    with quiet(), run as noted:
        register_caches()  # decoders return those of keys and values
        try:
            with watched(trains, kind or None) as told:
                exported = torch.export.export(model, inputs, dynamic_shapes=dynamic)
            inlined(exported)
            check_calls(exported)
            if kind and dynamic is None:
                with_casts(exported, kind)
        except CdmppError:
            raise
        except Exception as error:
            raise export_refusal(error, type(getattr(model, "inner", model)).__name__) from error
    exported.graph_module.meta[FLAGS] = (*told, *noted.told)
    for node in exported.graph.nodes:
        if "grouped_mm" in str(node.target):
            node.meta[IMBALANCE] = imbalance
            noted.decided.add("imbalance")
    if imbalance > 1 and "imbalance" not in noted.decided:
        raise UsageError(
            f"moe_imbalance is {imbalance:g}: the network has no mixture of experts that it tells: leave it out"
        )
    if boxes is not None and "boxes" not in noted.decided:
        raise UsageError(f"boxes is {boxes}: the network selects nothing by the values of tensors: leave it out")
    return exported


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


def _build_torchvision(spec: Mapping[str, Any]) -> Any:
    import torch

    model = import_torchvision().models.get_model(spec["build"], weights=None, **spec.get("arguments", {}))
    if not spec.get("detects"):
        return model

    class OfImages(torch.nn.Module):
        """Detectors read a list of images, which may differ in size."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, x: Any) -> Any:
            return self.inner(list(x.unbind(0)))

    return OfImages()


def _build_transformers(spec: Mapping[str, Any]) -> Any:
    import torch

    transformers = import_transformers()
    config = getattr(transformers, spec["config"])(**spec.get("arguments", {}))
    library = importlib.import_module(spec["module"]) if "module" in spec else transformers
    inner = getattr(library, spec["build"])(config)
    if spec.get("past") is not None:
        return encoder_decoder_of(inner) if spec.get("decoder_tokens") else decoder_of(inner)
    if spec.get("part") == "encoder" and hasattr(inner, "decoder"):
        inner = inner.get_encoder()
    parameters = inspect.signature(inner.forward).parameters
    accepted = {*parameters, *("return_dict" for p in parameters.values() if p.kind is p.VAR_KEYWORD)}
    options: dict[str, Any] = dict.fromkeys({"return_dict", "use_cache"} & accepted, False)
    first = spec.get("first_position")

    class FirstOutput(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Any) -> Any:
            if first is not None:
                options["position_ids"] = torch.arange(first, first + x.shape[1]).expand(x.shape[:2])
            return self.inner(x, **options)[0]

    class OwnLoss(FirstOutput):
        def forward(self, x: Any) -> Any:
            return {"loss": self.inner(x, labels=x, **options)[0]}

    class BothParts(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Any, tokens: Any) -> Any:
            return self.inner(x, decoder_input_ids=tokens, **options)[0]

    if spec.get("decoder_tokens"):
        return BothParts()
    return OwnLoss() if spec.get("labels") else FirstOutput()


def _build_handmade(spec: Mapping[str, Any]) -> Any:
    from cdmpp.programs.handmade import MODELS

    if spec["build"] not in MODELS:
        raise CdmppError(f"no hand-made network {spec['build']!r}; known: {', '.join(MODELS)}")
    return MODELS[spec["build"]](**spec.get("arguments", {}))


def import_transformers() -> Any:
    """Import transformers so that it will not reach for the network."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    if fault := torchvision_fault():
        raise CdmppError(fault)
    return importlib.import_module("transformers")
