"""TensorFlow's public speeds with parameter servers: one machine and several, beside baselines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.plans.scores import cell
from benchmarks.synchrony.tf_rows import Job, Row, rows
from benchmarks.synchrony.tf_step import PARTS, fit, many_s, step_s

_COMMANDS = ["python -m benchmarks.synchrony tf --data FOLDER --publish"]
_SOURCE = (
    "TensorFlow's benchmarks of May 2017 (docs_src/performance/benchmarks.md, Apache-2.0): P100 of a DGX-1, K80 of "
    "Google and Amazon machines; synchronous. Absolute errors of the step in per cent: mean (median)."
)
_ONE = (
    "The step on one GPU is known. Five factors of a host, none below 0, are fitted to its rows on more GPUs: "
    + "; ".join(PARTS)
    + ". Bytes are those of torchvision's networks."
)
DISTRIBUTED = "ec2-distributed"
_LAST = 8
_Way = tuple[str, Callable[[Row], float]]


def tables(data: Path) -> list[dict[str, Any]]:
    """Judge the rows of the folder ``tf-parameter-server`` of ``data``."""
    found = rows(data)
    one = Machine([row for row in found if row.platform != DISTRIBUTED])
    return [
        one.left_out(),
        one.extrapolated(),
        one.by_network(),
        one.factors(),
        *distributed([row for row in found if row.platform == DISTRIBUTED]),
    ]


class Machine:
    """Rows of single machines, each platform by itself."""

    def __init__(self, found: Sequence[Row]) -> None:
        """Take rows on one and on more GPUs; a job whose step on one GPU is missing is left out."""
        self.single_s: dict[Job, float] = {row.job: row.step_s for row in found if row.gpus == 1}
        self.rows = [row for row in found if row.job in self.single_s]
        self.more = [row for row in self.rows if row.gpus > 1]

    def left_out(self) -> dict[str, Any]:
        """Predict each network by the others on the same platform."""

        def others(row: Row) -> list[Row]:
            return [one for one in self.more if one.platform == row.platform and one.model != row.model]

        def line(row: Row) -> float:
            seen = others(row)
            slopes = np.polyfit([one.gpus for one in seen], [one.step_s / self.single_s[one.job] for one in seen], 1)
            return float(self.single_s[row.job] * np.polyval(slopes, row.gpus))

        ways: list[_Way] = [
            ("the step on one GPU (linear scaling)", lambda row: self.single_s[row.job]),
            ("a line over the number of GPUs, relative to one GPU, of the other networks", line),
            ("**cdmpp**, five factors of the other networks", lambda row: self._by(others(row), row)),
        ]
        note = f"{_SOURCE} {_ONE} Each network is judged by a fit to the other four."
        return _table("One machine: a network left out", note, self.more, ways)

    @property
    def _last(self) -> list[Row]:
        """Rows on 8 GPUs of jobs that were also timed on 2 and 4."""
        known = self._before
        return [row for row in self.more if row.gpus == _LAST and {(row.job, 2), (row.job, 4)} <= set(known)]

    @property
    def _before(self) -> dict[tuple[Job, int], Row]:
        return {(row.job, row.gpus): row for row in self.more if row.gpus < _LAST}

    def _anchored(self, row: Row) -> float:
        """The step on 8 GPUs by factors of 2 and 4, and what the job's own rows lack of them."""
        known = self._before
        factors = fit([one for one in known.values() if one.platform == row.platform], self.single_s)
        own = [known[row.job, gpus] for gpus in (2, 4)]
        missing_s = np.mean([one.step_s - step_s(one, self.single_s, factors) for one in own])
        return step_s(row, self.single_s, factors) + float(missing_s)

    def extrapolated(self) -> dict[str, Any]:
        """Predict 8 GPUs by 2 and 4."""
        known, judged = self._before, self._last

        def line(row: Row) -> float:
            two, four = (known[row.job, gpus].step_s for gpus in (2, 4))
            return 3 * four - 2 * two

        ways: list[_Way] = [
            ("the step on one GPU (linear scaling)", lambda row: self.single_s[row.job]),
            ("the step on 4 GPUs again", lambda row: known[row.job, 4].step_s),
            ("a line through 2 and 4 GPUs", line),
            ("**cdmpp**, five factors of 2 and 4 GPUs, and what its own rows lack of them", self._anchored),
        ]
        note = f"The same rows: {len(judged)} jobs on 8 GPUs, by those on 1, 2 and 4. No row on 8 GPUs is fitted."
        return _table("One machine: 2 and 4 GPUs to 8", note, judged, ways)

    def by_network(self) -> dict[str, Any]:
        """Say where the errors on 8 GPUs are, and what the same factors would leave if they had seen these rows."""
        judged, known = self._last, self._before

        def seen(row: Row) -> float:
            rows = [one for one in self.more if one.platform == row.platform]
            return step_s(row, self.single_s, fit(rows, self.single_s))

        off = {row: abs(self._anchored(row) / row.step_s - 1) for row in judged}
        left = {row: abs(seen(row) / row.step_s - 1) for row in judged}
        groups = {name: [row for row in judged if row.model == name] for name in sorted({row.model for row in judged})}
        groups["all"] = judged
        rows = []
        for name, own in groups.items():
            grown = [
                [known[row.job, gpus].step_s / self.single_s[row.job] for gpus in (2, 4)]
                + [row.step_s / self.single_s[row.job]]
                for row in own
            ]
            rows.append(
                [name, str(len(own)), *(f"{100 * np.mean([one[row] for row in own]):.1f}" for one in (off, left)),
                 *(f"{growth:.2f}" for growth in np.mean(grown, axis=0))]
            )  # fmt: skip
        worst = max(off, key=lambda row: off[row])
        return {
            "title": "One machine: 2 and 4 GPUs to 8, by network",
            "note": (
                "Mean errors in per cent of the table before (its last row), by network; the same of five factors that "
                "are fitted to all rows, on 8 GPUs too: what the form leaves though it has seen the answers. Then the "
                "step on 2, 4 and 8 GPUs as a multiple of that on one. Where that rises on 8 GPUs only, nothing in 2 "
                f"and 4 GPUs tells so: {worst.model} on {worst.platform} alone, {100 * off[worst]:.0f} % off, makes "
                f"{100 * off[worst] / len(judged):.1f} points of the mean."
            ),
            "commands": _COMMANDS,
            "columns": ["network", "rows", "off, %", "fitted to 8 GPUs too, %", "2 GPUs", "4 GPUs", "8 GPUs"],
            "rows": rows,
        }

    def factors(self) -> dict[str, Any]:
        """Show the factors of each platform, fitted to all its rows."""
        platforms = list(dict.fromkeys(row.platform for row in self.more))
        fits = [fit([row for row in self.more if row.platform == name], self.single_s) for name in platforms]
        return {
            "title": "One machine: the factors",
            "note": "Fitted to all rows of a platform, for a reader; the tables above leave out what they judge.",
            "commands": _COMMANDS,
            "columns": ["factor", *platforms],
            "rows": [[name, *(f"{one[i]:.3g}" for one in fits)] for i, name in enumerate(PARTS)],
        }

    def _by(self, seen: Sequence[Row], row: Row) -> float:
        return step_s(row, self.single_s, fit(seen, self.single_s))


