"""What share of its type's peak each measured product reaches, by device: none may be faster than the model's bound.

python -m benchmarks.library_peaks DATA: DATA holds data sets of library operators, as ``datasets`` does.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from cdmpp import devices
from cdmpp.data.batching import ProgramTensors, ordered_batches
from cdmpp.data.sources import devices_with_data, load_devices
from cdmpp.model.eager_inputs import EagerQuantities


def main(data: str) -> None:
    """Print a line a GPU and type."""
    names = [name for name in devices_with_data([Path(data)], "library") if devices.get(name).kind == "gpu"]
    records = load_devices(sorted(names), (Path(data),), features="library")
    sheets = {name: devices.get(name) for name in names}
    tensors = ProgramTensors.build(records.asts, sheets, records.devices.tolist(), records.latency_s)
    least_s, halves = np.empty(len(records)), np.zeros(len(records), bool)
    for batch in ordered_batches(tensors, np.arange(len(records))):
        quantities, rows = EagerQuantities(batch), batch.rows.numpy()
        least_s[rows], halves[rows] = quantities.least_s().numpy(), quantities.halves().numpy()
    products, share = least_s > 2 * least_s.min(), least_s / records.latency_s
    print("| device | type | products | faster than peak | greatest share |", "|---|---|---:|---:|---:|", sep="\n")
    for name in sorted(names):
        for of_type, is_half in (("float32", False), ("halves", True)):
            mine = share[products & (records.devices == name) & (halves == is_half)]
            if len(mine):
                print(f"| {name} | {of_type} | {len(mine)} | {(mine > 1).sum()} | {mine.max():.3f} |")
    print(f"| all | | {products.sum()} | {(share[products] > 1).sum()} | {share[products].max():.3f} |")


if __name__ == "__main__":
    main(*sys.argv[1:])
