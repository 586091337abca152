"""Calls of ``torch.optim`` that update parameters, as framework operators."""

from __future__ import annotations

from collections.abc import Sequence

from cdmpp.errors import CdmppError
from cdmpp.operators.operator import EagerOperator

_ADAM = ("add", "mul_scalar", "where", "sqrt", "div_scalar", "add_scalar", "where")
UPDATES = {
    "none": (),
    "sgd": ("mul_scalar", "add", "add"),
    "adam": _ADAM,
    "adamw": ("mul_scalar", *_ADAM),
}
"""Operators of torch's own loops over parameters, with momentum; ``where`` reads as many tensors as ``addcmul``."""
STATES = {"none": 0, "sgd": 1, "adam": 2, "adamw": 2}
"""Tensors of a parameter's size that it keeps."""


def update_of(optimizer: str, elements: Sequence[int], dtype: str, together: bool) -> tuple[EagerOperator, ...]:
    """List the calls of one update of parameters of so many ``elements``.

    ``together``: of all parameters at a time, as torch does it on GPUs (``foreach``); else one after the other.
    """
    if optimizer not in UPDATES:
        raise CdmppError(f"optimizer {optimizer!r}: one of {', '.join(UPDATES)}")
    sizes = [sum(elements)] if together and elements else elements
    return tuple(EagerOperator.flat(name, size, dtype) for size in sizes for name in UPDATES[optimizer])


def workspace_elements(optimizer: str, elements: Sequence[int], together: bool) -> int:
    """Count the most elements that such an update holds next to parameters, gradients and states.

    Adam's denominator: of all parameters where these are updated together, in place after its first operator; else of
    one parameter, twice.
    """
    if not elements or "sqrt" not in UPDATES[optimizer]:
        return 0
    return sum(elements) if together else 2 * max(elements)
