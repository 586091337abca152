"""A shipped model of framework operators learns in which other state of power a board was seen: ``power_states``.

``python -m benchmarks.publish.power_state device=l4 clone=NeuSight/scripts/asplos`` compares linear products that
NeuSight timed one by one along its Switch Transformer, which is none of the networks that models are judged by here,
with the answers for calls timed alone. A median share below 1 becomes part of the model.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.library_network_labels import FOLDERS
from benchmarks.library_traces import traced_calls
from benchmarks.publish.command_line import run
from cdmpp.errors import DataError
from cdmpp.predict.catalogue import SHIPPED
from cdmpp.predict.model_folder import load
from cdmpp.predict.predictor import Predictor

_NETWORK, _LEAST_S = "switch", 1e-3
"""Beginning of the network's name; shorter products are decided by more than the clock."""


def share_of(predictor: Predictor, device: str, clone: Path) -> tuple[float, int]:
    """Return the median of measured over predicted seconds, and of how many calls. ``DataError``: there is none."""
    folder = next((name for name, other in FOLDERS.items() if other == device), "")
    calls = [
        call
        for call in traced_calls(clone / "label" / folder)
        if call.network.startswith(_NETWORK) and call.operator.name == "linear" and call.measured_s >= _LEAST_S
    ]
    if not calls:
        raise DataError(f"{clone} has no linear product of a Switch Transformer on {device}")
    predicted = predictor.predict([call.operator for call in calls], device=device).latency_s
    return float(np.median(np.array([call.measured_s for call in calls]) / predicted)), len(calls)


def main(model: str, device: str, clone: str) -> None:
    """The shipped ``model`` knows the state afterwards, and its card says of what."""
    predictor = load(SHIPPED / model)
    share, count = share_of(predictor, device, Path(clone))
    predictor.power_states[device] = min(1.0, share)
    said = f"{count} linear product(s) of NeuSight's Switch Transformer took {share:.3f} of the answers"
    predictor.card["power_states"] = {**predictor.card.get("power_states", {}), device: said}
    predictor.save(SHIPPED / model, half=True)
    print(f"{device}: {said}")


if __name__ == "__main__":
    run(main, model="torch-gpus", device="???", clone="???")
