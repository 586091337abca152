"""Experts of transformers while a network is exported: as they run where nobody exports, with a given imbalance.

How many tokens go to which expert is a matter of values. They are spread evenly, or so that the busiest expert has
``imbalance`` times as many as the mean and the others share the rest.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from cdmpp.errors import UsageError
from cdmpp.programs.patch import patched

IMBALANCE = "cdmpp_imbalance"
"""Key in the ``meta`` of a node that multiplies by matrices of experts: tokens of the busiest one over the mean."""
COUNT_BYTES = 8
"""Bytes of the number of tokens that one rank has for one expert."""


def expert_rows(rows: int, experts: int, imbalance: float) -> list[int]:
    """Share ``rows`` out among ``experts``, the busiest first; those of an expert without any are 0.

    ``UsageError``: the busiest would have more than all.
    """
    if imbalance > experts:
        raise UsageError(
            f"moe_imbalance is {imbalance:g}: the busiest of {experts} experts has at most {experts} times the mean"
        )
    busiest = min(rows, max(-(-rows // experts), round(rows / experts * imbalance)))
    rest, others = rows - busiest, max(experts - 1, 1)
    return [busiest, *(rest // others + (place < rest % others) for place in range(experts - 1))]


@contextmanager
def experts_as_eager(imbalance: float, decided: set[str]) -> Iterator[None]:
    """Go through experts one by one where a model of transformers does; how many there are to visit is a value.

    Where it did, ``imbalance`` is among ``decided``.
    """
    moe = sys.modules.get("transformers.integrations.moe")
    with ExitStack() as stack:
        if (interface := getattr(moe, "ExpertsInterface", None)) is not None:
            stack.enter_context(
                patched(interface, "get_interface", _finding(interface.get_interface, imbalance, decided))
            )
        yield


def _finding(original: Callable[..., Any], imbalance: float, decided: set[str]) -> Callable[..., Any]:
    def get_interface(this: Any, implementation: str, default: Callable[..., Any]) -> Any:
        found = original(this, implementation, default)
        return _one_by_one(imbalance, decided) if found is default and implementation == "eager" else found

    return get_interface


def _one_by_one(imbalance: float, decided: set[str]) -> Callable[..., Any]:
    """Make the forward pass of experts that run one after the other, each on the tokens that it is given.

    The tokens of an expert are found by a scan over a mask of all; ``nonzero`` is one, of a size that values decide.
    """

    def forward(this: Any, hidden: Any, experts: Any, weights: Any) -> Any:
        import torch

        decided.add("imbalance")
        final, places, scores = torch.zeros_like(hidden), experts.reshape(-1), weights.reshape(-1)
        mask = torch.nn.functional.one_hot(experts, num_classes=this.num_experts + 1).permute(2, 1, 0)
        for expert, rows in enumerate(expert_rows(places.numel(), this.num_experts, imbalance)):
            if not rows:
                continue
            tokens = mask[expert].reshape(-1).cumsum(0)[:rows]
            found = _linear(this, hidden[tokens], "gate_up_proj" if this.has_gate else "up_proj", expert)
            found = this._apply_gate(found) if this.has_gate else this.act_fn(found)
            found = _linear(this, found, "down_proj", expert) * scores[tokens].unsqueeze(-1)
            final.index_add_(0, tokens, found.to(final.dtype))
        return final

    return forward


def _linear(this: Any, x: Any, name: str, expert: int) -> Any:
    import torch

    weight, bias = getattr(this, name)[expert], getattr(this, f"{name}_bias")[expert] if this.has_bias else None
    return torch.nn.functional.linear(x, weight.t() if this.is_transposed else weight, bias)
