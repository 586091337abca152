"""The page of docs/results with what became faster since the baseline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.builds.row import ROWS, Row
from benchmarks.publish.markdown import table

BUSY = 0.25
"""Cores that other work took, from which a row counts as measured on a busy machine."""
_HEAD = """\
# What became faster

Written by `python -m benchmarks.builds`; do not edit by hand. Wheels of both commits are built from git, installed in
environments of their own that share all other packages, and asked the same questions in turns. CPU seconds
are those of all processes of a command; a figure with a `*` was measured beside other work, which lengthens wall
seconds and, by less, CPU seconds. Targets are judged by CPU seconds but where the row says wall. One thread
(`OMP_NUM_THREADS=1`), but for training and where a row says otherwise. Medians where a row has several runs.
The models of CPUs were trained again after the baseline, so that what they answer differs. Targets in seconds suit
the machine they were set on, where the baseline trained in 81 s and predicted one program in 3.4 ms. Behind them stands
how many times faster they were there: a row that is so much faster, on a machine too slow for the seconds, is met in
times.

Of a shipped network (`cdmpp cache` lists them) the package brings the graph, the drawn schedules and the machine code's
vectors, or the operators; the model predicts live. Of any other network a first question computes all of it.
"""


def page(stored: Mapping[str, Any]) -> list[str]:
    """Lines of the page."""
    rows = stored["rows"]
    base, now = (f"`{stored[name][:10]}`" for name in ("baseline", "now"))
    lines = [_HEAD, f"Today: {base}. Now: {now}. {stored['machine']}.", ""]
    headings = ["what", "runs", "today", "now", "times", "wall", "target", "met", "answers"]
    body = [_line(ROWS[name], rows[name]) for name in ROWS if name in rows]
    lines += table(headings, body)
    limits = [f"- {row.title}: {row.limit}." for name, row in ROWS.items() if name in rows and _held(row, rows[name])]
    if limits:
        lines += ["", "What keeps rows from their targets ([where time goes](profiles.md)):", "", *limits]
    missing = [ROWS[name].title for name in ROWS if name not in rows]
    if missing:
        lines += ["", f"Not measured: {'; '.join(missing)}."]
    if old := sorted({f"`{rows[name]['commit'][:10]}`" for name in rows if rows[name]["commit"] != stored["now"]}):
        lines += ["", f"Some rows are of earlier commits: {', '.join(old)}."]
    return lines


def target_s(row: Row, found: Mapping[str, Any]) -> float | None:
    """Seconds that were aimed at, the smallest of the row's targets."""
    base, now = found["baseline"], found["now"]
    aims = [row.target_s] if row.target_s is not None else []
    if row.share is not None:
        aims.append(row.share * base[row.judged_by] / row.per)
    if row.peer_share is not None:
        aims.append(row.peer_share * now["peer_s"] / row.per)
    return min(aims) if aims else None


def _line(row: Row, found: Mapping[str, Any]) -> list[str]:
    base, now = found["baseline"], found["now"]
    aim, difference = target_s(row, found), found["difference"]
    own_s = now[row.judged_by] / row.per
    mark = "\\*" if max(base["others"], now["others"]) > BUSY else ""
    title = row.title + (", wall" if row.judged_by == "wall_s" else "")
    walls = " → ".join(_shown(row, one["wall_s"] / row.per) for one in (base, now))
    answer = "none" if row.answer == "none" else "other numbers" if difference is None else _agrees(row, difference)
    first, second = (_shown(row, one[row.judged_by] / row.per) for one in (base, now))
    return [
        title, str(now["runs"]), f"{first} {row.unit}{mark}", f"{second} {row.unit}{mark}",
        f"{base[row.judged_by] / now[row.judged_by]:.2f}", f"{walls} {row.unit}",
        "" if aim is None else f"{_shown(row, aim)} {row.unit}" + (f" ({row.times:.1f} times)" if row.times else ""),
        "" if aim is None else _met(row, own_s <= aim, base[row.judged_by] / now[row.judged_by]), answer,
    ]  # fmt: skip


def _held(row: Row, found: Mapping[str, Any]) -> bool:
    return bool(row.limit) and _line(row, found)[-2] == "no"


def _met(row: Row, in_seconds: bool, times: float) -> str:
    in_times = row.times is not None and times >= row.times
    return "yes" if in_seconds else "in times" if in_times else "no"


def _agrees(row: Row, difference: float) -> str:
    if difference <= 1e-12:
        return "equal"
    return f"within {difference:.2g}" + ("" if difference <= row.tolerance else f", more than {row.tolerance:g}")


def _shown(row: Row, seconds: float) -> str:
    return f"{seconds * (1e3 if row.unit == 'ms' else 1):,.3g}"
