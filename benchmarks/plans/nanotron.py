"""nanotron's sweep of Llamas on 8 to 512 H100, beside what is predicted for them."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.plans.framework_factors import Factors
from benchmarks.plans.framework_jobs import PARTS
from benchmarks.plans.large_scores import COLUMNS, Choice, Floats, Interval, Mask, line, of_one, of_terms, out_of_fold
from benchmarks.plans.nanotron_jobs import Jobs, Row, jobs_of, read
from benchmarks.plans.part_weights import part_weights
from cdmpp.plans.frameworks import NANOTRON

_COMMAND = "python -m benchmarks.plans nanotron --data FOLDER --publish"
_TERMS = (
    *PARTS[:-1], "blocks of a stage", "those with tensor ranks", "turns of a pipeline", "turns on 64 nodes", "step",
)  # fmt: skip
"""What a row's seconds are made of: parts that are predicted, then numbers each of which takes so many seconds."""
_PRIOR = np.array([1.0] * len(PARTS[:-1]) + [0.0] * (len(_TERMS) - len(PARTS[:-1])))
_DECLARED = Factors.as_declared(NANOTRON.host)
"""What a user of ``cdmpp plan --framework nanotron`` gets."""
_OURS = "**cdmpp**"
_NEAR, _JUDGED, _SEED = 3.0, "8B", 0


def tables(data: Path) -> list[dict[str, Any]]:
    """Judge plans on the folder ``nanotron-sweep`` of ``data``."""
    rows = read(data / "nanotron-sweep" / "sweep.parquet")
    judged = _Judged(jobs_of([row for row in rows if row.clean and row.is_cut and row.model != "80B"]))
    return [judged.models(), judged.nodes(), judged.choices(), judged.causes()]


