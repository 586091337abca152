"""Memory of training from mapped files: up to a million stored programs, from the folder to trained-on batches.

Called as ``python benchmarks/streaming.py RESULT.json PROGRAMS`` by ``run.py``.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import torch
from loading import write
from timing import finish, peak_memory_mb

from cdmpp import devices
from cdmpp.data.batching import ProgramTensors, TrainingBatches
from cdmpp.data.loading import load_dataset
from cdmpp.model.build import build_for
from cdmpp.model.config import CdmppConfig

STEPS = 20


def main() -> None:
    wanted = int(sys.argv[2])
    with tempfile.TemporaryDirectory() as folder:
        if len(sys.argv) > 3:  # the child: a process whose memory is that of training alone
            train(Path(sys.argv[3]))
            return
        write(Path(folder), wanted)
        subprocess.run([sys.executable, __file__, sys.argv[1], str(wanted), folder], check=True)


def train(folder: Path) -> None:
    """Load, fit the statistics, take ``STEPS`` steps of gradient and then gather every batch of an epoch."""
    watch = AnonymousMemory()
    start_mb, begin = watch.now_mb(), time.perf_counter()
    data = load_dataset(folder, progress=False)
    loaded = time.perf_counter()
    device, rows = devices.get(str(data.devices[0])), np.arange(len(data))
    programs = ProgramTensors.build(data.asts, {device.name: device}, data.devices, data.latency_s)
    model = build_for(CdmppConfig(), programs, rows)
    optimiser = torch.optim.AdamW(model.parameters())
    for step, batches in enumerate(TrainingBatches(programs, rows, 128, 0, 0, length_groups=2)):
        if step < STEPS:
            optimiser.zero_grad()
            for batch in batches:
                torch.nn.functional.l1_loss(model(batch).log_latency, batch.log_latency).backward()
            optimiser.step()
    pages = resident_pages()
    finish(
        {
            **pages,
            "programs": len(data),
            "features_mb": (data.asts.leaf_features.nbytes + data.asts.kernel_features.nbytes) / 1e6,
            "load_s": loaded - begin,
            "rest_s": time.perf_counter() - loaded,
            "start_mb": start_mb,
            "anonymous_mb": watch.peak_mb,
            "resident_mb": peak_memory_mb(),
        }
    )


def resident_pages() -> dict[str, float]:
    """Return what this process holds now: memory of its own, and pages of files. Linux."""
    rows = (line.split() for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:])
    sizes = {row[0].rstrip(":"): int(row[1]) * 1024 / 1e6 for row in rows}
    return {"own_mb": sizes["Anonymous"], "file_pages_mb": sizes["Rss"] - sizes["Anonymous"]}


class AnonymousMemory(threading.Thread):
    """Largest memory of this process that is not a mapped file: what the kernel cannot simply drop. Linux."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak_mb = 0.0
        self.start()

    @staticmethod
    def now_mb() -> float:
        line = next(row for row in Path("/proc/self/status").read_text().splitlines() if row.startswith("RssAnon"))
        return int(line.split()[1]) * 1024 / 1e6

    def run(self) -> None:
        while True:
            self.peak_mb = max(self.peak_mb, self.now_mb())
            time.sleep(0.02)


if __name__ == "__main__":
    main()
