"""Measures the programs of one part on the device it was carried to. Standard library, numpy and tvm_ffi only.

``python part-000.zip`` writes ``results-part-000.jsonl`` beside the part, one line per program as it is finished; run
again after a kill it goes on where it stopped.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import fcntl
import json
import os
import platform
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

from cdmpp.errors import CdmppError
from cdmpp.measure import protocol
from cdmpp.measure.protocol import Timed
from cdmpp.measure.reference_kernels import ReferenceKernels
from cdmpp.measure.software import processor
from cdmpp.measure.window import Windows
from cdmpp.measure.worker import COMMAND
from cdmpp.platform.workers import Reply, Worker

_TOLERANCE = collections.defaultdict(lambda: 2e-3, float16=2e-2, bfloat16=1e-1)
"""Deviation of a right result by data type."""
_GPU_FACTS = "name,driver_version,clocks.sm,clocks.mem,clocks.max.sm,clocks.max.mem,temperature.gpu,power.draw"


def main(folder: Path, part: Path) -> int:
    """Run the command line of a part that was unpacked into ``folder``; returns the exit status."""
    words = argparse.ArgumentParser(prog=f"python {part.name}", description=__doc__)
    words.add_argument("--out", type=Path, default=part.with_name(f"results-{part.stem}.jsonl"), help="results file")
    words.add_argument("--window", type=int, default=192, help="programs that get their first visit in one window")
    words.add_argument("--separation-s", type=float, help="least time between two visits (default: the protocol's)")
    options = words.parse_args()
    try:
        KitRun(folder, options.out, options.window, options.separation_s).run()
    except CdmppError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


class KitRun:
    """This is one run over the programs of an unpacked part."""

    def __init__(self, folder: Path, out: Path, window: int, separation_s: float | None) -> None:
        self.folder, self.out, self.window = folder, out, window
        self.kit: dict[str, Any] = json.loads((folder / "kit.json").read_text())
        self.programs = self._items(json.loads((folder / "programs.json").read_text()))
        self.device = "cpu" if self.kit["kind"] == "cpu" else "cuda"
        self.separation_s = protocol.rule_of(self.device).min_separation_s if separation_s is None else separation_s
        cores = sorted(os.sched_getaffinity(0))
        if self.kit["cores"] > len(cores):
            raise CdmppError(f"programs of {self.kit['device']} use {self.kit['cores']} cores, here are {len(cores)}")
        libraries = [str(folder / name) for name in self.kit["libraries"]]
        ready = {"op": "ready_kit", "libraries": libraries, "cubins": str(folder / "programs")}
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(folder / "site"), os.environ.get("PYTHONPATH")]))
        self.worker = Worker(COMMAND, cores[-self.kit["cores"] :], ready)
        self.lock = self._lock()
        self.done = self._done()

    def run(self) -> None:
        """Check, measure, write."""
        self._write({"event": "start", **self._host()})
        try:
            self.worker.start()
            left = self._check([item for item in self.programs if item.record_id not in self.done])
            log, programs = self.out.with_suffix(".reference_kernels.jsonl"), self._items(self.kit["reference_kernels"])
            references = ReferenceKernels(self.worker, log, self._timing, programs)
            windows = Windows[Timed]([self.worker], references, self._timing, min_separation_s=self.separation_s)
            begin, total = time.monotonic(), len(left)
            while left or windows.active:
                fresh, left = left[: self.window], left[self.window :]
                for item in windows.measure(fresh, self._fail):
                    visits = item.visits
                    self._write({"record_id": item.record_id, "visits": visits.samples, "quiet": visits.quiet})
                finished, minutes = total - len(left) - len(windows.active), (time.monotonic() - begin) / 60
                print(f"{self.kit['part']}: {finished}/{total} programs in {minutes:.1f} min", flush=True)
        finally:
            self.worker.stop()
            self._write({"event": "end", **self._host()})
        print(f"results: {self.out}")

    def _items(self, entries: list[dict[str, Any]]) -> list[Timed]:
        folder = self.folder / "programs"
        return [Timed(key := entry["record_id"], entry["arguments"], folder / f"{key}.so") for entry in entries]

    def _timing(self, item: Timed) -> dict[str, Any]:
        return item.timing_request("time", device=self.device)

    def _check(self, items: list[Timed]) -> list[Timed]:
        """Compare with what the unscheduled tasks gave on the building machine; returns all but the wrong items."""
        errors: list[float] = []
        wrong = []
        for item in items:
            expected = item.library.with_suffix(".npy")
            if not expected.exists():
                continue
            request = item.timing_request("check", device=self.device, expected=str(expected))
            reply = self.worker.request(request, protocol.VISIT_LIMIT_S)
            error, limit = reply.get("error", float("nan")), _TOLERANCE[item.arguments[-1][1]]
            errors.append(error)
            if not error <= limit:
                wrong.append(item)
                reply = {"cause": "wrong result", "message": f"deviation {error:.3g}, allowed {limit:.3g}", **reply}
                self._fail(item, reply)
        if errors:
            good, worst = len(errors) - len(wrong), max((e for e in errors if e == e), default=float("nan"))
            self._write({"event": "check", "programs": len(errors), "right": good, "largest_error": worst})
            print(f"{self.kit['part']}: {good} of {len(errors)} checked kernels are right (deviation {worst:.2g})")
        return [item for item in items if item not in wrong]

    def _fail(self, item: Timed, reply: Reply) -> None:
        self._write({"record_id": item.record_id, **reply})

    def _write(self, entry: dict[str, Any]) -> None:
        entry["at"] = datetime.now(UTC).isoformat(timespec="seconds")
        with self.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")

    def _lock(self) -> TextIO:
        """The results file, locked while this process lives: two runs at once would spoil each other's times."""
        file = self.out.open("a", encoding="utf-8")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise CdmppError(f"{self.out} is being written by another run of this part: wait until it ends") from None
        return file

    def _done(self) -> set[str]:
        """Programs that the results file has; a last line that a kill cut short is ended, so that it stays alone."""
        text = self.out.read_text(encoding="utf-8")
        if text and not text.endswith("\n"):
            with self.out.open("a", encoding="utf-8") as file:
                file.write("\n")
        done = set()
        for line in text.splitlines():
            with contextlib.suppress(ValueError):
                done.add(json.loads(line).get("record_id", ""))
        return done

    def _host(self) -> dict[str, Any]:
        facts: dict[str, Any] = {"python": platform.python_version(), "kernel": platform.release()}
        if self.kit["kind"] == "cpu":
            return {**facts, "host": processor()}
        command = ["nvidia-smi", f"--query-gpu={_GPU_FACTS}", "--format=csv,noheader,nounits", "--id=0"]
        try:
            values = subprocess.run(command, capture_output=True, text=True, timeout=30).stdout.strip().split(", ")
        except (OSError, subprocess.TimeoutExpired):
            values = []
        gpu = dict(zip(_GPU_FACTS.split(","), values, strict=False))
        return {**facts, "host": gpu.get("name", "unknown GPU"), "gpu": gpu}
