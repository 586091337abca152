"""Seconds of each call of an eager network on a device, and those in which its host dispatches it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from textwrap import shorten

from cdmpp.devices import Device
from cdmpp.network.compose import bound_of
from cdmpp.network.eager.attention_price import attention_prices
from cdmpp.network.eager.device_precision import has_units
from cdmpp.network.eager.eager_network import EagerNetwork
from cdmpp.network.eager.host import DEFAULT, Host, dispatches_s
from cdmpp.network.eager.single_price import Price, as_stand_in, learned_prices, times_as_long
from cdmpp.network.prediction import KernelPrediction
from cdmpp.network.runtime import PricedNetwork
from cdmpp.operators.measured_form import measured_form
from cdmpp.operators.operator import ATTENTION, EagerOperator
from cdmpp.operators.training_form import training_form
from cdmpp.predict.predictor import Predictor


def prices_of(predictor: Predictor, operators: Sequence[EagerOperator], device: Device) -> list[Price]:
    """Price each operator as a call in a network: those that the model has learned in one batched prediction.

    Fused attention, which nobody measured, is priced by ``attention_prices``.
    """

    def learned(some: Sequence[EagerOperator], at: Device) -> list[Price]:
        training = [training_form(one, at.kind) for one in some]
        forms = [measured_form(one, has_units(at, "bfloat16") is not False) for one, _ in training]
        prices = learned_prices(predictor, forms, at) if some else []
        alike = zip(some, forms, (times for _, times in training), prices, strict=True)
        return [price if one == form else as_stand_in(times_as_long(price, times)) for one, form, times, price in alike]

    fused = [operator for operator in operators if operator.kind.family == ATTENTION]
    others = [operator for operator in operators if operator.kind.family != ATTENTION]
    found = dict(zip(others, learned(others, device), strict=True))
    found |= zip(fused, attention_prices(fused, device, learned) if fused else [], strict=True)
    return [found[operator] for operator in operators]


def priced_by(
    predictor: Predictor,
    model: str,
    read: EagerNetwork,
    device: Device,
    known: Mapping[EagerOperator, Price] | None = None,
    host: Host | None = DEFAULT,
) -> PricedNetwork:
    """Price the calls of a network as ``predictor``, called ``model``, says; see ``prices_of``.

    ``known``: the prices of all its operators, where they were asked for before; ``host``: as of ``EagerRuntime``.
    """
    graph, own = read.graph, list(read.operators.values())
    found = prices_of(predictor, own, device) if known is None else [known[one] for one in own]
    prices = dict(zip(read.operators, found, strict=True))
    counts = Counter((call.task_id, read.stand_in_for(place)) for place, call in enumerate(graph.calls))
    kernels = tuple(_kernel(read, prices, device, *one) for one in counts.items())
    named = "" if read.precision == "fp32" else f"{read.precision}, "
    return PricedNetwork(
        read=read,
        device=device,
        model=model,
        schedule=f"of PyTorch's libraries, {named}{'training' if read.trains else 'inference'}",
        kernels=kernels,
        call_s=[prices[call.task_id].latency_s for call in graph.calls],
        dispatch_s=dispatches_s(
            graph.calls,
            [prices[call.task_id] for call in graph.calls],
            None if device.kind == "cpu" else host,
            read.trains,
            read.step,
        ),
        by_datasheet=device.name not in predictor.trained_on,
        warnings=_warnings(read, kernels, device, predictor),
    )


def _kernel(
    read: EagerNetwork, prices: Mapping[str, Price], device: Device, of: tuple[str, str], count: int
) -> KernelPrediction:
    """Sum up the calls of one operator that stand for the same one, or for none."""
    key, stands_for = of
    operator, price = read.operators[key], as_stand_in(prices[key]) if stands_for else prices[key]
    return KernelPrediction(
        task_id=key,
        name=f"{operator}",
        op_class=operator.kind.op_class,
        count=count,
        latency_s=price.latency_s,
        cold_s=0.0,
        intervals=price.intervals,
        flops=operator.flops,
        io_bytes=operator.io_bytes,
        bound=bound_of(operator.flops, operator.io_bytes, device),
        candidates=1,
        flags=price.flags,
        stands_for=stands_for,
    )


def _warnings(
    read: EagerNetwork, kernels: Sequence[KernelPrediction], device: Device, predictor: Predictor
) -> tuple[str, ...]:
    found = []
    if device.name not in predictor.trained_on:
        found.append(f"the model never saw {device.name}, so it goes by its datasheet alone")
    if read.trains and read.step is None:
        found.append(
            "forward and backward pass only, gradients added to those that are there: the optimizer's step is left out"
        )
    total = sum(kernel.total_s for kernel in kernels) or 1.0
    by_operator: dict[str, float] = {}
    for kernel in kernels:
        if kernel.stands_for:
            by_operator[kernel.stands_for] = by_operator.get(kernel.stands_for, 0.0) + kernel.total_s / total
    for name, share in by_operator.items():
        as_what = ", ".join(kernel.name for kernel in kernels if kernel.stands_for == name)
        if share > 0.01:
            found.append(f"{name}, {share:.0%} of the time, is answered as {shorten(as_what, 120, placeholder=' ...')}")
    return tuple(found)
