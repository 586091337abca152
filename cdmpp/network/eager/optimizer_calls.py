"""The calls of an update: torch's own optimizer runs on tensors without values, and its operators are written down."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, lru_cache, partial
from typing import Any, NamedTuple

from cdmpp.errors import UnsupportedProgramError
from cdmpp.network.eager.formula import FormulaStep, Recorder
from cdmpp.network.update import NONE, Update
from cdmpp.operators.aten_layout import dtype_of
from cdmpp.operators.aten_traffic import moved, traffic_of
from cdmpp.operators.operator import EagerOperator
from cdmpp.programs.patch import patched

_BLOCK = 256
"""Values of a state of 8 bits that share a scale: ``blocksize`` in ``optim/optimizer.py`` of bitsandbytes 0.50.2."""
_LEAST = 4096
"""Elements of the smallest parameter whose states have 8 bits; those of smaller ones are float32: ``min_8bit_size``
there."""

Sizes = tuple[tuple[tuple[int, ...], str], ...]
"""Shape and type of each parameter."""


class UpdateCalls(NamedTuple):
    """One update runs and holds this."""

    operators: tuple[EagerOperator, ...]
    state_bytes: int
    """Bytes that are kept from step to step."""
    workspace_bytes: int
    """Most bytes held meanwhile, next to parameters, gradients and states."""


@lru_cache(maxsize=64)
def update_calls(update: Update, parameters: Sizes, kind: str, scales_loss: bool = False) -> UpdateCalls:
    """Return the calls of an update.

    Args:
        update: what is updated how.
        parameters: those that have gradients, in the order of the model.
        kind: of the device, ``cpu`` or ``gpu``: torch's default implementation depends on it.
        scales_loss: gradients are scaled back, and checked, before (``GradScaler``).

    Raises:
        UnsupportedProgramError: an operator of the update is of no kind that was measured.
    """
    if update.optimizer == NONE or not parameters:
        return UpdateCalls((), 0, 0)
    return _recorded(update, _groups(update, parameters), kind, scales_loss)


def _groups(update: Update, parameters: Sizes) -> tuple[tuple[str, Sizes], ...]:
    """Parameters by the optimizer that updates them."""
    if update.optimizer != "muon":
        return ((update.optimizer, parameters),)
    matrices = tuple(one for one in parameters if len(one[0]) == 2)
    others = tuple(one for one in parameters if len(one[0]) != 2)
    return tuple(pair for pair in (("muon", matrices), ("adamw", others)) if pair[1])


def _recorded(update: Update, groups: Iterable[tuple[str, Sizes]], kind: str, scales_loss: bool) -> UpdateCalls:
    import torch

    tensors = {name: [_parameter(*one) for one in sizes] for name, sizes in groups}
    every = [one for own in tensors.values() for one in own]
    implementation = update.implementation or ("foreach" if kind == "gpu" else "for-loop")
    optimizers = [_optimizer(name, own, implementation) for name, own in tensors.items()]
    averages = [one.detach().clone() for one in every] if update.ema else []
    states: list[Any] = []
    log = _log()(kind)
    for is_second in (False, True):  # the first one makes the states
        for one in every:
            one.grad = torch.empty_like(one)
        states = [value for optimizer in optimizers for state in optimizer.state.values() for value in state.values()
                  if isinstance(value, torch.Tensor)]  # fmt: skip
        log.known = [*every, *(one.grad for one in every), *states, *averages]
        log.is_on = is_second
        with log, _foreach_known():
            if scales_loss:
                torch._amp_foreach_non_finite_check_and_unscale_(
                    [one.grad for one in every], torch.zeros((), device="meta"), torch.ones((), device="meta")
                )
            if update.clip_norm is not None:
                torch.nn.utils.clip_grad_norm_(every, update.clip_norm, foreach=None)
            for optimizer, own in zip(optimizers, tensors.values(), strict=True):
                if isinstance(optimizer, _EightBit):
                    optimizer.note(log.recorder if is_second else Recorder())
                elif implementation == "fused":
                    _fused(optimizer, own)
                else:
                    optimizer.step()
            if update.ema:
                torch.optim.swa_utils.get_ema_multi_avg_fn()(averages, [one.detach() for one in every], 1)
    if log.unknown:
        raise UnsupportedProgramError(f"the update {update} runs {log.unknown}, which is of no kind that was measured")
    kept = sum(one.nbytes for one in (*states, *averages) if one.is_meta or kind == "cpu")
    operators = tuple(one for step in log.recorder.steps for one in step.operators)
    return UpdateCalls(operators, kept, log.most)


def _parameter(shape: tuple[int, ...], dtype: str) -> Any:
    import torch

    return torch.nn.Parameter(torch.empty(shape, dtype=getattr(torch, dtype), device="meta"))


def _optimizer(name: str, parameters: Sequence[Any], implementation: str) -> Any:
    import torch

    optim = torch.optim
    if name == "muon":
        return optim.Muon(parameters)
    if name == "adamw-8bit":
        return _EightBit(parameters)
    kinds: dict[str, Callable[..., Any]] = {
        "sgd": partial(optim.SGD, lr=0.1, momentum=0.9),
        "adam": optim.Adam,
        "adamw": optim.AdamW,
        "adafactor": optim.Adafactor,
    }
    return kinds[name](parameters, foreach=implementation == "foreach")


class _EightBit:
    """AdamW as bitsandbytes has it: a kernel for each parameter, states of one byte with a scale for each block."""

    def __init__(self, parameters: Sequence[Any]) -> None:
        import torch

        self.parameters = parameters
        self.state = {}
        for one in parameters:
            is_small = one.numel() < _LEAST
            state = torch.empty(one.shape, dtype=torch.float32 if is_small else torch.uint8, device="meta")
            scales = torch.empty(0 if is_small else -(-one.numel() // _BLOCK), device="meta")
            self.state[one] = {name: value.clone() for name, value in
                               (("first", state), ("second", state), ("scales", scales), ("more", scales))}  # fmt: skip

    def note(self, recorder: Recorder) -> None:
        """Write down the kernels: parameter, gradient and states are read, all but the gradient are written."""
        for one in self.parameters:
            states = [*self.state[one].values()]
            both = traffic_of([one, one, one.grad, *states, *states])
            recorder.steps.append(FormulaStep((moved(both, dtype_of(one)),), 0, ()))


def _fused(optimizer: Any, parameters: Sequence[Any]) -> None:
    """Run what ``fused=True`` runs, which asks for tensors on a device; states are those of the optimizer."""
    import torch

    if not optimizer.state:  # the first step makes them
        optimizer.step()
        return
    gradients: Any = [one.grad for one in parameters]
    states = [optimizer.state[one] for one in parameters]
    if isinstance(optimizer, torch.optim.SGD):
        momenta = [state["momentum_buffer"] for state in states]
        sgd: Any = torch._fused_sgd_
        sgd(parameters, gradients, momenta, weight_decay=0.0, momentum=0.9, lr=0.1, dampening=0.0,
                          nesterov=False, maximize=False, is_first_step=False)  # fmt: skip
        return
    run: Any = torch._fused_adamw_ if isinstance(optimizer, torch.optim.AdamW) else torch._fused_adam_
    means, squares = ([state[key] for state in states] for key in ("exp_avg", "exp_avg_sq"))
    steps = [torch.empty((), device="meta") for _ in states]
    torch._foreach_add_(steps, 1)
    run(parameters, gradients, means, squares, [], steps, lr=1e-3, beta1=0.9, beta2=0.999, weight_decay=0.0, eps=1e-8,
        amsgrad=False, maximize=False)  # fmt: skip


def _result(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return what an operator gives; one over lists of tensors without values runs once for equal ones."""
    import torch

    lists = [one for one in args if isinstance(one, list)]
    is_hollow = bool(lists) and all(isinstance(one, torch.Tensor) and one.is_meta for one in lists[0])
    if not function._schema.name.startswith("aten::_foreach_") or not is_hollow:
        return function(*args, **kwargs)
    if function._schema.name.endswith("_"):
        return None
    if any(len(one) != len(lists[0]) or not isinstance(one[0], torch.Tensor) for one in lists):
        return function(*args, **kwargs)
    kinds = [tuple((each.shape, each.stride(), each.dtype) for each in own) for own in zip(*lists, strict=True)]
    firsts = {kind: place for place, kind in reversed([*enumerate(kinds)])}
    given = [[one[place] for place in firsts.values()] if isinstance(one, list) else one for one in args]
    made = dict(zip(firsts, function(*given, **kwargs), strict=True))
    return [torch.empty_like(made[kind]) for kind in kinds]