@dataclass(frozen=True)
class _Judged:
    clean: Jobs

    def column(self, name: str) -> Any:
        return np.array([getattr(row, name) for row in self.clean.rows])

    @cached_property
    def best_s(self) -> Floats:
        """Seconds of the fastest plan of each row's model and nodes."""
        found = dict[Hashable, float]()
        for row in self.clean.rows:
            key = row.model, row.nodes
            found[key] = min(found.get(key, np.inf), row.step_s)
        return np.array([found[row.model, row.nodes] for row in self.clean.rows])

    @cached_property
    def near(self) -> Mask:
        """Plans that are not broken: within three times the best of their model and nodes."""
        return np.asarray(self.clean.measured_s <= _NEAR * self.best_s)

    @cached_property
    def plain_s(self) -> Floats:
        """Seconds of all rows as predicted without a fit."""
        return self.clean.seconds(_DECLARED)

    @cached_property
    def terms(self) -> Floats:
        """(rows, ``_TERMS``)."""
        parts = self.clean.parts(_DECLARED)
        turns = self.column("micro_batches") + self.column("pipeline") - 1
        blocks = turns * np.array([row.shape.layers for row in self.clean.rows]) / self.column("pipeline")
        several, huge = self.column("pipeline") > 1, self.column("nodes") == 64
        more = (blocks, blocks * (self.column("tensor") > 1), turns * several, turns * huge, np.ones(len(turns)))
        return np.stack([*(parts[name] for name in PARTS[:-1]), *more], axis=1)

    def weights(self, seen: Mask, folds: NDArray[np.generic], measured_s: Floats | None = None) -> Floats:
        """Return the weights of the terms by the rows that are seen."""
        own = self.clean.measured_s if measured_s is None else measured_s
        return part_weights(self.terms[seen], own[seen], _PRIOR, folds[seen])

    def left_out(self, seen: Mask, folds: NDArray[np.generic]) -> Interval:
        """Return the interval of rows of each fold by the others."""

        def predicted(known: Mask, asked: Mask) -> Floats:
            return np.asarray(self.terms[asked] @ self.weights(known, folds))

        apart, places = out_of_fold(folds.tolist(), seen, predicted)
        return Interval.of(apart, self.clean.measured_s[places])

    @cached_property
    def of_models(self) -> tuple[Mask, Floats]:
        """The rows of smaller models that are fitted, and the weights by them."""
        seen = (self.column("model") != _JUDGED) & self.near
        return seen, self.weights(seen, self.column("model"))

    def models(self) -> dict[str, Any]:
        """Judge 8B by factors of 1B and 3B."""
        measured, operations, terms = self.clean.measured_s, *_baselines(self.clean.rows)
        (seen, weights), folds = self.of_models, self.column("model")
        ours, interval = self.terms @ weights, self.left_out(seen, folds)
        shuffled = measured.copy()
        shuffled[seen] = np.random.default_rng(_SEED).permutation(measured[seen])
        permuted, rows = self.terms @ self.weights(seen, folds, shuffled), list[list[str]]()
        judged = folds == _JUDGED
        for title, asked in (("8B, within 3x of the best", judged & self.near), ("8B, all clean rows", judged)):
            name, own = ("1B and 3B, within 3x", title), measured[asked]
            ways = {
                "operations a second of the median row (trivial)": of_one(operations, measured, seen),
                "terms of 0 or more": of_terms(terms, measured, seen),
                "cdmpp, fitted to permuted seconds: must fail": permuted,
            }
            rows += [line(*name, way, seconds[asked], own) for way, seconds in ways.items()]
            rows.append(line(*name, _OURS, ours[asked], own, interval))
            rows.append(line("nothing", title, _OURS, self.plain_s[asked], own))
        told = ", ".join(f"{name} {one:.2g}" for name, one in zip(_TERMS, weights, strict=True))
        note = (
            "Llamas of 1B, 3B and 8B parameters under nanotron, sequences of 4,096, a million tokens a step, on 1 to "
            "64 nodes of eight H100. Clean rows ran, say as many examples as they should, and no other run of the "
            "same plan says otherwise. All parts of a step are those of `cdmpp plan --framework nanotron`; its rules "
            "are read from nanotron's branch of December 2024, with which the sweep was run: norms in one kernel, "
            "queries, keys and values laid out anew, sequence parallelism, 1F1B cut by products, buckets that are "
            "summed up during the last backward pass where states are whole, and else one sum of all gradients behind"
            " it. That branch times the third step, and it alone. Links are those of NVIDIA's own cluster: the "
            "source's are EFA, at a rate that nobody tells. Parts, and numbers of blocks and turns, have weights of 0"
            " or more, those of parts drawn to 1 and those of numbers to 0, as of Megatron-Bridge: "
            f"{told}. {self._huge()} Which terms there are, and that weights are drawn and far rows count less, was "
            "settled with the errors of all rows in sight; the rules of the source were not chosen by errors."
        )
        return {"title": "nanotron: 8B from 1B and 3B", "note": note, "commands": [_COMMAND], "columns": COLUMNS,
                "rows": rows}  # fmt: skip

    def _huge(self) -> str:
        """Say how much longer turns on 64 nodes take."""
        turns = self.column("micro_batches") + self.column("pipeline") - 1
        more = ((self.clean.measured_s - self.plain_s) / turns)[self.near & (self.column("nodes") == 64)]
        low, middle, high = np.quantile(more, (0.1, 0.5, 0.9))
        return (
            f"Turns on 64 nodes take {middle:.2f} s more than predicted without a fit, {low:.2f} to {high:.2f} s in 8 "
            f"of 10 of {len(more)} jobs, also where one turn is all: no kernel, launch or message of these sizes takes "
            "so long, and no setting of the source tells why."
        )

    def nodes(self) -> dict[str, Any]:
        """Judge more nodes by factors of up to 8."""
        nodes, measured = self.column("nodes"), self.clean.measured_s
        operations, terms = _baselines(self.clean.rows)
        seen, few = (nodes <= 8) & self.near, nodes <= 2
        ours, interval = self.terms @ self.weights(seen, few), self.left_out(seen, few)
        rows = list[list[str]]()
        for many in (16, 32, 64):
            asked, name = (nodes == many) & self.near, ("up to 8 nodes, within 3x", f"{many} nodes, within 3x")
            own = measured[asked]
            ways = {
                "operations a second of the median row (trivial)": of_one(operations, measured, seen),
                "terms of 0 or more": of_terms(terms, measured, seen),
            }
            rows += [line(*name, way, seconds[asked], own) for way, seconds in ways.items()]
            rows.append(line(*name, _OURS, ours[asked], own, interval))
            rows.append(line("nothing", name[1], _OURS, self.plain_s[asked], own))
        note = (
            "The interval of 80 % is that of rows on 1 to 8 nodes, 1 and 2 by 4 and 8 and the reverse: it covers what "
            "such a cluster does, and not the fault of the larger ones, of which no row of 8 nodes or fewer tells."
        )
        return {"title": "nanotron: more nodes", "note": note, "commands": [_COMMAND], "columns": COLUMNS,
                "rows": rows}  # fmt: skip

    def choices(self) -> dict[str, Any]:
        """Choose a plan of 8B for each number of nodes."""
        judged, (seen, weights) = self.column("model") == _JUDGED, self.of_models
        measured, (_, terms) = self.clean.measured_s, _baselines(self.clean.rows)
        ways = (
            ("terms of 0 or more", "1B and 3B", of_terms(terms, measured, seen)),
            (_OURS, "1B and 3B", self.terms @ weights),
            (_OURS, "nothing", self.plain_s),
        )
        nodes, rows = self.column("nodes"), list[list[str]]()
        for title, asked in (("within 3x of the best", judged & self.near), ("all clean", judged)):
            for way, fit, seconds in ways:
                found = Choice.of(nodes[asked].tolist(), seconds[asked], measured[asked])
                rows.append([title, way, fit, *found.cells])
        note = (
            "Of plans of 8B on as many nodes, the one predicted as fastest; ZeRO 0 and 1 among them. Among all clean "
            "ones are pipelines that stalled, which nothing tells beforehand: others of the same kind are the best."
        )
        return {
            "title": "nanotron: choosing a plan", "note": note, "commands": [_COMMAND],
            "columns": ["plans", "predicted by", "fitted on", "groups", "fastest, %", "within 5 %, %", "regret, %"],
            "rows": rows,
        }  # fmt: skip

    def causes(self) -> dict[str, Any]:
        """Say which plans of 8B carry the error."""
        asked = (self.column("model") == _JUDGED) & self.near
        measured = self.clean.measured_s
        off = self.terms @ self.of_models[1] / measured - 1
        slow = measured > 1.5 * self.best_s
        several, huge = self.column("pipeline") > 1, self.column("nodes") == 64
        wide = self.column("tensor") > 8
        kinds = {
            "64 nodes": huge,
            "several stages, over 1.5 times the best": several & slow & ~huge & ~wide,
            "several stages, others": several & ~slow & ~huge & ~wide,
            "tensor ranks on two nodes or more": wide & ~huge,
            "one stage, over 1.5 times the best": ~several & slow & ~huge & ~wide,
            "one stage, others": ~several & ~slow & ~huge & ~wide,
        }
        rows = []
        for name, kind in kinds.items():
            own = off[kind & asked]
            if len(own):
                points = 100 * np.abs(own).sum() / asked.sum()
                rows.append([name, str(len(own)), f"{points:.1f}", f"{100 * own.mean():+.1f}",
                             f"{100 * np.median(np.abs(own)):.1f}"])  # fmt: skip
        note = (
            "Plans of 8B within three times the best. Pipelines of some jobs take two to three times as long as others "
            "of about the same messages, micro-batches and memory: 16 nodes, 4 tensor ranks, 2 stages take 3.9 s with "
            "micro-batches of 4, 2.4 s with 2, and 1.9 s with 8. Repeats of one plan differ by 5 to 25 % in the source."
        )
        return {
            "title": "nanotron: what carries the error", "note": note, "commands": [_COMMAND],
            "columns": ["plans", "rows", "points of MAPE", "mean, %", "median, %"], "rows": rows,
        }  # fmt: skip


