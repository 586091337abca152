"""The same kernels under Nvidia's profiler, on a GPU: instructions by pipe, sectors, passes through the banks.

It was never run: no GPU was at hand. Three steps, the second of which needs a GPU of the kind, its driver and ``ncu``
(five minutes for 100 kernels, and the right to read counters), but neither TVM nor a compiler::

    python -m benchmarks.counts.gpu.ncu prepare FOLDER --arch 80
    ncu --csv --page raw --metrics $(python FOLDER/launch.py --metrics) --log-file FOLDER/ncu.csv \\
        python FOLDER/launch.py
    python -m benchmarks.counts.gpu.ncu compare FOLDER

The last prints, for each kind, the ratio of what the interpreter executed (``kernels.csv``) to what the processor did.
"""

from __future__ import annotations

import argparse
import csv
import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from benchmarks.counts.gpu import ncu_launch
from benchmarks.counts.gpu.kernels import GPU_KERNELS, arguments, inputs, programs
from benchmarks.counts.gpu.rows import KernelRow, read_rows

MOST_KERNELS = 100
KIND_OF = {
    "smsp__inst_executed.sum": "instructions",
    "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum": "load sectors",
    "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum": "store sectors",
    "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum": "shared passes",
}
"""What the profiler counts as the interpreter does; the metrics of single pipes stand in its report besides."""


def prepare(folder: Path, arch: int) -> int:
    """Write cubins, inputs and a list of launches; returns how many kernels there are."""
    folder.mkdir(parents=True, exist_ok=True)
    kept = {(row.name, row.schedule) for row in read_rows() if row.arch == arch and not row.error}
    names = [name for name in GPU_KERNELS if any(name == one for one, _ in kept)]
    listed: list[dict[str, object]] = []
    for case, program in programs(arch, names):
        launches = program.source.launches
        if (case.name, case.schedule) not in kept or len(listed) + len(launches) > MOST_KERNELS:
            continue
        number = f"{len(listed):03d}"
        source = folder / f"{number}.cu"
        source.write_text(program.source.text)
        command = [
            "nvcc",
            "-cubin",
            "-O3",
            f"-arch=sm_{arch}",
            "-w",
            "-o",
            str(source.with_suffix(".cubin")),
            str(source),
        ]
        subprocess.run(command, check=True)
        given, wanted = inputs(case.name)
        named = arguments(program.program)
        buffers = dict(zip(named.of_program, [*given, np.zeros_like(wanted)], strict=True)) | named.between
        np.savez(folder / f"{number}.npz", **buffers)  # type: ignore[arg-type]
        for kernel, launch in launches.items():
            listed.append(
                {
                    "name": case.name, "schedule": case.schedule, "kernel": kernel, "files": number,
                    "grid": launch.grid, "block": launch.block, "shared": launch.dynamic_shared_bytes,
                    "arguments": named.of_kernel[kernel],
                }
            )  # fmt: skip
    (folder / "launches.json").write_text(json.dumps({"arch": arch, "launches": listed}))
    shutil.copy(ncu_launch.__file__, folder / "launch.py")
    return len(listed)


def profiled(text: str) -> list[dict[str, float]]:
    """Metrics of each launch in the order of the launches, as ``ncu --csv --page raw`` prints them."""
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith('"ID"'))
    rows = list(csv.DictReader(lines[start:]))
    found = []
    for row in rows:
        if row["ID"].isdigit():  # the row below the names has units
            amounts = {name: row[name].replace(",", "") for name in ncu_launch.METRICS if row.get(name)}
            found.append({name: float(amount) for name, amount in amounts.items()})
    return found


def ratios(launches: Sequence[Mapping[str, object]], arch: int, seen: Sequence[Mapping[str, float]],
           rows: Sequence[KernelRow]) -> dict[str, list[float]]:  # fmt: skip
    """Kind -> executed by the interpreter to executed by the processor, of each kernel that has any."""
    kept = {row.key: row for row in rows}
    found: dict[str, list[float]] = {kind: [] for kind in KIND_OF.values()}
    for launch, metrics in zip(launches, seen, strict=True):
        row = kept[str(launch["name"]), arch, str(launch["schedule"]), str(launch["kernel"])]
        for metric, kind in KIND_OF.items():
            if metrics.get(metric):
                found[kind].append(row.sides(kind)[0] / metrics[metric])
    return found


def main() -> None:
    """Prepare a folder, or compare what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("prepare", "compare"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--arch", type=int, default=80)
    options = parser.parse_args()
    if options.step == "prepare":
        print(f"{prepare(options.folder, options.arch)} kernels")
        return
    listed = json.loads((options.folder / "launches.json").read_text())
    seen = profiled((options.folder / "ncu.csv").read_text())
    for kind, found in ratios(listed["launches"], listed["arch"], seen, read_rows()).items():
        near = np.mean([abs(one - 1) < 0.02 for one in found]) if found else 0.0
        middle = np.median(found) if found else float("nan")
        print(f"{kind:16} {len(found):4} kernels, median ratio {middle:.3f}, within 2 %: {near:.0%}")


if __name__ == "__main__":
    main()
