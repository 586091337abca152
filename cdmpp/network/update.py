"""Update: how an optimizer changes the parameters of a training step, and what surrounds it."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Any, Literal

from cdmpp.errors import UsageError
from cdmpp.platform.limits import numbers, shown

OPTIMIZERS = ("sgd", "adam", "adamw", "adafactor", "muon", "adamw-8bit")
"""Optimizers of torch, SGD with a momentum of 0.9; Muon updates matrices and AdamW the rest; ``adamw-8bit`` is that of
bitsandbytes."""
NONE = "none"
Implementation = Literal["foreach", "fused", "for-loop"]
_IMPLEMENTATIONS: tuple[Implementation, ...] = ("foreach", "fused", "for-loop")
_FUSED = ("sgd", "adam", "adamw")
"""Optimizers that torch has one kernel for."""
_COMPILED = ("sgd", "adam", "adamw")
"""Optimizers that TVM's programs have."""


@dataclass(frozen=True)
class Update:
    """It is one update of all parameters.

    Raises:
        UsageError: no such optimizer, or an implementation that it does not have.
    """

    optimizer: str = "adamw"
    """One of ``OPTIMIZERS``, or ``none``: parameters stay as they are."""
    implementation: Implementation | None = None
    """``foreach``: one operator over all parameters; ``fused``: one kernel; ``for-loop``: one parameter after the
    other. None: torch's default, ``foreach`` on GPUs and ``for-loop`` on CPUs."""
    clip_norm: float | None = None
    """Gradients are clipped to this norm before (``clip_grad_norm_``); its value changes no time."""
    ema: bool = False
    """A moving average of the weights is kept and updated after."""

    def __post_init__(self) -> None:
        if self.optimizer not in (*OPTIMIZERS, NONE):
            near = difflib.get_close_matches(str(self.optimizer), OPTIMIZERS, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise UsageError(
                f"optimizer {shown(self.optimizer)} is unknown{hint}: use {', '.join(OPTIMIZERS)}, or none for no "
                "update; -fused, -foreach or -for-loop behind it names torch's implementation"
            )
        if self.implementation not in (None, *_IMPLEMENTATIONS):
            raise UsageError(f"implementation {shown(self.implementation)}: one of {', '.join(_IMPLEMENTATIONS)}")
        if self.implementation == "fused" and self.optimizer not in _FUSED:
            raise UsageError(f"{self.optimizer}-fused: torch has fused kernels of {', '.join(_FUSED)}")
        if self.implementation == "foreach" and self.optimizer == "muon":
            raise UsageError("muon-foreach: torch updates the matrices of Muon one after the other")
        if self.implementation and self.optimizer in (NONE, "adamw-8bit"):
            raise UsageError(f"{self.optimizer} has one implementation: leave -{self.implementation} out")
        if self.optimizer == NONE and (self.clip_norm is not None or self.ema):
            raise UsageError("optimizer none has no update: leave clip_norm and ema out, or name an optimizer")
        if self.clip_norm is not None:
            numbers(0, 1e12, above=True).fitting("clip_norm", self.clip_norm)

    def __str__(self) -> str:
        """Return the word that ``update_of`` reads, and what goes with it."""
        more = (" clipped",) if self.clip_norm is not None else ()
        return "".join((self.word, *more, *((" ema",) if self.ema else ())))

    @property
    def word(self) -> str:
        """The optimizer and its implementation, such as ``adamw-fused``."""
        return f"{self.optimizer}-{self.implementation}" if self.implementation else self.optimizer

    @property
    def compiled_optimizer(self) -> str:
        """Name of the optimizer of TVM's programs; ``UsageError`` where they have none such."""
        if self.optimizer not in (*_COMPILED, NONE) or self.implementation or self.clip_norm or self.ema:
            raise UsageError(
                f"{self} is of --runtime torch: TVM's programs have {', '.join(_COMPILED)}, or none, without clipping "
                "and averages"
            )
        return self.optimizer


def update_of(given: Any) -> Update:
    """Return the update that a word such as ``adamw-fused`` means, or None; ``UsageError`` where it means none."""
    if isinstance(given, Update):
        return given
    if given is None:
        return Update(NONE)
    word = given if isinstance(given, str) else shown(given)
    for one in _IMPLEMENTATIONS:
        if word.endswith(f"-{one}"):
            return Update(word.removesuffix(f"-{one}"), one)
    return Update(word)
