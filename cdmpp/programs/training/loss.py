"""Loss: what makes one number of a network's output, as a module around the network."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from cdmpp.errors import CdmppError, UsageError
from cdmpp.platform.allocation import within_free_memory
from cdmpp.programs.as_exported import as_exported
from cdmpp.programs.refusal import first_line, place_of

LOSSES = ("cross_entropy", "mse", "model")
"""Names of losses: of classes along the last axis (the second of images), the mean square, the output's ``loss``."""
Loss = str | Callable[..., Any]
"""One of ``LOSSES``, or ``(output[, target])`` -> a tensor of one number."""


def check_loss(loss: Loss) -> None:
    """Raise ``UsageError`` for a name that is not among ``LOSSES``, or for what cannot be called."""
    if loss not in LOSSES if isinstance(loss, str) else not callable(loss):
        raise UsageError(f"loss {loss!r} is unknown: use {', '.join(LOSSES)}, or a function of output and target")


@within_free_memory("one run of the network on its example inputs")
def with_loss(model: Any, example: tuple[Any, ...], loss: Loss, target: Any = None) -> tuple[Any, tuple[Any, ...]]:
    """Return a module that returns ``(loss,)``, and what it is called with.

    Args:
        model: a torch module.
        example: ``model(*example)`` runs.
        loss: how the first tensor of its output becomes a number.
        target: what the output should be; drawn with seed 0 where it is left out and the loss needs one.

    Raises:
        CdmppError: a model that does not run, an output that the loss cannot take, or a loss that is
            not one number.
    """
    import torch
    from torch._guards import detect_fake_mode

    mode = detect_fake_mode([*model.parameters(), *example])
    without_values = contextlib.nullcontext() if mode is None else mode
    try:
        with torch.no_grad(), contextlib.nullcontext() if mode is None else as_exported(mode):
            output = model(*example)
    except CdmppError:
        raise
    except Exception as error:
        where = f" at {place}" if (place := place_of(error)) else ""
        raise CdmppError(f"the model cannot be run on its example inputs{where}: {first_line(error)}") from error
    if loss == "model":
        return _of_model(model), example
    first = first_tensor(output)
    targets: tuple[Any, ...]
    function = _FUNCTIONS[loss] if isinstance(loss, str) else loss
    with without_values:
        if isinstance(loss, str):
            targets = ((_target(loss, first) if target is None else target).to(first.device),)
        else:
            targets = () if target is None else (target,)
        _check(function, first, targets)
    module = _with(model, function, len(example))
    return module, (*example, *targets)


def first_tensor(output: Any) -> Any:
    """Return the logits of an output if it names them, else its first tensor. ``CdmppError``: there is none."""
    import torch

    if isinstance(output, torch.Tensor):
        return output
    if (logits := getattr(output, "logits", None)) is not None:
        return logits
    values = list(output.values()) if isinstance(output, Mapping) else output
    if isinstance(values, tuple | list) and values:
        return first_tensor(values[0])
    raise CdmppError(f"the model returned a {type(output).__name__}: return a tensor, or give loss='model'")


def _cross_entropy(output: Any, target: Any) -> Any:
    import torch

    classes = 1 if output.dim() == 4 else output.dim() - 1
    rows = output.movedim(classes, -1).flatten(0, -2) if output.dim() != 2 else output
    return torch.nn.functional.cross_entropy(rows, target.flatten())


def _mse(output: Any, target: Any) -> Any:
    import torch

    return torch.nn.functional.mse_loss(output, target)


_FUNCTIONS: dict[str, Callable[..., Any]] = {"cross_entropy": _cross_entropy, "mse": _mse}


def _target(loss: str, output: Any) -> Any:
    import torch

    random = torch.Generator().manual_seed(0)
    if loss == "mse":
        return torch.randn(output.shape, generator=random)
    classes = 1 if output.dim() == 4 else output.dim() - 1
    if output.dim() < 2 or not output.is_floating_point():
        raise CdmppError(
            f"loss 'cross_entropy' needs scores by class, but the output has the shape {tuple(output.shape)} and the "
            f"type {output.dtype}: use mse, or a function"
        )
    shape = [size for axis, size in enumerate(output.shape) if axis != classes]
    return torch.randint(0, output.shape[classes], shape, generator=random)


def _check(function: Callable[..., Any], output: Any, targets: tuple[Any, ...]) -> None:
    import torch

    try:
        with contextlib.suppress(ValueError):  # functions of C++, such as torch.sum, do not say what they take
            inspect.signature(function).bind(output, *targets)
    except TypeError as error:
        raise CdmppError(f"the loss is called with output{' and target' if targets else ''}, but: {error}") from error
    value = function(output, *targets)
    if not isinstance(value, torch.Tensor) or value.numel() != 1:
        raise CdmppError("the loss must return a tensor of one number: take its mean or sum")


def _with(model: Any, function: Callable[..., Any], inputs: int) -> Any:
    import torch

    class WithLoss(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, *values: Any) -> tuple[Any]:
            return (function(first_tensor(self.inner(*values[:inputs])), *values[inputs:]),)

    return WithLoss()


def _of_model(model: Any) -> Any:
    import torch

    class ModelLoss(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, *values: Any) -> tuple[Any]:
            output = self.inner(*values)
            found = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
            if found is None:
                raise CdmppError("loss='model': the model's output has no loss: give labels among its example inputs")
            return (found,)

    return ModelLoss()
