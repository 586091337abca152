"""Engine: what the engine adds to layers, from runs whose layers only let time pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import mean
from typing import Any

from cdmpp.collectives.interconnect import AlphaBeta
from cdmpp.partition.devices import HostCosts

_PASSES = 2
_STAGES = 2


@dataclass(frozen=True)
class Engine:
    """What stages take beside their layers."""

    link: AlphaBeta
    """One end of the messages between two processes, of which the receiver waits for each."""
    host: HostCosts


FREE = Engine(AlphaBeta(0.0, 0.0), HostCosts())


def engine_of(found: Mapping[str, Mapping[str, Any]]) -> Engine:
    """Return what the runs of ``calibration`` say, each number from the run that shows it alone.

    One process: what a step takes beyond the layers is of its passes and its update, told apart by steps of one and of
    several micro-batches. Delayed: no stage waits, each sends one message a micro-batch and receives one; what it takes
    for sending is what it is measured to take in turns, the rest is for receiving. In turns: a stage computes only
    while its neighbour waits, so that each message adds all that it takes.
    """
    one, four = _extra(found, "alone")[0], _extra(found, "alone by four")[0]
    many = _micro_batches(found, "alone by four")
    pass_s = max(0.0, (four - one) / (_PASSES * (many - 1)))
    update_s = max(0.0, one - _PASSES * pass_s)
    turns, messages = _extra(found, "in turns"), _PASSES * _micro_batches(found, "in turns")
    delayed = [extra - update_s - _PASSES * pass_s for extra in _extra(found, "delayed").values()]
    sends = [stage["send"] / run["micro_batches"] for run in _runs(found, "in turns") for stage in run["seconds"]]
    send_s = mean(sends)
    receive_s = max(0.0, mean(delayed) - send_s)
    each = {size: (extra - update_s) / messages - _STAGES * pass_s for size, extra in turns.items()}
    (small, small_s), (large, large_s) = sorted(each.items())
    beta_s = max(0.0, (large_s - small_s) / (large - small))
    alpha_s = max(0.0, small_s - beta_s * small - receive_s)
    return Engine(AlphaBeta(alpha_s, beta_s).end, HostCosts(pass_s, send_s, receive_s, update_s))


def spinning(run: Mapping[str, Any]) -> dict[str, Any]:
    """Return the layers of a run of ``calibration`` as a profile, to predict the run itself."""
    stages = len(run["seconds"])
    own = {"forward_s": run["forward_s"], "backward_s": run["backward_s"], "output_bytes": run["bytes"],
           "saved_bytes": 0, "parameter_bytes": 4}  # fmt: skip
    return {name: [value] * stages for name, value in own.items()} | {"input_bytes": run["bytes"], "update_s": 0.0}


def _runs(found: Mapping[str, Mapping[str, Any]], name: str) -> list[Mapping[str, Any]]:
    return [run for key, run in found.items() if key.startswith(f"engine/{name}/")]


def _micro_batches(found: Mapping[str, Mapping[str, Any]], name: str) -> int:
    return int(_runs(found, name)[0]["micro_batches"])


def _extra(found: Mapping[str, Mapping[str, Any]], name: str) -> dict[int, float]:
    """Bytes of a message, 0 where there are none -> seconds of a step beyond those of the layers."""
    extra = {}
    for run in _runs(found, name):
        own_s = run["micro_batches"] * (run["forward_s"] + run["backward_s"])
        turns = _STAGES if name == "in turns" else 1
        alone = len(run["seconds"]) == 1
        extra[0 if alone else run["bytes"]] = run["step_s"] - turns * own_s
    return extra
