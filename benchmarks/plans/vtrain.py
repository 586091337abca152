"""vTrain's measured steps of GPT under Megatron-DeepSpeed on up to 512 A100, beside what is predicted for them."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.plans.framework_factors import Factors, fitted, text_of
from benchmarks.plans.large_scores import (
    COLUMNS,
    Choice,
    Floats,
    Interval,
    Mask,
    line,
    of_one,
    of_terms,
    out_of_fold,
)
from benchmarks.plans.vtrain_jobs import MEGATRON_DEEPSPEED, Jobs, Row, jobs_of, read
from benchmarks.plans.vtrain_kinds import Kinds

_COMMAND = "python -m benchmarks.plans vtrain --data FOLDER --publish"
_FITTED = ("compute", "dispatch", "unhidden", "inside", "collective_s", "message_s", "step_s")
_OURS, _BY_KIND = "**cdmpp**", "**cdmpp, a factor for each kind of block**"
_SEED = 0
_DECLARED = Factors.as_declared(MEGATRON_DEEPSPEED.host)
"""A user of ``cdmpp plan --framework megatron`` gets this."""
_PLAIN = replace(_DECLARED, dispatch=1.0)
"""The same without Megatron's Python."""
_LARGE = "a100-80gb"
"""Weights, gradients and states of 3.6 billion parameters, which one GPU of these rows holds, are 58 GB."""


def tables(data: Path) -> list[dict[str, Any]]:
    """Judge plans on the folder ``vtrain`` of ``data``."""
    folder = data / "vtrain"
    single, multi = read(folder / "single_node.csv"), read(folder / "multi_node.csv")
    judged = _Judged(jobs_of(single), jobs_of(multi, recomputes=True, device=_LARGE))
    return [judged.splits(), judged.choices(), judged.causes(), judged.large()]


@dataclass(frozen=True)
class _Split:
    name: tuple[str, str]
    seen: Mask
    asked: Mask
    folds: tuple[Hashable, ...]
    """Rows of other folds predict those from which the interval is read."""


