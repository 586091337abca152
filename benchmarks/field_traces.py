"""Public traces read by ``cdmpp trace`` and by hand: every event told, steps and collectives as the JSON has them.

Called as ``python -m benchmarks.field_traces CLONE... [--hta PYTHON] [--publish]``. A CLONE is a folder with the files
of HolisticTraceAnalysis, TraceLens or param; PYTHON is one that has HolisticTraceAnalysis 0.5.0.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from benchmarks.publish.markdown import table, write_page
from cdmpp.errors import CdmppError
from cdmpp.steps.replay import replay
from cdmpp.trace.folder import traced_job
from cdmpp.trace.inventory import Inventory
from cdmpp.trace.kineto import rank_trace
from cdmpp.trace.scanned import scan
from cdmpp.trace.traced_step import traced_steps

PAGE = Path(__file__).parents[1] / "docs" / "results" / "traces.md"
DEVICE = ("kernel", "gpu_memcpy", "gpu_memset", "mtia_ccp_events", "Kernel", "Memcpy", "Memset")
HTA = """
import json, sys, warnings
warnings.filterwarnings("ignore")
from hta.trace_analysis import TraceAnalysis
one = TraceAnalysis(trace_files={int(sys.argv[2]): sys.argv[1]}, trace_dir="", include_last_profiler_step=True)
times = one.get_temporal_breakdown(visualize=False).iloc[0].to_dict()
frame = one.t.get_trace(int(sys.argv[2]))
kernels = int((frame["stream"].ge(0)).sum())
print("RESULT " + json.dumps({"idle": times["idle_time(us)"], "compute": times["compute_time(us)"],
      "other": times["non_compute_time(us)"], "kernels": kernels}))
