"""TorchNetwork: a torch model with inputs that it runs on, read from a name, a file or a module. Needs no TVM."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cdmpp.errors import UsageError
from cdmpp.network.precision import Precision, of_entry, precision_of
from cdmpp.network.source.checkpoint import (
    as_decoder,
    as_encoder_decoder,
    checkpoint_entry,
    read_checkpoints,
    with_head,
    without_head,
)
from cdmpp.network.source.entry import torchvision_entry, with_sequence, with_shape, without_fused
from cdmpp.network.source.user_code import run_function
from cdmpp.network.source.weightless import as_on_cpu, is_weightless
from cdmpp.network.workload import KINDS, Workload, is_instance
from cdmpp.platform.allocation import within_free_memory
from cdmpp.programs.caches import register_caches
from cdmpp.programs.models import build_model, example_of
from cdmpp.programs.zoo import network_of, read_zoo

_MOST_BYTES = 1e8
"""Most bytes of weights and inputs that are made where their values play no part; of more only the shapes are made."""


@dataclass(frozen=True)
class TorchNetwork:
    """This is a torch model in eval mode with inputs that it runs on: ``model(*example)``."""

    name: str
    model: Any
    example: tuple[Any, ...]
    precision: Precision
    folds: bool = True
    """True if batch norms are folded into the convolutions before them where TVM compiles it."""
    warnings: tuple[str, ...] = ()
    """Differences from what the name may make one expect, a sentence each."""
    cached: int | None = None
    """Tokens of each example in the cache of keys and values after a run; None: the network is run without."""


@within_free_memory("the network, as it is asked for,")
def read_torch(workload: Workload, needs_values: bool = True) -> TorchNetwork:
    """Read the torch model of a workload and its inputs.

    Args:
        workload: which network, and of which shapes and type.
        needs_values: whether weights need values. Without them large models of a name, and those on the device meta,
            have weights that hold nothing.

    Raises:
        UsageError: no such network, no torch model, or shapes that it cannot have.
        CdmppError: the model cannot be built; it says why and where.
    """
    path = workload.path
    if path is not None and path.suffix == ".onnx":
        network = _of_onnx(workload, path)
    elif path is not None:
        network = _of_name(workload, math.inf if needs_values else _MOST_BYTES)
    elif workload.is_torch:
        network = _of_module(workload)
    else:
        raise UsageError(f"a {type(workload.network).__name__} is no torch model: give {KINDS}")
    if needs_values or not is_weightless(network.model):
        return network
    model, example = as_on_cpu(network.model, network.example)
    return replace(network, model=model, example=example)


def other_inputs(network: TorchNetwork, before: Workload, after: Workload) -> tuple[Any, ...] | None:
    """Return inputs without values of another workload of a network of a name; None where its model is another one.

    Args:
        network: that of the workload ``before``.
        before: of a name.
        after: of the same name.

    Raises:
        UsageError: the network does not have these sizes.
    """
    import torch

    from cdmpp.network.source.in_type import floats_in  # it imports torch

    (*told, own), (*other, spec) = ((name, said, entry) for name, entry, said in map(entry_of, (before, after)))
    same = [{key: value for key, value in one.items() if key != "input"} for one in (own, spec)]
    if told != other or same[0] != same[1]:
        return None
    _check_positions(str(after.network), network.model, spec)
    with torch.device("meta"):
        example = example_of(network.model, spec)
    weights = network.precision.weights
    return example if weights == "float32" else floats_in(example, weights)


def positional(model: Any, example: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return a model that takes the example inputs in their order, and these."""
    if isinstance(example, Mapping):
        return _by_name(model, tuple(example)), tuple(example.values())
    return model, tuple(example) if isinstance(example, tuple | list) else (example,)


def refuse_example(what: str, example: Any) -> None:
    """Raise ``UsageError`` where example inputs were given for a network that has its own."""
    if example is not None:
        raise UsageError(f"{what} has inputs of its own: leave example_inputs out, or give shapes as inputs")