@dataclass(frozen=True)
class _Judged:
    single: Jobs
    multi: Jobs

    def column(self, name: str) -> Floats:
        return np.array([getattr(row, name) for row in self.single.rows])

    @cached_property
    def cuts(self) -> list[_Split]:
        gpus, stages = self.column("gpus"), self.column("pipeline")
        hidden = np.array([row.shape.hidden for row in self.single.rows])
        few = gpus < 8
        by_gpus = tuple(gpus.tolist())
        by_tensor = tuple(self.column("tensor").tolist())
        return [
            _Split(("up to 4 GPUs", "8 GPUs"), few, ~few, by_gpus),
            _Split(("hidden 1024, up to 4 GPUs", "hidden 2048, up to 4 GPUs"), few & (hidden == 1024),
                   few & (hidden == 2048), by_tensor),
            _Split(("one stage", "several stages"), stages == 1, stages > 1, by_gpus),
        ]  # fmt: skip

    @cached_property
    def thinned(self) -> Mask:
        """Rows that fits look at: of each plan that with the fewest layers and the smallest batch."""
        found, known = np.zeros(len(self.single.rows), bool), set[Hashable]()
        order = sorted(range(len(found)), key=lambda one: (self.single.rows[one].shape.layers, one))
        for place in sorted(order, key=lambda one: self.single.rows[one].global_batch):
            row = self.single.rows[place]
            key = row.shape.hidden, row.tensor, row.data, row.pipeline, row.micro_batch
            found[place] = key not in known
            known.add(key)
        return found

    def factors(self, seen: Mask) -> Factors:
        jobs = self.single.where(seen & self.thinned)
        return fitted(jobs.seconds, jobs.measured_s, _FITTED)

    def predicted(self, seen: Mask, asked: Mask) -> Floats:
        return self.single.where(asked).seconds(self.factors(seen))

    def splits(self) -> dict[str, Any]:
        """Judge the splits of one node, and the baselines."""
        rows, told = list[list[str]](), list[str]()
        measured, operations, terms = self.single.measured_s, *_baselines(self.single.rows)
        for cut in self.cuts:
            factors = self.factors(cut.seen)
            ours, own = self.single.where(cut.asked).seconds(factors), measured[cut.asked]
            apart, places = out_of_fold(cut.folds, cut.seen, self.predicted)
            interval = Interval.of(apart, measured[places])
            told.append(f"{cut.name[0]}: {text_of(factors, _FITTED)}")
            shuffled = measured.copy()
            shuffled[cut.seen] = np.random.default_rng(_SEED).permutation(measured[cut.seen])
            jobs = self.single.where(cut.seen)
            permuted = fitted(jobs.seconds, shuffled[cut.seen], _FITTED)
            ways = {
                "operations a second of the median row (trivial)": of_one(operations, measured, cut.seen)[cut.asked],
                "nine terms of 0 or more": of_terms(terms, measured, cut.seen)[cut.asked],
                "cdmpp, fitted to permuted seconds: must fail": self.single.where(cut.asked).seconds(permuted),
            }
            rows += [line(*cut.name, way, seconds, own) for way, seconds in ways.items()]
            rows.append(line(*cut.name, _OURS, ours, own, interval))
        nothing = ("no iteration time", "one node")
        rows.append(line(*nothing, "cdmpp, PyTorch's host only", self.single.seconds(_PLAIN), measured))
        rows.append(line(*nothing, _OURS, self.single.seconds(_DECLARED), measured))
        known = self.kinds.known(np.ones(len(measured), bool), drawn=0)
        rows.append(
            line("each kind of block", "the same rows", "bound: cdmpp, the time of a block known", known, measured)
        )
        note = (
            "Training steps of GPT under Megatron-DeepSpeed on one node of A100, 1,080 rows, two widths, 12 to 24 "
            "layers; vTrain's authors print 8.4 %, from kernels that they profile on the target. Kernels and their "
            "dispatch are those of the shipped model, which saw no product of halves on an A100; exchanges, 1F1B and "
            "its bubble are those of the product. Precision and vocabulary are not told: halves, and the 50,257 "
            "entries of GPT-2, padded as Megatron does. All seconds are those of `cdmpp plan --framework megatron`: "
            "its modules, divided by the strategies of the product, its rules, its host. No iteration time: the "
            "host's Python takes 1.8 times as long as PyTorch's, measured on a CPU with Megatron-core "
            "(`benchmarks.plans.megatron_host`); that this was looked for, and by which modules, was decided with a "
            "bias of -21 % in sight, the number was not. What PyTorch's host takes to dispatch an op, and the bound "
            "of products of halves where none was measured, were settled with rows of this table and of MPT's in "
            "sight. Seven factors are fitted to rows that are not judged, of each plan that with the fewest layers "
            "and the smallest batch, with relative errors. What the factors are was settled while "
            "the errors of all rows were in sight. The interval of 80 % is that of rows predicted by others of those "
            "fitted on. Factors: " + "; ".join(told) + "."
        )
        return {
            "title": "vTrain: one node", "note": note, "commands": [_COMMAND], "columns": COLUMNS, "rows": rows,
        }  # fmt: skip

    @cached_property
    def left_out(self) -> Floats:
        """Seconds of each row by factors of rows on other numbers of GPUs."""
        everything = np.ones(len(self.single.rows), bool)
        seconds, places = out_of_fold(self.column("gpus").tolist(), everything, self.predicted)
        found = np.empty(len(places))
        found[places] = seconds
        return found

    def choices(self) -> dict[str, Any]:
        """Choose plans."""
        groups = [(row.gpus, row.global_batch, row.shape) for row in self.single.rows]
        _, terms = _baselines(self.single.rows)
        everything = np.ones(len(groups), bool)
        measured = self.single.measured_s
        fit = of_terms(terms, measured, everything)
        rows = [
            ["nine terms of 0 or more", "the same rows", *Choice.of(groups, fit, measured).cells],
            [_OURS, "other numbers of GPUs", *Choice.of(groups, self.left_out, measured).cells],
            [_OURS, "no iteration time", *Choice.of(groups, self.single.seconds(_DECLARED), measured).cells],
            *(
                [_BY_KIND, seen, *Choice.of(groups, self.kinds.left_out(folds), measured).cells]
                for seen, folds in (
                    ("other numbers of GPUs", self.column("gpus")),
                    ("other numbers of layers", np.array([row.shape.layers for row in self.single.rows])),
                )
            ),
            [
                "bound: no block faster for more work",
                "the same rows",
                *Choice.of(groups, measured * self.kinds.orderly_factors, measured).cells,
            ],
            [
                "bound: cdmpp, the time of a block known",
                "the same rows",
                *Choice.of(groups, self.kinds.known(everything, drawn=0), measured).cells,
            ],
        ]
        note = (
            "Groups of plans for as many GPUs, examples a step, and one network; the plan predicted as fastest. Two "
            "bounds say what the table itself allows. The first has the measured seconds of every row, but for the "
            "blocks: of one width and as many tensor ranks, a block of twice the examples takes no less time, nor does "
            "a wider one of as many examples; of all such times those nearest to the measured ones. The second is the "
            "prediction with one factor for each kind of block (width, tensor ranks, examples), from the same rows: "
            "what is left is all that schedules, exchanges of gradients and updates get wrong."
            " The lines before them take such factors, drawn to 1 by one row more, from other rows alone: of 8 "
            "tensor ranks no other number of GPUs has any. That rows of a kind are off alike was seen with the "
            "errors of all rows in sight."
        )
        return {
            "title": "vTrain: choosing a plan", "note": note, "commands": [_COMMAND],
            "columns": ["predicted by", "fitted on", "groups", "fastest, %", "within 5 %, %", "regret, %"],
            "rows": rows,
        }  # fmt: skip

    @cached_property
    def kinds(self) -> Kinds:
        """The kinds of block, by predictions without a fit."""
        return Kinds(self.single.rows, self.single.measured_s, self.single.seconds(_DECLARED))

    def causes(self) -> dict[str, Any]:
        """Say which rows carry the error."""
        off = self.left_out / self.single.measured_s - 1
        rows = []
        for kind, places in sorted(self.kinds.places.items(), key=lambda pair: -float(np.abs(off[pair[1]]).sum())):
            own, block_ms = off[places], self.kinds.block_ms(kind)
            points = 100 * np.abs(own).sum() / len(off)
            rows.append(
                [*map(str, kind), str(len(places)), f"{points:.2f}", f"{100 * own.mean():+.1f}",
                 f"{100 * own.std():.1f}", "" if block_ms is None else f"{block_ms:.2f}"]
            )  # fmt: skip
        note = (
            "Rows of one width, tensor degree and micro-batch are off alike, whatever their stages, replicas, layers "
            "and micro-batches: what is wrong is the time of a block, not schedules or the exchange of gradients. The "
            "measured time of a block, from rows of one stage that differ in layers and micro-batches, is between "
            "2.7 and 5.0 ms where its host decides, with no order in it: 4 tensor ranks of width 2048 take 2.99 ms "
            "with one example and 2.75 ms with two, 8 ranks of width 1024 take 5.0 ms with one and 3.7 ms with four. "
            "Nothing in the source tells why, so that plans with tensor ranks cannot be told apart. Factors of rows "
            "on other numbers of GPUs."
        )
        return {
            "title": "vTrain: what carries the error", "note": note, "commands": [_COMMAND],
            "columns": ["hidden", "tensor", "micro-batch", "rows", "points of MAPE", "mean, %", "spread, %",
                        "measured ms of a block"],
            "rows": rows,
        }  # fmt: skip

    def large(self) -> dict[str, Any]:
        """Judge the jobs on several nodes, of which no row is fitted."""
        measured = self.multi.measured_s
        everything = np.ones(len(self.single.rows), bool)
        # boards and links are those of other machines: what the host takes carries over
        ours = replace(self.factors(everything), compute=1.0, inside=1.0, between=1.0)
        seconds = self.multi.seconds(ours)
        declared = self.multi.seconds(_DECLARED)
        kinds = [np.array(places) for places in self.kinds.places.values()]
        predicted, seen_s = (np.array([values[own].sum() for own in kinds])
                             for values in (self.left_out, self.single.measured_s))  # fmt: skip
        interval = Interval.of(predicted, seen_s)
        both = (*self.single.rows, *self.multi.rows)
        all_s = np.concatenate([self.single.measured_s, measured])
        seen = np.arange(len(both)) < len(self.single.rows)
        operations, terms = _baselines(both)
        name = ("one node", "64 to 512 GPUs")
        rows = [
            line(*name, "operations a second of the median row (trivial)", of_one(operations, all_s, seen)[~seen],
                 measured),
            line(*name, "nine terms of 0 or more", of_terms(terms, all_s, seen)[~seen], measured),
            line(*name, _OURS, seconds, measured, interval),
            line("no iteration time", name[1], _OURS, declared, measured),
        ]  # fmt: skip
        for tensor in (1, 2, 4, 8, 16):
            own = np.array([row.tensor == tensor for row in self.multi.rows])
            rows.append(line(name[0], f"of these, {tensor} tensor ranks", _OURS, seconds[own], measured[own], interval))
        note = (
            "The same framework on 64 to 512 A100 of 80 GB, 3.6 to 39.1 billion parameters, sequences of 2,048; vTrain "
            "prints 14.7 %. No row is fitted. Blocks run forward again in the backward pass: without that, neither "
            "their memory nor their seconds fit. That, and what carries over, was settled with these errors in sight. "
            "Boards and links are not those of the one node: kernels and exchanges are as predicted, "
            "and only what the host takes is carried over. Rows of 2 and 4 tensor ranks in several "
            "stages take up to 1.7 times as long as predicted, those of 1 and 8 ranks do not: nothing in the source "
            "tells them apart. The interval is that of one node, one error for each kind of the table above."
        )
        return {
            "title": "vTrain: several nodes", "note": note, "commands": [_COMMAND], "columns": COLUMNS, "rows": rows,
        }  # fmt: skip


