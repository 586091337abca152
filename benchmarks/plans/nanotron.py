"""nanotron's sweep of Llamas on 8 to 512 H100, beside what is predicted for them."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.plans.framework_jobs import PARTS
from benchmarks.plans.large_scores import COLUMNS, Choice, Floats, Interval, Mask, line, of_one, of_terms, out_of_fold
from benchmarks.plans.nanotron_jobs import CHECK_S, POLLED_S, Jobs, Row, jobs_of, read
from benchmarks.plans.part_weights import part_weights
from cdmpp.plans.frameworks import NANOTRON

_COMMAND = "python -m benchmarks.plans nanotron --data FOLDER --publish"
_TERMS = (*PARTS, "blocks by tensor ranks on several nodes", "replicas on several nodes", "step")
"""What a row's seconds are made of: parts that are predicted, then numbers each of which takes so many seconds."""
_PRIOR = np.array([1.0] * len(PARTS) + [0.0] * (len(_TERMS) - len(PARTS)))
_OURS = "**cdmpp**"
_NEAR, _JUDGED, _SEED, _NODE = 3.0, "8B", 0, 8
_LATE_S = 0.3
"""A turn that takes so much longer waits for messages in a way of its own: other pipelines are off by less."""


def tables(data: Path) -> list[dict[str, Any]]:
    """Judge plans on the folder ``nanotron-sweep`` of ``data``."""
    rows = read(data / "nanotron-sweep" / "sweep.parquet")
    judged = _Judged(jobs_of([row for row in rows if row.clean and row.is_cut and row.model != "80B"]))
    return [judged.models(), judged.nodes(), judged.choices(), judged.chosen(), judged.causes()]


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
        return self.terms @ _PRIOR

    @cached_property
    def terms(self) -> Floats:
        """(rows, ``_TERMS``)."""
        turns = self.column("micro_batches") + self.column("pipeline") - 1
        blocks = turns * np.array([row.shape.layers for row in self.clean.rows]) / self.column("pipeline")
        far = blocks * self.column("tensor") * (self.column("tensor") > _NODE)
        more = (far, self.column("data") * (self.column("nodes") > 1), np.ones(len(turns)))
        return np.concatenate([self.clean.parts_as_run(), np.stack(more, axis=1)], axis=1)

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

    def of_models(self, seen: Mask) -> tuple[Mask, Floats]:
        """Return the rows of smaller models among those seen, and the weights by them."""
        own = (self.column("model") != _JUDGED) & seen
        return own, self.weights(own, self.column("model"))

    def models(self) -> dict[str, Any]:
        """Judge 8B by factors of 1B and 3B."""
        measured, operations, terms = self.clean.measured_s, *_baselines(self.clean.rows)
        folds, rows, found = self.column("model"), list[list[str]](), list[Floats]()
        judged = folds == _JUDGED
        kinds = (("within 3x of the best", self.near), ("all clean rows", np.ones(len(folds), np.bool_)))
        for title, kind in kinds:
            seen, weights = self.of_models(kind)
            found.append(weights)
            shuffled = measured.copy()
            shuffled[seen] = np.random.default_rng(_SEED).permutation(measured[seen])
            permuted = self.terms @ self.weights(seen, folds, shuffled)
            asked, name = judged & kind, (f"1B and 3B, {title}", f"8B, {title}")
            own, ours, interval = measured[asked], self.terms @ weights, self.left_out(seen, folds)
            ways = {
                "operations a second of the median row (trivial)": of_one(operations, measured, seen),
                "terms of 0 or more": of_terms(terms, measured, seen),
                "cdmpp, fitted to permuted seconds: must fail": permuted,
            }
            rows += [line(*name, way, seconds[asked], own) for way, seconds in ways.items()]
            rows.append(line(*name, _OURS, ours[asked], own, interval))
            rows.append(line("nothing", name[1], _OURS, self.plain_s[asked], own))
        told = "; ".join(
            ", ".join(f"{name} {one:.2g}" for name, one in zip(_TERMS, weights, strict=True)) for weights in found
        )
        note = (
            "Llamas of 1B, 3B and 8B parameters under nanotron, sequences of 4,096, a million tokens a step, on 1 to "
            "64 nodes of eight H100. Clean rows ran, say as many examples as they should, and no other run of the "
            "same plan says otherwise. All parts of a step are those of `cdmpp plan --framework nanotron`; its rules "
            "are read from nanotron's branch of December 2024: norms in one kernel, queries, keys and values laid out "
            "anew, sequence parallelism with the sequence first, 1F1B cut by products, buckets that are summed up "
            "during the last backward pass where states are whole, and else one sum of all gradients behind it. That "
            "branch times the third step, and it alone. Links are those of NVIDIA's own cluster: the source's are EFA, "
            f"at a rate that nobody tells. {self._hosts()} Parts, and numbers of exchanges and replicas on several "
            "nodes, have weights of 0 or more, those of parts drawn to 1 and those of numbers to 0, as of "
            f"Megatron-Bridge: {told}. Hosts, cuts and terms were chosen by rows of 1B and 3B, each of the two "
            "predicted by the other; that weights are drawn and far rows count less was settled earlier, with the "
            "errors of all rows in sight."
        )
        return {"title": "nanotron: 8B from 1B and 3B", "note": note, "commands": [_COMMAND], "columns": COLUMNS,
                "rows": rows}  # fmt: skip

    def _hosts(self) -> str:
        """Say what hosts take, and what rows of smaller models say of it."""
        own = (self.column("model") != _JUDGED) & (self.column("pipeline") > 1)
        turns = self.column("micro_batches") + self.column("pipeline") - 1
        two, more = self.column("pipeline") == 2, self.column("pipeline") > 2
        plain_s = self.clean.unpolled_s()
        late = [np.median(((self.clean.measured_s - plain_s) / turns)[own & (self.column("nodes") == 64) & one])
                for one in (two, more)]  # fmt: skip
        return (
            "Three things are read from rows of 1B and 3B. Where small micro-batches let the host decide, it takes "
            f"{NANOTRON.host.dispatch:g} times PyTorch's time. Tensor ranks of pipelines on several nodes take longer "
            "by as much for each exchange and rank, also inside a node and whatever is exchanged: so do hosts with "
            "TORCH_DISTRIBUTED_DEBUG=DETAIL, which a later version of the sweep's own script sets; the number, "
            f"{1e6 * CHECK_S:.0f} us, is from these rows. Pipelines on 64 nodes are as late as nanotron's code of 27 "
            "December 2024, which asks every tenth of a second whether the description of a message is there: turns "
            f"of two stages take {late[0]:.2f} s more, those of others {late[1]:.2f} s, of which {POLLED_S:g} s for "
            "each message are taken. Some jobs on fewer nodes are as late, and no column tells which."
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
        note = "The interval of 80 % is that of rows on 1 to 8 nodes, 1 and 2 by 4 and 8 and the reverse."
        return {"title": "nanotron: more nodes", "note": note, "commands": [_COMMAND], "columns": COLUMNS,
                "rows": rows}  # fmt: skip

    def choices(self) -> dict[str, Any]:
        """Choose a plan of 8B for each number of nodes."""
        judged, (seen, weights) = self.column("model") == _JUDGED, self.of_models(self.near)
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

    def chosen(self) -> dict[str, Any]:
        """Say which plans of 8B are chosen, and which are the fastest."""
        asked, weights = (self.column("model") == _JUDGED) & self.near, self.of_models(self.near)[1]
        nodes, measured, ours, rows = (
            self.column("nodes"),
            self.clean.measured_s,
            self.terms @ weights,
            list[list[str]](),
        )
        for many in dict.fromkeys(sorted(nodes[asked].tolist())):
            own = np.flatnonzero(asked & (nodes == many))
            picked, best = own[ours[own].argmin()], own[measured[own].argmin()]
            cells = [str(many), str(len(own))]
            for place in (picked, best):
                cells += [_plan(self.clean.rows[place]), f"{measured[place]:.3f}", f"{ours[place]:.3f}"]
            rows.append([*cells, f"{100 * (measured[picked] / measured[best] - 1):.1f}"])
        note = (
            "Of plans within three times the best, fitted on 1B and 3B: data, tensor and pipeline ranks, examples of a "
            "micro-batch by micro-batches, and the stage of ZeRO."
        )
        return {
            "title": "nanotron: plans chosen", "note": note, "commands": [_COMMAND],
            "columns": ["nodes", "plans", "chosen", "measured s", "predicted s", "fastest", "measured s",
                        "predicted s", "regret, %"], "rows": rows,
        }  # fmt: skip

    def causes(self) -> dict[str, Any]:
        """Say which plans of 8B carry the error, and what their steps are spent on."""
        several, huge = self.column("pipeline") > 1, self.column("nodes") == 64
        wide, turns = self.column("tensor") > _NODE, self.column("micro_batches") + self.column("pipeline") - 1
        rows, all_rows = list[list[str]](), np.ones(len(several), np.bool_)
        for title, seen in (("within 3x of the best", self.near), ("all clean rows", all_rows)):
            asked = (self.column("model") == _JUDGED) & seen
            weights = self.of_models(seen)[1]
            spent = self.terms * weights
            ours, measured = spent.sum(axis=1), self.clean.measured_s
            off, late = ours / measured - 1, several & ~huge & ((measured - ours) / turns > _LATE_S)
            kinds = {
                "several stages, late as with polled messages": late,
                "64 nodes, several stages": huge & several,
                "64 nodes, one stage": huge & ~several,
                "tensor ranks on several nodes": wide & ~huge & ~late,
                "several stages, others": several & ~late & ~huge & ~wide,
                "one stage, others": ~several & ~huge & ~wide,
            }
            for name, kind in kinds.items():
                if (kind & asked).any():
                    own = off[kind & asked]
                    shares = spent[kind & asked].sum(axis=0) / spent[kind & asked].sum()
                    rows.append([
                        title, name, str(len(own)), f"{100 * np.abs(own).sum() / asked.sum():.1f}",
                        f"{100 * own.mean():+.1f}", f"{100 * np.median(np.abs(own)):.1f}",
                        *(f"{100 * one:.0f}" for one in shares),
                    ])  # fmt: skip
        note = (
            "Points of the mean error, and what the predicted steps of these rows are spent on. Late are pipelines "
            f"of up to 32 nodes whose turns take more than {_LATE_S:g} s longer than predicted: others of about the "
            "same messages, micro-batches and memory do not, so that which of them are cannot be told beforehand. "
            "Repeats of one plan differ by 5 to 25 % in the source."
        )
        return {
            "title": "nanotron: what carries the error", "note": note, "commands": [_COMMAND],
            "columns": ["plans", "kind", "rows", "points of MAPE", "mean, %", "median, %",
                        *(f"{name}, %" for name in _TERMS)], "rows": rows,
        }  # fmt: skip


def _plan(row: Row) -> str:
    return (
        f"dp {row.data}, tp {row.tensor}, pp {row.pipeline}, {row.micro_batch} x {row.micro_batches}, ZeRO {row.zero}"
    )


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
