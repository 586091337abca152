"""CPU time of the reader of machine code beside that of an earlier commit: ``python -m benchmarks.counts.speed``.

Both are compiled here with the same flags and read the programs that ``python -m benchmarks.counts`` has kept, in turn,
in one process; TVM's and LLVM's time is on neither side.
"""

from __future__ import annotations

import argparse
import ctypes
import io
import json
import subprocess
import tarfile
import time
import zlib
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks.counts.executed import command
from cdmpp.devices.cores import get_core
from cdmpp.machine_code.cpu.native import TOTALS, _core_numbers
from cdmpp.platform.paths import cache_root

RESULT = Path(__file__).with_name("speed.json")
BEFORE = "9c96174e^"
"""The last commit of reader 4."""
SOURCES = "cdmpp/machine_code/cpu/native"
_ROOT = Path(__file__).parents[2]
_FLAGS = ("-std=c++20", "-O2", "-DNDEBUG", "-fwrapv", "-ffp-contract=off", "-fPIC", "-shared", "-pthread")


def built(sources: Path, folder: Path) -> ctypes.CDLL:
    """The reader of these sources.

    Raises:
        subprocess.CalledProcessError: g++ is missing or fails.
    """
    library = folder / "cpu_code.so"
    command("g++", *_FLAGS, str(sources / "code_vector.cpp"), "-o", str(library))
    loaded = ctypes.CDLL(str(library))
    text = (ctypes.c_char_p, ctypes.c_int64)
    loaded.code_amounts.argtypes = [*text, *text, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int64]
    return loaded


def of_commit(commit: str, folder: Path) -> Path:
    """The sources of the reader at a commit, unpacked."""
    packed = subprocess.run(
        ["git", "-C", str(_ROOT), "archive", commit, SOURCES], check=True, capture_output=True
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")
    return folder / SOURCES


def kept(most: int) -> list[tuple[bytes, bytes]]:
    """LLVM IR and assembly of x86-64 programs that were counted, spread over all."""
    paths = sorted(path for path in (cache_root() / "counts").glob("*.z") if "neoverse" not in path.name)
    if not paths:
        raise SystemExit("no program is kept: run `python -m benchmarks.counts` first")
    found = []
    for path in paths[:: max(1, len(paths) // most)][:most]:
        _, llvm_ir, assembly, _ = zlib.decompress(path.read_bytes()).split(b"\0")
        found.append((llvm_ir, assembly))
    return found


def seconds(reader: ctypes.CDLL, program: tuple[bytes, bytes], core: np.ndarray) -> float:
    """CPU seconds of one reading; raises ``ValueError`` where the program cannot be read."""
    totals, reason = np.zeros(2 * len(TOTALS)), ctypes.create_string_buffer(1 << 12)
    texts = [part for text in program for part in (text, len(text))]
    start = time.process_time()
    read = reader.code_amounts(*texts, core.ctypes.data, totals.ctypes.data, reason, len(reason) - 1)
    spent = time.process_time() - start
    if not read:
        raise ValueError(reason.value.decode() or "a program cannot be read")
    return spent


def main() -> None:
    """Measure, print and keep the ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", default=BEFORE, help="commit of the earlier reader")
    parser.add_argument("--programs", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3, help="readings of each program, of which the fastest counts")
    options = parser.parse_args()
    core, programs = _core_numbers(get_core("zen3")), kept(options.programs)
    with TemporaryDirectory() as before, TemporaryDirectory() as now:
        readers = built(of_commit(options.before, Path(before)), Path(before)), built(_ROOT / SOURCES, Path(now))
        times = np.array([
            [[seconds(reader, program, core) for reader in readers] for _ in range(options.rounds)]
            for program in programs
        ]).min(axis=1)  # fmt: skip
    earlier, later = times.sum(axis=0)
    result = {
        "before": command("git", "-C", str(_ROOT), "rev-parse", "--short=8", options.before).strip(),
        "programs": len(programs),
        "before_ms": round(1e3 * earlier / len(programs), 3),
        "now_ms": round(1e3 * later / len(programs), 3),
        "ratio": round(later / earlier, 3),
        "median_ratio": round(float(np.median(times[:, 1] / times[:, 0])), 3),
    }
    RESULT.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))


def speed_section() -> list[str]:
    """Lines of the page."""
    if not RESULT.exists():
        return []
    one = json.loads(RESULT.read_text())
    text = f"""
## Speed

Reading one of {one["programs"]} compiled programs takes {one["now_ms"]} ms of CPU time on average, by the reader before
counts were compared (commit `{one["before"]}`) {one["before_ms"]} ms: **{one["ratio"]}** of it, and by program
{one["median_ratio"]} in the median. LLVM's time is on neither side. Written by `python -m benchmarks.counts.speed`.
"""
    return text.splitlines()


if __name__ == "__main__":
    main()
