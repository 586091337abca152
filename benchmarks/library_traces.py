"""Calls that NeuSight timed one by one along its networks, beside what a model of framework operators answers.

python -m benchmarks.library_traces CLONE MODEL [DEVICE ...]: CLONE is ``scripts/asplos`` of a clone of NeuSight. They
are no rows of its operators' files, and none was trained on. The last column of the table is what many of them are
for: calls whose tensors fit in the second-level cache, which of an L4 no training row does.
"""

from __future__ import annotations

import ast
import csv
import math
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import cdmpp
from benchmarks.library_network_labels import FOLDERS
from cdmpp import devices
from cdmpp.operators.operator import EagerOperator

_NORMS = ("LayerNorm", "ln_1", "ln_2", "ln_f", "layer_norm", "layer_norm_1", "final_layer_norm")
_ONE = {"tanh": "tanh", "relu": "relu", "activation_fn": "relu", "intermediate_act_fn": "gelu"}
_TWO = {"add": "add", "mul": "mul", "truediv": "div"}
_SMALL_S, _LARGE_BYTES = 50e-6, 8e6


class TracedCall(NamedTuple):
    """A call that was timed, and by which network."""

    operator: EagerOperator
    measured_s: float
    network: str


def traced_calls(folder: Path) -> Iterator[TracedCall]:
    """Yield the calls of all traces of a device, those of whose kind a model is asked."""
    for path in sorted(folder.glob("*.csv")):
        with path.open(newline="") as file:
            for row in csv.DictReader(file):
                seconds = 1e-3 * float(row["fw_latency"] or 0.0)
                operator = _operator(row) if seconds else None
                if operator is not None:
                    yield TracedCall(operator, seconds, path.stem)


def _operator(row: dict[str, Any]) -> EagerOperator | None:
    inputs = [shape for shape in ast.literal_eval(row["input_shapes"]) if isinstance(shape, list)]
    out = [int(n) for n in ast.literal_eval(row["output_shape"])]
    name, last = row["target"], row["target"].split(".")[-1]
    if not inputs or len(out) < 2 or row["dtype"] not in ("torch.float32", ""):
        return None
    matrix = {"rows": math.prod(out[:-1]), "cols": out[-1]}
    if "softmax" in name and inputs[0] == out:
        return EagerOperator("softmax", matrix)
    if last in _NORMS and inputs[0] == out:
        return EagerOperator("layer_norm", matrix)
    if (one := _ONE.get(last) or _ONE.get(name.split(" ")[-1])) and inputs == [out]:
        return EagerOperator(one, matrix)
    for key, two in _TWO.items():
        if name == f"<built-in function {key}>":
            same = [shape for shape in inputs if shape == out]
            if len(inputs) == len(same) == 2:
                return EagerOperator(two, matrix)
            if len(same) == 1 and all(math.prod(shape) == 1 for shape in inputs if shape != out):
                return EagerOperator(f"{two}_scalar", matrix)
    if "matmul" in name and len(inputs) == 2 and len(out) == 4:
        (*batch, rows, inner), cols = inputs[0], out[-1]
        return EagerOperator("bmm", {"batch": math.prod(batch), "rows": rows, "inner": inner, "cols": cols})
    if row["op"] == "call_module" and last in ("dense", "fc1", "fc2", "q_proj", "wi", "wo", "lm_head", "decoder"):
        size = {"rows": math.prod(inputs[0][:-1]), "inner": inputs[0][-1], "cols": out[-1]}
        return EagerOperator("linear", {**size, "bias": int(last not in ("wi", "wo", "lm_head"))})
    return None


def errors(calls: Sequence[TracedCall], predictor: Any, device: str) -> np.ndarray:
    """(n, 3) predicted over measured, and the ends of the 80 % interval over measured."""
    answer = predictor.predict([call.operator for call in calls], device=device)
    measured = np.array([call.measured_s for call in calls])
    low, high = answer.intervals[0.8]
    return np.stack([answer.latency_s / measured, low / measured, high / measured], axis=1)


def main() -> None:
    """Print a line a device, a class and a kind of call."""
    clone, model, *wanted = sys.argv[1:]
    predictor = cdmpp.load_model(model)
    print("device class which: calls, MAPE %, median predicted over measured, 80 % intervals that hold %")
    for folder, device in FOLDERS.items():
        if (wanted and device not in wanted) or not (calls := list(traced_calls(Path(clone) / "label" / folder))):
            continue
        found, cache_bytes = errors(calls, predictor, device), 1024 * (devices.get(device).spec["l2_kb"] or 0)
        groups: dict[tuple[str, str], list[int]] = defaultdict(list)
        for place, call in enumerate(calls):
            kind = call.operator.kind.op_class
            fits = _LARGE_BYTES <= call.operator.io_bytes < cache_bytes
            which = "under 50 us" if call.measured_s < _SMALL_S else "larger"
            groups[kind, f"8 MB to the cache, {which}" if fits else which].append(place)
        for (kind, which), places in sorted(groups.items()):
            ratio, low, high = found[places].T
            held = 100 * np.mean((low <= 1) & (high >= 1))
            print(f"{device} {kind} {which}: {len(places)}, {100 * np.abs(ratio - 1).mean():.1f}, "
                  f"{np.median(ratio):.2f}, {held:.0f}")  # fmt: skip


if __name__ == "__main__":
    main()
