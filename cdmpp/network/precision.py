"""Precision: the types in which a network keeps its weights and computes, as users of PyTorch set them."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Any, Literal

from cdmpp.errors import UsageError
from cdmpp.platform.limits import shown

Scaling = Literal["tensorwise", "rowwise", "current", "blocks"]


@dataclass(frozen=True)
class Precision:
    """It says of which types weights, gradients and products are.

    Gradients and the states of an optimizer have the type of the weights, where nothing else is said.
    """

    name: str
    """A key of ``PRECISIONS``."""
    weights: str = "float32"
    """Type of parameters, floating buffers and inputs, such as ``bfloat16``."""
    autocast: str = ""
    """Type in which ``torch.autocast`` runs the operators of its list, forward pass and loss inside; empty: none."""
    tf32: bool = False
    """True if products of float32 run on matrix units that read 19 of their bits."""
    scales_loss: bool = False
    """True if the loss is scaled, and gradients are checked and scaled back before the update (``GradScaler``)."""
    float8: Scaling | None = None
    """Linear layers multiply in float8 with a scale for each tensor, or for each row, as torchao does it. ``current``
    and ``blocks``: as Transformer Engine does it, with a scale for each tensor, or for 32 elements each (MXFP8);
    products of experts are in float8 too, and each cast is one kernel."""
    sharded: str = ""
    """Type of the parts of parameters that ranks of FSDP keep, with their gradients and states; they are gathered in
    the type of the weights (``MixedPrecisionPolicy.param_dtype``). Empty: that of the weights."""
    reduced: str = ""
    """Type in which FSDP reduces gradients (``MixedPrecisionPolicy.reduce_dtype``); empty: that of the weights."""

    def __str__(self) -> str:
        return self.name

    @property
    def products(self) -> str:
        """Type in which products of weights are computed."""
        return "float8" if self.float8 else "tf32" if self.tf32 else self.autocast or self.weights

    def sharded_as(self, dtype: str) -> str:
        """Return the type that the kept part of a parameter has, of a type in the model such as ``bfloat16``."""
        return self.sharded if self.sharded and dtype == self.weights else dtype

    def reduced_as(self, dtype: str) -> str:
        """Return the type in which the gradient of a parameter of a type is reduced."""
        return self.reduced if self.reduced and dtype == self.weights else dtype

    @property
    def torch_policy(self) -> str:
        """Return the ``mp_policy`` of ``fully_shard`` as Python, of a model in the type that ranks keep; else empty."""
        if not self.sharded:
            return ""
        reduced = f", reduce_dtype=torch.{self.reduced}" if self.reduced else ""
        return f"MixedPrecisionPolicy(param_dtype=torch.{self.weights}{reduced})"

    @property
    def compiled_dtype(self) -> str:
        """Type of a compiled program; ``UsageError``: TVM's programs are made in float32, or mixed with float16.

        Only ``fp16`` is such a mix: products in float16, the casts fused into what surrounds them.
        """
        if self.name not in ("fp32", "fp16"):
            raise UsageError(f"precision {self.name} is of --runtime torch: TVM's programs have fp32 or fp16")
        return self.weights


PRECISIONS = {
    one.name: one
    for one in (
        Precision("fp32"),
        Precision("tf32", tf32=True),
        Precision("bf16", "bfloat16"),
        Precision("fp16", "float16"),
        Precision("bf16-autocast", autocast="bfloat16"),
        Precision("fp16-autocast", autocast="float16", scales_loss=True),
        Precision("float8-tensorwise", "bfloat16", float8="tensorwise"),
        Precision("float8-rowwise", "bfloat16", float8="rowwise"),
        Precision("float8-current", "bfloat16", float8="current"),
        Precision("mxfp8", "bfloat16", float8="blocks"),
        Precision("bf16-fsdp", "bfloat16", sharded="float32", reduced="float32"),
        Precision("bf16-fsdp-pure", "bfloat16", sharded="float32"),
        Precision("float8-tensorwise-fsdp", "bfloat16", float8="tensorwise", sharded="float32", reduced="float32"),
        Precision("float8-rowwise-fsdp", "bfloat16", float8="rowwise", sharded="float32", reduced="float32"),
    )
}
"""Name -> what it means."""
_ALIASES = {
    **dict.fromkeys(("float32", "32", "32-true", "fp32-true"), "fp32"),
    **dict.fromkeys(("bfloat16", "bf16-true"), "bf16"),
    **dict.fromkeys(("float16", "half", "16-true", "fp16-true"), "fp16"),
    **dict.fromkeys(("bf16-mixed", "bf16-amp"), "bf16-autocast"),
    **dict.fromkeys(("16", "16-mixed", "fp16-mixed", "fp16-amp"), "fp16-autocast"),
    **dict.fromkeys(("float8", "fp8"), "float8-tensorwise"),
}
"""Words of Lightning and types of torch -> names. Lightning's ``16`` is mixed; ``bf16`` is a name here, for weights."""


def precision_of(given: Any) -> Precision:
    """Return the precision that a word means; ``UsageError`` names the words where it means none."""
    if isinstance(given, Precision):
        return given
    word = str(given).removeprefix("torch.").lower() if isinstance(given, str | int) else ""
    if (found := PRECISIONS.get(_ALIASES.get(word, word))) is not None and not isinstance(given, bool):
        return found
    near = difflib.get_close_matches(word, [*PRECISIONS, *_ALIASES], n=1)
    hint = f"; did you mean {near[0]}?" if near else "."
    raise UsageError(
        f"precision is {shown(given)}{hint} Expected one of {', '.join(PRECISIONS)}, or a word of Lightning such as "
        "bf16-mixed"
    )


def of_entry(precision: Precision | str, dtype: str | None) -> Precision:
    """Return the precision of a network of the zoo whose entry names a type, which goes first."""
    return precision_of(precision if dtype is None else dtype)