def _baselines(rows: tuple[Row, ...]) -> tuple[Floats, Floats]:
    """Operations of each row by GPU, and the nine terms of the fitted baseline."""
    found, amounts = [], []
    for row in rows:
        hidden, layers, sequence = row.shape.hidden, row.shape.layers, row.shape.sequence
        tokens, recomputed = row.global_batch * sequence, row.gpus > 8
        passes = 8 if recomputed else 6
        blocks = passes * tokens * layers * (12 * hidden**2 + sequence * hidden) / row.gpus
        vocabulary = 6 * tokens * hidden * 51200 / row.gpus
        slots = row.micro_batches + row.pipeline - 1
        bubble = slots / row.micro_batches
        values = row.micro_batch * sequence * hidden
        own = (12 * layers * hidden**2 / row.pipeline + 51200 * hidden) / row.tensor
        launches = slots * layers / row.pipeline
        amounts.append(blocks + vocabulary)
        found.append([
            blocks * bubble, vocabulary, values * launches * (row.tensor > 1) * (row.tensor - 1) / row.tensor,
            own * (row.data - 1) / row.data, values * slots * (row.pipeline > 1), own, launches,
            launches * (row.tensor > 1), 1.0,
        ])  # fmt: skip
    return np.array(amounts), np.array(found)