def _baselines(rows: tuple[Row, ...]) -> tuple[Floats, Floats]:
    """Operations of each row by GPU, and terms of a fitted baseline."""
    amounts, found = [], []
    for row in rows:
        shape = row.shape
        tokens = row.micro_batch * row.micro_batches * row.data * shape.sequence
        block = 4 * shape.hidden**2 + 3 * shape.inner * shape.hidden
        blocks = 6 * tokens * shape.layers * (block + shape.sequence * shape.hidden) / row.gpus
        head = 6 * tokens * shape.vocabulary * shape.hidden / row.gpus
        slots = row.micro_batches + row.pipeline - 1
        values = row.micro_batch * shape.sequence * shape.hidden
        own = (block * shape.layers / row.pipeline + shape.vocabulary * shape.hidden) / row.tensor
        launches = slots * shape.layers / row.pipeline
        amounts.append(blocks + head)
        found.append([
            blocks * slots / row.micro_batches, head, head * row.pipeline, own * (row.data > 1), own,
            values * launches * (row.tensor > 1), values * launches * (row.tensor > 8),
            values * slots * (row.pipeline > 1), launches, launches * (row.tensor > 1), slots,
            slots * (row.pipeline > 1), slots * (row.nodes > 32), 1.0,
        ])  # fmt: skip
    return np.array(amounts), np.array(found)
