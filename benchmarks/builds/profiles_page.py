"""The page of docs/results with processor seconds by stage, before and after, and test errors of several seeds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.builds.row import ROWS
from benchmarks.builds.samples import EPOCHS, PROFILED
from benchmarks.builds.seeds import seed_table
from benchmarks.publish.markdown import table

_LARGEST = 7
"""Stages that have a row of their own, of those that are largest in either build."""
_HEAD = f"""\
# Where time goes

Written by `python -m benchmarks.builds.profiles`; do not edit by hand. Rows of
[what became faster](builds.md), each build profiled by the same tools: perf counts processor seconds (task clock) of
each command and its children, py-spy the Python stacks of all threads that run or wait for a processor, 199 times a
second. Seconds of Python are shared out by the innermost frame that is known; an import belongs to the outermost
package. Of questions inside a process only what is timed counts, all its programs and repetitions together: imports,
models and data are there before. Other work on the machine changes processor seconds by some, and shares by less;
these were taken on a machine that was not always quiet, and sampling takes some itself:
[what became faster](builds.md) has the figures. One thread for each process. The training is one of {EPOCHS} epochs.
"""
_SEEDS = """\
## Training: the same error

`cdmpp model train` as shipped in both builds, one thread, error on the test part, percent. A seed always gives the
same figures. The spread is the standard deviation over the seeds.
"""


def page(stored: Mapping[str, Any]) -> list[str]:
    """Lines of the page."""
    base, now = (f"`{stored[name][:10]}`" for name in ("baseline", "now"))
    lines = [_HEAD, f"Today: {base}. Now: {now}. {stored['machine']}.", ""]
    rows = stored["rows"]
    for name in PROFILED:
        if name in rows:
            lines += [f"## {_title(name)}", "", *_stages(rows[name]["baseline"], rows[name]["now"]), ""]
            if rows[name]["commit"] != stored["now"]:
                lines += [f"Now: `{rows[name]['commit'][:10]}`.", ""]
    if missing := [_title(name) for name in PROFILED if name not in rows]:
        lines += [f"Not profiled: {'; '.join(missing)}.", ""]
    if any({"baseline", "now"} <= one.keys() for one in stored["seeds"].values()):
        lines += [_SEEDS, *seed_table(stored["seeds"])]
    return lines


def _title(name: str) -> str:
    title = ROWS[name].title.partition(" (peer")[0]
    return title[0].upper() + title[1:] if title[0] != "`" else title


def _stages(base: Mapping[str, float], now: Mapping[str, float]) -> list[str]:
    order = sorted(base.keys() | now.keys(), key=lambda stage: -max(base.get(stage, 0.0), now.get(stage, 0.0)))
    shown, others = order[:_LARGEST], order[_LARGEST:]
    totals = [sum(one.values()) for one in (base, now)]
    body = [[stage, *_cells([one.get(stage, 0.0) for one in (base, now)], totals)] for stage in shown]
    if others:
        left = [sum(one.get(stage, 0.0) for stage in others) for one in (base, now)]
        body.append([f"{len(others)} other{'s' if len(others) > 1 else ''}", *_cells(left, totals)])
    body.append(["**all**", *_cells(totals, totals)])
    return table(["stage", "today (CPU s)", "share (%)", "now (CPU s)", "share (%)"], body)


def _cells(seconds: list[float], totals: list[float]) -> list[str]:
    pairs = zip(seconds, totals, strict=True)
    return [text for own, whole in pairs for text in (f"{own:.2f}", f"{100 * own / whole:.0f}" if whole else "–")]
