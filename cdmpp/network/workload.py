"""Workload: a network and one way to run it, which is all of a question but the device."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, Literal, TypeVar

from cdmpp.errors import UsageError
from cdmpp.network.precision import PRECISIONS, Precision, precision_of
from cdmpp.network.update import Update, update_of
from cdmpp.platform.limits import SIZES, Limits, fitting, shown
from cdmpp.programs.training.loss import Loss, check_loss

Attention = Literal["auto", "flash", "efficient", "cudnn", "math", "eager"]
Recompute = Literal["none", "full", "op", "attention"]
Mode = Literal["inference", "forward_backward", "training_step"]
KINDS = (
    "a zoo network (bert_tiny, resnet50@b4; gpt2 and bert_base have two layers there, hf:gpt2 has all), "
    "torchvision:resnet50, hf:bert-base-uncased, hf:FOLDER with a config.json, "
    "model.onnx, file.py:FUNCTION; in Python also a torch.nn.Module with example inputs, or a Relax module"
)

_T = TypeVar("_T")


def _takes_dtype(kind: type[_T]) -> type[_T]:
    """Let a class that has a ``precision`` also take it as ``dtype``; a ``DeprecationWarning`` says so."""
    init = kind.__init__

    @wraps(init)
    def made(self: _T, *args: Any, **options: Any) -> None:
        if "dtype" in options:
            given = options.pop("dtype")
            warnings.warn(f"dtype={given!r}: give precision={given!r}", DeprecationWarning, stacklevel=2)
            options["precision"] = given
        init(self, *args, **options)

    kind.__init__ = made  # type: ignore[method-assign, assignment]
    return kind


@_takes_dtype
@dataclass(frozen=True, eq=False)
class Workload:
    """A workload is one network and one way to run it; the device and the runtime are given separately.

    Attributes:
        network: one of ``KINDS``: a torch module, a Relax module, or a name. ``file.py:FUNCTION`` runs that file and
            calls the function without arguments. A module in eval mode is trained whole; one in training mode is
            trained as it is, which keeps its frozen parts in eval mode. A module is left as it was.
        example_inputs: what a torch module is called with: a tensor, a tuple of arguments, or a dict of them by name.
            Their shapes decide; their values play no part. Names and Relax modules have inputs of their own.
        batch: examples in one run, the first dimension of the inputs, from 1 to 2**31; None where the network says it.
        sequence: tokens of each example, of a network whose name is given and that reads tokens, from 1 to 2**31; None
            where the network says it.
        inputs: name of an input -> its shape, in elements along each axis, where the network leaves shapes open.
        precision: a ``Precision`` or its name, such as ``bf16-autocast``, or a word of Lightning for it
            (``bf16-mixed``). Compiled programs have ``fp32`` or ``fp16``, which there is a mix of both. A zoo variant
            that names a type has that one.
        mode: ``inference``: one forward pass. ``forward_backward``: a forward pass in training mode and the gradients
            of all parameters, without a loss and an update. ``training_step``: forward pass, loss, backward pass and
            update.
        loss: of a training step: ``cross_entropy`` or ``mse`` of the first output, ``model`` for the ``loss`` of a
            model that is given labels (a language model of an ``hf:`` name then has its head and labels), or a function
            ``(output[, target])`` that returns a tensor of one number.
        target: what the first output should be, a tensor; None: random where the loss needs one. A function is called
            with the output only where this is None.
        decoder_sequence: tokens of each example that the decoder of an ``hf:`` name reads, such as that of T5, whose
            encoder reads ``sequence`` tokens, or of Whisper, whose encoder reads a spectrum; None: the encoder alone.
        past: tokens of each example that a language model of an ``hf:`` name has in its cache of keys and values. It
            then generates: of 0 it reads a prompt of ``sequence`` tokens and fills the cache (prefill); of more it
            decodes one token, or ``sequence`` tokens, behind them. None: it is run without a cache.
        moe_imbalance: tokens of the busiest expert over the mean, of a mixture of experts that PyTorch runs: 1: as many
            for each. The other experts share the rest evenly.
        boxes: elements that each selection by the values of tensors keeps, where PyTorch runs it: a mask,
            ``nonzero``, or the non-maximum suppression of a detector. 0: nothing runs behind. None: they are refused.
        attention: the kernel of ``scaled_dot_product_attention`` in eager PyTorch: ``auto`` as torch chooses it for the
            device, ``flash``, ``efficient``, ``cudnn``, ``math``, or ``eager``: a network of a name is built without
            that call (``attn_implementation="eager"``).
        recompute: of a training step in eager PyTorch: ``full``: each block runs again in the backward pass
            (``torch.utils.checkpoint``); ``op``: but for attention and every second product; ``attention``: each
            ``scaled_dot_product_attention`` by itself; ``none``: as the model says.
        optimizer: of a training step: an ``Update``, a word for one, such as ``sgd`` (momentum 0.9), ``adamw`` or
            ``adamw-fused``, or None for no update.

    Raises:
        UsageError: a value that no run can have; the message names it and what is allowed.

    Example:
        >>> from cdmpp import Workload
        >>> Workload("torchvision:resnet18", batch=8).mode
        'inference'
        >>> Workload("gpt2", mode="training_step", optimizer="sgd", loss="model").optimizer
        'sgd'
    """

    network: Any
    example_inputs: Any = None
    batch: int | None = None
    inputs: Mapping[str, Sequence[int]] | None = None
    precision: Precision | str = PRECISIONS["fp32"]
    mode: Mode = "inference"
    loss: Loss = "cross_entropy"
    target: Any = None
    optimizer: Update | str | None = "adamw"
    sequence: int | None = None
    decoder_sequence: int | None = None
    past: int | None = None
    moe_imbalance: float = 1.0
    attention: Attention = "auto"
    boxes: int | None = None
    recompute: Recompute = "none"

    def __post_init__(self) -> None:
        if not (isinstance(self.network, str | Path) or self.is_torch or self.is_relax):
            raise UsageError(f"a {type(self.network).__name__} is no network: give {KINDS}")
        if isinstance(self.network, str):
            fitting("network", self.network, str)
        fitting("batch", self.batch, int | None, SIZES)
        fitting("sequence", self.sequence, int | None, SIZES)
        fitting("decoder_sequence", self.decoder_sequence, int | None, SIZES)
        if self.decoder_sequence is not None and not str(self.network).startswith("hf:"):
            raise UsageError(f"decoder_sequence is {self.decoder_sequence}: only networks of an hf: name take it")
        fitting("past", self.past, int | None, Limits(0, 2**31))
        if self.past is not None and not (isinstance(self.network, str) and self.network.startswith("hf:")):
            raise UsageError(f"past is {self.past}: only networks of an hf: name, such as hf:gpt2, have such a cache")
        if self.past is not None and self.mode != "inference":
            raise UsageError(f"past is {self.past}: a cache of keys and values is of mode inference, not {self.mode}")
        if self.sequence is not None and (self.path is None or self.path.suffix == ".onnx"):
            raise UsageError(f"sequence is {self.sequence}: only networks of a name, or of file.py:FUNCTION, take it")
        fitting("boxes", self.boxes, int | None, Limits(0, 2**24))
        fitting("moe_imbalance", self.moe_imbalance, float, Limits(1, 2**20, whole=False))
        fitting("inputs", self.inputs, Mapping[str, tuple[int, ...]] | None, SIZES)
        object.__setattr__(self, "precision", precision_of(self.precision))
        fitting("mode", self.mode, Mode)
        fitting("attention", self.attention, Attention)
        fitting("recompute", self.recompute, Recompute)
        if self.recompute != "none" and self.mode != "training_step":
            raise UsageError(f"recompute is {self.recompute}: blocks run again in a training step, not in {self.mode}")
        if not (self.target is None or is_instance(self.target, "torch", "Tensor")):
            raise UsageError(f"target is {shown(self.target)}: expected a tensor, or None")
        check_loss(self.loss)
        update_of(self.optimizer)

    @property
    def update(self) -> Update:
        """Return what ``optimizer`` means."""
        return update_of(self.optimizer)

    @property
    def is_torch(self) -> bool:
        """Return True if the network is a torch module."""
        return is_instance(self.network, "torch.nn", "Module")

    @property
    def is_relax(self) -> bool:
        """Return True if the network is a Relax module."""
        return is_instance(self.network, "tvm", "IRModule")

    @property
    def path(self) -> Path | None:
        """The name of the network would be this file; None for a module."""
        return Path(str(self.network)).expanduser() if isinstance(self.network, str | Path) else None


def is_instance(value: Any, module: str, name: str) -> bool:
    """Return True if ``value`` is of the class ``name`` of a library, which is not imported for that."""
    return module in sys.modules and isinstance(value, getattr(sys.modules[module], name))