def _of_onnx(workload: Workload, path: Path) -> TorchNetwork:
    """Read an ONNX file: each node runs as the operators that PyTorch has for it."""
    from cdmpp.network.source.onnx_reader import module_of_onnx

    refuse_example(path.name, workload.example_inputs)
    if workload.attention == "eager":
        raise UsageError(f"{path.name}: attention eager is of networks of a name: export the file without Attention")
    model, example = module_of_onnx(path, workload.batch, workload.inputs, workload.boxes)
    said = (
        f"{path.name} runs as its nodes say, an operator of PyTorch for each: what the exporter broke up or folded "
        "stays so"
    )
    if workload.mode != "inference":
        said += ", and batch norms and dropouts are those of inference"
    return TorchNetwork(path.name, model, example, precision_of(workload.precision), warnings=(said,))


def _of_name(workload: Workload, most_bytes: float) -> TorchNetwork:
    text = str(workload.network)
    file, _, function = text.rpartition(":") if ":" in text else (text, "", "")
    if file.endswith(".py"):
        made = run_function(Path(file).expanduser(), function, workload.batch, workload.sequence)
        return _of_function(f"{Path(file).name}:{function}", made, workload)
    refuse_example(text, workload.example_inputs)
    name, spec, warnings = entry_of(workload)
    model, own = build_model(spec, most_bytes)
    _check_positions(text, model, spec)
    folds = spec.get("fold_batch_norm", True)
    new = spec.get("decoder_tokens") or spec["input"].get("tokens", 0)
    cached = None if workload.past is None else workload.past + new
    return TorchNetwork(name, model, own, of_entry(workload.precision, spec.get("dtype")), folds, warnings, cached)


def entry_of(workload: Workload) -> tuple[str, dict[str, Any], tuple[str, ...]]:
    """Return the short name, the entry and the warnings of a network of the zoo or a library, as the workload runs it.

    ``UsageError``: no such network, or sizes that it does not have.
    """
    text, batch = str(workload.network), workload.batch
    name, entry = _entry(text, Path(text).expanduser())
    warnings: tuple[str, ...] = ()
    if workload.mode == "training_step" and text.startswith("hf:"):
        short = text.removeprefix("hf:")
        if workload.loss == "model":
            entry = with_head(short, entry)
        else:
            warnings = without_head(short, entry)
    is_cached = bool(workload.past) and entry.get("part") == "encoder"
    if workload.decoder_sequence is not None or is_cached:
        name = text.removeprefix("hf:")
        entry = as_encoder_decoder(name, entry, workload.decoder_sequence or 1)
    if is_cached:
        entry = {**entry, "past": workload.past}
    elif workload.past is not None:
        entry = as_decoder(text.removeprefix("hf:"), entry, workload.past)
    if workload.inputs:
        entry = with_shape(entry, workload.inputs, text)
    if workload.sequence is not None:
        entry = with_sequence(entry, workload.sequence, text, bool(workload.inputs))
    if workload.attention == "eager":
        entry = without_fused(text, entry)
    sizes = entry["input"]
    if workload.inputs and batch is not None and sizes["batch"] != batch:
        raise UsageError(f"{text}: batch={batch}, but inputs give {sizes['batch']}: leave one of them out")
    return name, dict(entry if batch is None else {**entry, "input": {**sizes, "batch": batch}}), warnings