@contextmanager
def _foreach_known() -> Iterator[None]:
    """Let gradients be clipped as on GPUs and CPUs: torch looks at the device of tensors, which is none here."""
    import torch

    module = torch.nn.utils.clip_grad
    with patched(module, "_has_foreach_support", lambda *_: True), \
            patched(module, "_device_has_foreach_support", lambda *_: True):  # fmt: skip
        yield


@cache
def _log() -> Any:
    """A class of modes that write down operators, and sum the storages that they make and that are still there."""
    import torch
    from torch.utils import _pytree
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils.weak import WeakIdKeyDictionary

    class Log(TorchDispatchMode):
        def __init__(self, kind: str) -> None:
            super().__init__()
            self.kind = kind
            self.known: list[Any] = []
            self.is_on, self.most, self.alive = False, 0, WeakIdKeyDictionary()
            self.recorder, self.unknown = Recorder(), ""

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            is_item = func is torch.ops.aten._local_scalar_dense.default
            result: Any = None  # of a fused kernel, which cannot run without values
            if "_fused_" not in func._schema.name:
                result = 1.0 if is_item and args[0].is_meta else _result(func, args, kwargs or {})
            given = [one for one in _pytree.tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
            is_host = self.kind == "gpu" and not any(one.is_meta for one in given)  # counts of steps
            if not self.is_on or is_item or is_host:
                return result
            self.recorder.add(func, args, kwargs or {}, result)
            if not self.recorder.is_known:
                self.unknown = self.unknown or str(func)
            own = {id(one.untyped_storage()) for one in self.known}
            for one in _pytree.tree_leaves(result):
                if isinstance(one, torch.Tensor) and id(one.untyped_storage()) not in own:
                    self.alive[one.untyped_storage()] = None
            self.most = max(self.most, sum(one.nbytes() for one in self.alive))
            return result

    return Log
