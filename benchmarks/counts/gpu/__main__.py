"""GPU kernels carried out beside what the reader says of them: ``python -m benchmarks.counts.gpu``.

Needs TVM, nvcc or NVRTC and cuobjdump, no GPU; about 20 minutes on one core. The table is ``kernels.csv``, from which
``python -m benchmarks.counts`` writes its page. ``--again`` carries kept kernels out once more.
"""

from __future__ import annotations

import argparse
import logging

from benchmarks.counts.gpu.comparing import compared
from benchmarks.counts.gpu.kernels import DEVICES, GPU_KERNELS, programs
from benchmarks.counts.gpu.rows import read_rows, write_rows

TOGETHER = 6
"""Operators whose kernels are compiled in one go."""


def main() -> None:
    """Carry out what is missing."""
    from rich.console import Console
    from rich.progress import track

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arch", type=int, choices=tuple(DEVICES), nargs="*", default=list(DEVICES))
    parser.add_argument("--only", default="", help="operators whose names begin so")
    parser.add_argument("--again", action="store_true", help="carry out what is kept, too")
    options = parser.parse_args()
    logging.basicConfig(level=logging.ERROR)
    names = [name for name in GPU_KERNELS if name.startswith(options.only)]
    batches = [
        (arch, names[start : start + TOGETHER]) for arch in options.arch for start in range(0, len(names), TOGETHER)
    ]
    for arch, batch in track(batches, "carrying out", console=Console(stderr=True)):
        kept = {row.key: row for row in read_rows()}
        done = {(row.name, row.arch) for row in kept.values()}
        missing = [name for name in batch if options.again or (name, arch) not in done]
        if missing:
            kept = {
                key: row for key, row in kept.items() if (row.arch, row.name) not in {(arch, one) for one in missing}
            }
            fresh = [row for case, program in programs(arch, missing) for row in compared(case, program)]
            write_rows([*kept.values(), *fresh])


if __name__ == "__main__":
    main()