def _check_positions(text: str, model: Any, spec: Mapping[str, Any]) -> None:
    """``UsageError`` for more tokens than a table of positions has: without values nobody would note it."""
    import torch

    tokens, first, past = spec["input"].get("tokens", 0), spec.get("first_position", 0), spec.get("past") or 0
    decoded = spec.get("decoder_tokens")
    for name, one in model.named_modules():
        in_decoder = decoded is None or "decoder." in name
        read = (decoded if in_decoder and decoded else tokens) + (past if in_decoder else 0)
        is_table = isinstance(one, torch.nn.Embedding) and re.search(r"position_embed|embed_positions|\bwpe$", name)
        if is_table and read + first > one.num_embeddings:
            raise UsageError(
                f"{text}: {read:,} tokens an example, but it has {one.num_embeddings - first:,} positions: take at "
                "most so many (sequence, decoder_sequence, past, or inputs)"
            )


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
        raise UsageError(f"{text}: weights are no network, and pickles are not loaded: give file.py:FUNCTION or ONNX")
    if path.suffix == ".json" or (path / "config.json").is_file():
        raise UsageError(f"{text} is no network of the zoo: a config of transformers is given as hf:{text}")
    if path.exists():
        raise UsageError(f"{text} is no file that holds a network: give {KINDS}")
    known = [*zoo, *(f"hf:{full.split('/')[-1]}" for full in read_checkpoints())]
    near = difflib.get_close_matches(text, known, n=3, cutoff=0.5)
    told = f"nearest: {', '.join(near)}; or " if near else ""
    raise UsageError(f"there is no network {text!r}: {told}give {KINDS}")


def _of_function(name: str, made: Any, workload: Workload) -> TorchNetwork:
    """Read what a user's function returned: a model, or one with its example inputs."""
    if isinstance(made, tuple) and len(made) == 2:
        made, own = made
        if workload.example_inputs is None:
            workload = replace(workload, example_inputs=own)
    if not is_instance(made, "torch.nn", "Module"):
        raise UsageError(
            f"{name} returned a {type(made).__name__}: return a torch.nn.Module, or (module, example inputs)"
        )
    return _of_module(replace(workload, network=made, sequence=None), name)


def _of_module(workload: Workload, name: str = "") -> TorchNetwork:
    import torch

    model, example, inputs = workload.network, workload.example_inputs, workload.inputs
    name = name or type(getattr(model, "_orig_mod", model)).__name__
    if workload.attention == "eager":
        raise UsageError(f"{name}: attention eager is of networks of a name: build it with attn_implementation='eager'")
    if example is not None and inputs:
        raise UsageError(f"{name}: give example inputs or the shapes of inputs, not both")
    if example is None and not inputs:
        raise UsageError(
            f"{name}: a module says nothing about its inputs: give example_inputs, such as (torch.randn(1, 8),); "
            "a function in file.py returns (module, example inputs)"
        )
    register_caches()
    example = {key: torch.randn(*shape) for key, shape in inputs.items()} if inputs else example
    try:
        model = model.eval()
    except NotImplementedError as error:  # of torch.export
        raise UsageError(f"{name}: an exported program has one mode: give the module that it was made of") from error
    _check_elements(name, example)
    named, example = positional(model, example)
    own = _first_size(example)
    if workload.batch not in (None, own):
        raise UsageError(
            f"{name}: batch={workload.batch}, but its example inputs have batch {own}: leave batch out, or give "
            "example inputs of that batch (a function in file.py may take batch, and has to for cdmpp plan, which "
            "tries micro-batches of several sizes)"
        )
    return TorchNetwork(name, named, example, precision_of(workload.precision))


def _check_elements(name: str, example: Any) -> None:
    """``UsageError`` of example inputs without elements: no kernel runs on nothing."""
    from torch.utils import _pytree

    for path, value in _pytree.tree_flatten_with_path(example)[0]:
        if getattr(value, "is_sparse", False) is False and hasattr(value, "numel") and value.numel() == 0:
            where = _pytree.keystr(path)
            raise UsageError(
                f"{name}: the example input{f' {where}' if where else ''} has the shape {tuple(value.shape)}, without "
                "elements: give at least one along each axis"
            )


def _first_size(example: tuple[Any, ...]) -> int:
    """First dimension of the first input; 1 where it has none."""
    shape: Sequence[int] = getattr(example[0], "shape", ()) if example else ()
    return int(shape[0]) if len(shape) else 1


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
