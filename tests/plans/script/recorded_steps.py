"""Run a generated script on one rank of a job, and print what it exchanged in its last step, as JSON.

python recorded_steps.py SCRIPT GROUP FOLDER: as torchrun starts it; each rank writes FOLDER/RANK.json.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist

from benchmarks.gloo_jobs.record import exchanges_of


def main(script: Path, group: int, folder: Path) -> None:
    spec = importlib.util.spec_from_file_location("script", script)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found, profiles = [], [torch.profiler.profile(record_shapes=True)]

    def told(number: int, start_s: float, device: torch.device) -> None:
        profiles[-1].stop()
        if number:  # the first one holds what was sent while the model was made
            with tempfile.TemporaryDirectory() as own:
                trace = Path(own) / "trace.json"
                profiles[-1].export_chrome_trace(str(trace))
                found.append(exchanges_of(trace, group))
        dist.barrier()  # a profile must not begin while another rank still exchanges
        profiles.append(torch.profiler.profile(record_shapes=True))
        profiles[-1].start()

    module.told = told
    profiles[0].start()
    module.main()
    profiles[-1].stop()
    (folder / f"{os.environ['RANK']}.json").write_text(json.dumps([[row[1::2] for row in step] for step in found]))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