"""


@dataclass(frozen=True)
class Counted:
    """What is counted in the JSON of one trace, without the product."""

    spans: Mapping[str, int]
    marks: Sequence[float]
    """Microseconds from mark to mark of the profiler, the last mark by itself."""
    sizes: Mapping[str, int]
    """Kind of collective -> bytes in the marked steps, as kernels say themselves, or else records of the host."""
    streams: int
    waits: int
    """Events of a device in which a stream waits for another."""
    named: Mapping[str, int]
    """Category of the host -> its spans that name a stream."""


@dataclass(frozen=True)
class Row:
    """One trace."""

    name: str
    counted: Counted
    inventory: Inventory
    refusal: str
    off: float | None
    """The replay of the step that is farthest from its measured length, as a share."""
    hta: Mapping[str, float] | None

    @property
    def is_complete(self) -> bool:
        """True if kept, left over and lost add up to the spans of the JSON, category by category."""
        told = {one.category: one.kept + one.left_over + one.lost for one in self.inventory.categories}
        negative = [one for one in self.inventory.categories if min(one.kept, one.left_over, one.lost) < 0]
        return told == dict(self.counted.spans) and not negative

    @property
    def has_marks(self) -> bool | None:
        """True if steps are as long as from mark to mark; None without marks."""
        if not self.counted.marks:
            return None
        told = [1e6 * one.host_s for one in self.inventory.steps]
        return len(told) == len(self.counted.marks) and all(
            abs(a - b) <= 0.5 for a, b in zip(told, self.counted.marks, strict=True)
        )

    @property
    def has_sizes(self) -> bool | None:
        """True if bytes of collectives are those that the kernels say; None where they say none."""
        if not self.counted.sizes:
            return None
        told = {one.kind: one.bytes for one in self.inventory.collectives if one.bytes}
        return told == dict(self.counted.sizes)


def traces_in(clone: Path) -> Iterator[Path]:
    """Files that hold traceEvents."""
    for file in sorted(clone.rglob("*.json*")):
        if file.suffix in (".json", ".gz") and file.stat().st_size > 1000:
            try:
                whole = parsed(file)
            except (ValueError, OSError, EOFError):
                continue
            if isinstance(whole, dict) and isinstance(whole.get("traceEvents"), list) and whole["traceEvents"]:
                yield file


def parsed(file: Path) -> Any:
    data = file.read_bytes()
    return json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)


def count(file: Path) -> Counted:
    """Count by hand: categories, marks, sizes that kernels in the marked steps have in their own arguments."""
    whole = parsed(file)
    spans = [event for event in whole["traceEvents"] if event.get("ph") == "X"]
    world = (whole.get("distributedInfo") or {}).get("world_size", 1)
    marks = sorted(
        (
            event
            for event in spans
            if event.get("cat") == "user_annotation" and event["name"].startswith("ProfilerStep#")
        ),
        key=lambda event: event["ts"],
    )
    numbers = [int(mark["name"].partition("#")[2]) for mark in marks]
    ends = [
        marks[n + 1]["ts"] if n + 1 < len(marks) and numbers[n + 1] == numbers[n] + 1 else mark["ts"] + mark["dur"]
        for n, mark in enumerate(marks)
    ]
    launched = {
        event["args"]["correlation"]: event["ts"]
        for event in spans
        if str(event.get("cat", "")).endswith(("runtime", "driver")) and "correlation" in event.get("args", {})
    }
    sizes: Counter = Counter()
    for event in spans:
        args = event.get("args") or {}
        if event.get("cat") == "kernel" and "Collective name" in args:
            moment = launched.get(args.get("correlation"))
            inside = moment is not None and any(m["ts"] <= moment < end for m, end in zip(marks, ends, strict=True))
            if inside or not marks:
                sizes[KINDS[args["Collective name"]]] += BYTES[args["dtype"]] * max(
                    args["In msg nelems"], args["Out msg nelems"]
                )
    if not sizes:
        sizes = recorded(spans, [(m["ts"], end) for m, end in zip(marks, ends, strict=True)], world)
    streams = {
        (args.get("device"), args.get("stream", event.get("tid")))
        for event in spans
        if event.get("cat") in DEVICE and "wait_on_stream" not in (args := event.get("args") or {})
    }
    return Counted(
        Counter(str(event.get("cat") or "") for event in spans),
        [end - mark["ts"] for mark, end in zip(marks, ends, strict=True)],
        sizes,
        len(streams),
        sum("wait_on_stream" in (event.get("args") or {}) for event in spans if event.get("cat") in DEVICE),
        Counter(str(event.get("cat")) for event in spans
                if event.get("cat") not in DEVICE and "stream" in (event.get("args") or {})),
    )  # fmt: skip


def recorded(spans: Sequence[Mapping[str, Any]], steps: Sequence[tuple[float, float]], world: int) -> Counter:
    """Bytes by kind of the spans in which the host hands collectives of one tensor over."""
    found: Counter = Counter()
    if not any(event.get("cat") == "kernel" and "nccl" in event["name"] for event in spans):
        return found
    for event in spans:
        args, kind = event.get("args") or {}, str(event["name"]).removeprefix("nccl:")
        if event.get("cat") != "user_annotation" or kind not in KINDS or not args.get("Input Dims"):
            continue
        if not steps or any(start <= event["ts"] < end for start, end in steps):
            size = BYTES[args["Input type"][0].removeprefix("c10::")] * prod(args["Input Dims"][0])
            found[KINDS[kind]] += size * (world if KINDS[kind] == "all_gather" else 1)
    return +found


KINDS = {
    "allreduce": "all_reduce", "_allgather_base": "all_gather", "allgather": "all_gather", "broadcast": "broadcast",
    "_reduce_scatter_base": "reduce_scatter", "reduce_scatter": "reduce_scatter", "all_to_all": "all_to_all",
    "all_to_allv": "all_to_all", "send": "send_recv", "recv": "send_recv", "allreduce_coalesced": "all_reduce",
    "alltoall_base": "all_to_all", "alltoall": "all_to_all", "all_reduce": "all_reduce",
    "_all_gather_base": "all_gather", "all_gather": "all_gather",
}  # fmt: skip
BYTES = {
    "Float": 4,
    "Half": 2,
    "BFloat16": 2,
    "Long": 8,
    "Int": 4,
    "Byte": 1,
    "Char": 1,
    "Bool": 1,
    "Double": 8,
    "float": 4,
    "long": 8,
    "long int": 8,
    "int": 4,
    "signed char": 1,
    "unsigned char": 1,
}


def read(file: Path, name: str, hta: str | None) -> Row:
    trace = rank_trace(scan(file))
    off = None
    if not trace.refusal:
        with tempfile.TemporaryDirectory() as empty:
            try:
                job = traced_job(empty, [trace])
                steps = [one for one in traced_steps(job) if one.replayed_s is not None and one.measured_s]
                shares = [one.replayed_s / one.measured_s - 1 for one in steps if one.replayed_s is not None]
                shares.append(replay(job.graph).step_s / job.graph.measured.step_s - 1)
                off = max(shares, key=abs)
            except CdmppError as error:
                return Row(name, count(file), trace.inventory, str(error), None, None)
    times = breakdown(file, trace.rank, hta) if hta and trace.inventory.device.events else None
    return Row(name, count(file), trace.inventory, trace.refusal, off, times)


def breakdown(file: Path, rank: int, python: str) -> Mapping[str, float] | None:
    """What HolisticTraceAnalysis says; None where it does not read the trace."""
    run = subprocess.run(
        [python, "-c", HTA, str(file), str(rank)], capture_output=True, text=True, timeout=300, check=False,
        env={**os.environ, "HTA_DISABLE_NS_ROUNDING": "1"},
    )  # fmt: skip
    lines = [line for line in run.stdout.splitlines() if line.startswith("RESULT ")]
    return json.loads(lines[-1].removeprefix("RESULT ")) if lines else None


def page(rows: Sequence[Row]) -> list[str]:
    read_rows = [row for row in rows if not row.refusal]
    compared = [row for row in rows if row.hta is not None]
    same = [row for row in compared if not difference(row)]
    off = [abs(row.off) for row in read_rows if row.off is not None]
    lines = [
        "# Public traces",
        "",
        "Traces among the tests of HolisticTraceAnalysis, TraceLens and param, read by `cdmpp trace`, and counted",
        "by hand in their JSON. Written by `benchmarks/field_traces.py`. The traces are no part of this project.",
        "",
        *table(
            ["what", "traces", "of"],
            [
                ["answered", len(read_rows), len(rows)],
                ["kept + left over + lost = spans, in every category", sum(r.is_complete for r in rows), len(rows)],
                ["steps as long as from mark to mark, to half a microsecond",
                 *fraction([r.has_marks for r in rows])],
                ["bytes of collectives as their kernels, or records of the host, say",
                 *fraction([r.has_sizes for r in rows])],
                ["every step and the median replayed within 3 %", sum(share <= 0.03 for share in off), len(off)],
                ["compute, idle and the rest as HolisticTraceAnalysis says, to 1 %", len(same), len(compared)],
            ],
        ),
        "",
        "## Each trace",
        "",
        *table(
            ["trace", "spans", "device events", "kept", "left over", "lost", "streams", "steps", "replay, %"],
            [
                [
                    row.name, sum(row.counted.spans.values()), row.inventory.device.events, row.inventory.device.kept,
                    row.inventory.device.left_over, row.inventory.device.lost, row.counted.streams,
                    len([one for one in row.inventory.steps if not one.lost]),
                    "refused" if row.off is None else f"{100 * row.off:+.2f}",
                ]
                for row in rows
            ],
        ),
        "",
        "## Refused",
        "",
        *[f"- {row.name}: {row.refusal.partition('.json')[2].partition(' ')[2]}" for row in rows if row.refusal],
        "",
        "## Compared with HolisticTraceAnalysis 0.5.0",
        "",
        "With its last step kept (`include_last_profiler_step`) and without its rounding (`HTA_DISABLE_NS_ROUNDING`),",
        "which moves every begin up and every end down to a whole microsecond.",
        "",
        *table(
            ["trace", "kernels", "its kernels", "compute, ms", "its", "exposed, ms", "its", "idle, ms", "its", "why"],
            [compare(row) for row in compared],
        ),
    ]  # fmt: skip
    return lines


def fraction(found: Sequence[bool | None]) -> tuple[int, int]:
    known = [one for one in found if one is not None]
    return sum(known), len(known)


def compare(row: Row) -> list[object]:
    own, its = row.inventory.breakdown, row.hta or {}
    return [
        row.name, row.inventory.device.events, its["kernels"],
        *(value for mine, word in ((own.compute_s, "compute"), (own.exposed_s, "other"), (own.idle_s, "idle"))
          for value in (f"{1e3 * mine:.3f}", f"{1e-3 * its[word]:.3f}")),
        difference(row),
    ]  # fmt: skip


def difference(row: Row) -> str:
    """Why the two differ; empty where they do not."""
    own, its = row.inventory.breakdown, row.hta or {}
    pairs = ((own.compute_s, its["compute"]), (own.exposed_s, its["other"]), (own.idle_s, its["idle"]))
    total_us = max(sum(its[word] for word in ("compute", "other", "idle")), 1e-9)
    if all(abs(1e6 * mine - us) <= max(0.01 * total_us, 2.0) for mine, us in pairs):
        return ""
    if its["kernels"] < row.inventory.device.events:
        return "it leaves out events without a launch"
    if its["kernels"] > row.inventory.device.events:
        names = " and ".join(row.counted.named) or "other spans"
        return f"it counts spans of {names} that name a stream as kernels"
    if row.counted.waits:
        return "it counts waits of a stream for another as work"
    return "not explained"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("clones", type=Path, nargs="+")
    parser.add_argument("--hta")
    parser.add_argument("--publish", action="store_true")
    options = parser.parse_args()
    rows = []
    for clone in options.clones:
        for file in traces_in(clone):
            name = f"{clone.name}: {file.parent.parent.name}/{file.parent.name}/{file.name.partition('.')[0]}"
            rows.append(read(file, name, options.hta))
            row = rows[-1]
            print(name, row.is_complete, row.has_marks, row.has_sizes, row.off, row.hta and difference(row), flush=True)
    lines = page(rows)
    print("\n".join(lines))
    if options.publish:
        write_page(PAGE, lines)


if __name__ == "__main__":
    main()