def distributed(found: Sequence[Row]) -> list[dict[str, Any]]:
    """Predict 2 machines by 1, and 4 and 8 by 2, where a folder has these."""
    at = {(row.job, row.machines): row for row in found if row.gpus == _LAST * row.machines}
    single_s = {row.job: row.step_s for row in found if row.gpus == 1}
    return [_more_machines(at, single_s, (2,), 1), _more_machines(at, single_s, (4, 8), 2)]


def _more_machines(
    at: dict[tuple[Job, int], Row], single_s: dict[Job, float], counts: tuple[int, ...], base: int
) -> dict[str, Any]:
    known = {job: row for (job, machines), row in at.items() if machines == base}
    judged = [row for (job, machines), row in at.items() if machines in counts and job in known]
    ways: list[_Way] = [
        ("the step on one GPU (linear scaling)", lambda row: single_s[row.job]),
        (f"the step on {base} machine{'s' * (base > 1)} again", lambda row: known[row.job].step_s),
        ("**cdmpp**, the same and what the busiest adapter receives beyond it", lambda r: many_s(r, known[r.job])),
    ]
    many = " and ".join(map(str, counts))
    title = f"Several machines: {base} to {many}"
    note = (
        "8 GPUs a machine; each machine pushes the sum of its gradients to servers on the machines, and pulls. "
        "Nothing is fitted: the adapter has 10 Gbit/s by its datasheet; what fewer machines hide stays hidden."
    )
    if judged:
        return _table(title, note, judged, ways)
    return _ahead(title, f"{note} Rows on {many} machines are not here, so only predictions are shown.", at)


def _ahead(title: str, note: str, at: dict[tuple[Job, int], Row]) -> dict[str, Any]:
    """Say what is predicted where no row judges it, with a server a machine."""
    known = [row for (_, machines), row in at.items() if machines == 2]

    def grown(row: Row, machines: int) -> float:
        more = Row(row.platform, row.model, row.is_real, row.batch, machines * _LAST, machines, machines, 0.0)
        return many_s(more, row)

    return {
        "title": title,
        "note": f"{note} Servers: one a machine.",
        "commands": _COMMANDS,
        "columns": ["network", "images a GPU", "2 machines, s", "4 machines, s", "8 machines, s"],
        "rows": [
            [row.model, str(row.batch), f"{row.step_s:.3f}", f"{grown(row, 4):.3f}", f"{grown(row, 8):.3f}"]
            for row in known
        ],
    }


def _table(title: str, note: str, judged: Sequence[Row], ways: Sequence[_Way]) -> dict[str, Any]:
    platforms = list(dict.fromkeys(row.platform for row in judged))
    groups = [("all", list(judged))] if len(platforms) == 1 else [
        ("all", list(judged)), *((name, [row for row in judged if row.platform == name]) for name in platforms)
    ]  # fmt: skip

    def score(way: Callable[[Row], float], of: Sequence[Row]) -> str:
        return cell(np.array([way(row) for row in of]), np.array([row.step_s for row in of]))

    return {
        "title": title,
        "note": f"{note} Rows: {len(judged)}.",
        "commands": _COMMANDS,
        "columns": ["predicted by", *(name for name, _ in groups)],
        "rows": [[name, *(score(way, of) for _, of in groups)] for name, way in ways],
    }
