"""What NeuSight's files add to convolutions the later they stand: ``python -m benchmarks.convolution_labels FILE``.

FILE: ``ops.parquet``. Prints, as Markdown, the median label of each device's small convolutions (under 1 GFLOP) by
place in its file, as given and without what ``cdmpp.data.importers.neusight_convolutions`` takes off.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

from benchmarks.publish.markdown import table
from cdmpp.data.importers.neusight_convolutions import time_added
from cdmpp.operators.operator import EagerOperator
from cdmpp.platform.files import read_table

SMALL_FLOPS, PARTS = 1e9, 5
SIZES = ("batch", "in_channels", "out_channels", "in_size", "stride", "padding")


def main(path: Path) -> None:
    """Print the table."""
    rows = defaultdict[str, list[tuple[float, ...]]](list)
    for row in read_table(path).to_pylist():
        if row["op"] == "conv":
            sizes = {
                name: row[name] for name in ("batch", "in_channels", "out_channels", "in_size", "stride", "padding")
            }
            operator = EagerOperator("conv2d", {**sizes, "kernel": row["kernel_size"]})
            rows[row["device"]].append((row["source_line"], row["latency_s"], operator.flops, operator.io_bytes))
    lines = []
    for device, found in sorted(rows.items()):
        line, given, flops, io_bytes = np.array(found, float).T
        own = given - time_added(line, given, flops, io_bytes)
        part = np.minimum(PARTS * line / line.max(), PARTS - 1).astype(int)
        for name, seconds in (("given", given), ("set right", own)):
            medians = [np.median(seconds[(part == one) & (flops < SMALL_FLOPS)]) for one in range(PARTS)]
            lines.append([f"`{device}`", name, *(f"{1e6 * median:.0f}" for median in medians)])
    print(*table(["device", "label", *(f"part {one + 1}, us" for one in range(PARTS))], lines), sep="\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
