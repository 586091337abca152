"""Megatron-Bridge's published throughput, one release at a time, beside what is predicted for it.

No row of the judged release is in any fit. Rows that cannot be answered say why.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.plans.large_scores import COLUMNS, Floats, Interval, Mask, line, of_one, of_terms
from benchmarks.plans.megatron_bridge_data import MODELS, Row, rows
from benchmarks.plans.megatron_bridge_fit import fitted_s, nominal_s, parts_of, text_of
from cdmpp import devices

_OURS = "**cdmpp**"
_COMMAND = "python -m benchmarks.plans megatron_bridge --data FOLDER --publish"
_OTHERS = "other releases"
_TRIVIAL = "operations a second of the median row, by system and precision (trivial)"


def tables(data: Path) -> list[dict[str, Any]]:
    """Judge plans on the folder ``megatron-bridge`` of ``data``."""
    every = rows(data / "megatron-bridge")
    answered = [row for row in every if not row.why_not]
    groups = [Judged([row for row in answered if row.is_dense is one]) for one in (True, False)]
    return [_scores(*groups), _by_release(*groups), _by_job(*groups), _others([row for row in every if row.why_not])]


@dataclass(frozen=True)
class Judged:
    """Rows of one kind of model, and what is predicted for them."""

    rows: Sequence[Row]

    @cached_property
    def measured_s(self) -> Floats:
        return np.array([row.step_s for row in self.rows])

    @cached_property
    def releases(self) -> np.ndarray:
        return np.array([row.release for row in self.rows])

    @cached_property
    def models(self) -> np.ndarray:
        return np.array([row.plan.model for row in self.rows])

    @cached_property
    def parts(self) -> Floats:
        """(rows, parts) seconds before any fit."""
        return parts_of(self.rows)

    def left_out(self, folds: Sequence[np.ndarray], predict: Callable[[Mask, Mask], Floats]) -> Floats:
        """Predict rows by those that share none of ``folds`` with them."""
        found = np.full(len(self.rows), np.nan)
        for key in dict.fromkeys(zip(*folds, strict=True)):
            own = np.all([fold == one for fold, one in zip(folds, key, strict=True)], axis=0)
            seen = np.all([fold != one for fold, one in zip(folds, key, strict=True)], axis=0)
            found[own] = predict(seen, own)
        return found

    def ours(self, seen: Mask, judged: Mask) -> Floats:
        """Predict rows by factors of those that are seen."""
        return fitted_s(self.parts, self.measured_s, self.releases, seen)[judged]

    @cached_property
    def predicted_s(self) -> Floats:
        return self.left_out([self.releases], self.ours)

    @cached_property
    def model_out_s(self) -> Floats:
        return self.left_out([self.releases, self.models], self.ours)

    @cached_property
    def covered(self) -> Mask:
        """Which rows are within the interval of their release: of rows predicted by others of those fitted on."""
        found = np.zeros(len(self.rows), bool)
        for one in dict.fromkeys(self.releases.tolist()):
            own, seen = self.releases == one, self.releases != one
            inner = Judged([row for row, is_seen in zip(self.rows, seen, strict=True) if is_seen])
            interval = Interval.of(inner.predicted_s, inner.measured_s)
            ratio = self.measured_s[own] / self.predicted_s[own]
            found[own] = (interval.low <= ratio) & (ratio <= interval.high)
        return found

    def spread(self, chosen: Mask) -> float:
        """Return by how much the seconds of one plan differ between releases, by their mean, on average over plans."""
        each = dict[object, list[float]]()
        for row, is_own in zip(self.rows, chosen, strict=True):
            if is_own:
                each.setdefault(row.plan, []).append(row.step_s)
        return float(np.mean([np.ptp(one) / np.mean(one) for one in each.values()]))

    @cached_property
    def flops(self) -> Floats:
        return np.array([row.plan.global_batch * row.plan.sequence * row.gflop / row.plan.gpus for row in self.rows])

    def constant_s(self, seen: Mask, judged: Mask) -> Floats:
        """Seconds at the median rate of the rows of the same system and precision, or system, that are seen."""
        found = np.empty(len(self.rows))
        for place in np.flatnonzero(judged):
            row = self.rows[place]
            alike = [one.plan.system == row.plan.system for one in self.rows]
            exact = np.array([
                a and one.plan.precision == row.plan.precision for a, one in zip(alike, self.rows, strict=True)
            ])  # fmt: skip
            own = next(one for one in (seen & exact, seen & np.array(alike), seen) if one.any())
            found[place] = of_one(self.flops, self.measured_s, own)[place]
        return found[judged]

    def terms_s(self, seen: Mask, judged: Mask) -> Floats:
        """Seconds by terms of 0 or more: operations, tokens, sizes of experts' rows, passes of blocks, a constant."""
        found = list[list[float]]()
        for row, flops in zip(self.rows, self.flops, strict=True):
            plan, model = row.plan, MODELS[row.plan.model]
            device = devices.get({"H100": "h100", "B200": "b200", "GB200": "gb200", "GB300": "gb300"}[plan.system])
            width = float(model.config["hidden_size"])
            faster = 1.0 if plan.precision == "bf16" else 2.0
            work_s = flops * 1e-3 / (faster * (device.spec["fp16_matrix_tflops"] or 1.0))
            bubble = 1 + (plan.pp - 1) / (plan.vp * plan.micro_batches)
            tokens = plan.global_batch * plan.sequence / plan.gpus * model.layers * width * 1e-12
            chosen = float(model.config.get("num_experts_per_tok", 0))
            passes = model.layers / plan.pp * plan.micro_batches * 1e-3
            moved = tokens / ((device.spec["bandwidth_gbps"] or 1.0) * 1e-3)
            found.append([work_s * bubble, moved, moved * chosen, moved * (plan.tp > 1), passes, 1.0])
        return of_terms(np.array(found), self.measured_s, seen)[judged]

    def same_plan_s(self) -> Floats:
        """Seconds of the same plan in the nearest other release; NaN: none has it."""
        order = sorted({*self.releases.tolist()})
        found = np.full(len(self.rows), np.nan)
        for place, row in enumerate(self.rows):
            others = [one for one in self.rows if one.plan == row.plan and one.release != row.release]
            near = {abs(order.index(one.release) - order.index(row.release)): one.step_s for one in others}
            if near:
                found[place] = near[min(near)]
        return found


def _scores(dense: Judged, experts: Judged) -> dict[str, Any]:
    table = list[list[str]]()
    for title, own in (("dense", dense), ("experts", experts)):
        measured = own.measured_s
        trivial, terms = (own.left_out([own.releases], one) for one in (own.constant_s, own.terms_s))
        same = own.same_plan_s()
        known = np.isfinite(same)
        table += [
            line(_OTHERS, title, _TRIVIAL, trivial, measured),
            line(_OTHERS, title, "six terms of 0 or more", terms, measured),
            line(_OTHERS, f"{title}, plans of several releases", "the same plan in the nearest other release",
                 same[known], measured[known]),
            line(_OTHERS, f"{title}, plans of several releases", _OURS, own.predicted_s[known], measured[known]),
            line("nothing", title, _OURS, nominal_s(own.parts), measured),
            [*line(_OTHERS, title, _OURS, own.predicted_s, measured)[:-1], f"{100 * own.covered.mean():.0f}"],
            line("other releases and other models", title, _OURS, own.model_out_s, measured),
            line(f"permuted seconds of {_OTHERS}", title, "cdmpp: must fail", _permuted(own), measured),
        ]  # fmt: skip
    factors = "; ".join(
        f"{title}: {text_of(own.parts, own.measured_s, own.releases)}"
        for title, own in (("dense", dense), ("experts", experts))
    )
    note = (
        "Steps of Llama 3 and of models with experts on 8 to 1,024 H100, B200, GB200 and GB300, as NVIDIA publishes"
        " them for releases of Megatron-Bridge; one release at a time is judged by factors of the others. Kernels "
        "are those of the shipped model, of which B200, GB200 and GB300 are answered by their datasheets, those of "
        "GB200 and GB300 as they were remembered and not read again; products are in the float8 of Transformer "
        "Engine, on an H100 at the clock that its power sustains. Plans are the product's own: tensor ranks by "
        "Megatron's rules with sequence parallelism and exchanges beside products, experts apart on all tensor "
        "ranks (expert tensor parallelism of 1), ring attention, interleaved 1F1B, parameters gathered and "
        "gradients scattered once a step; times are those of the closed form. Kernels run call by call, without "
        "fusion and without recomputing: a factor of other kernels stands for that. Factors are of 0 or more, drawn"
        " to 1, by how much is chosen by leaving out releases in sight. Recipes from 26.06 on record whole "
        "iterations of experts as CUDA graphs and fuse their products: these have a factor of their own; hosts of "
        "H100 and B200 take seconds a block of experts. That, and that dense models and those with experts are "
        "fitted apart, was settled with these errors in sight. Most plans come again in several releases, so that a"
        " release is easy to tell from its neighbours, and the same plan in the nearest one is the best of all "
        "predictions where there is one: other models are the harder test. Of dense models operations a second are "
        "nearly constant. Factors of all rows: "
        f"{factors}."
    )
    return {"title": "Megatron-Bridge", "note": note, "commands": [_COMMAND], "columns": COLUMNS, "rows": table}


def _permuted(own: Judged) -> Floats:
    order = np.random.default_rng(0).permutation(len(own.rows))
    shuffled = own.measured_s[order]

    def predict(seen: Mask, judged: Mask) -> Floats:
        return fitted_s(own.parts, shuffled, own.releases, seen)[judged]

    return own.left_out([own.releases], predict)


def _by_release(dense: Judged, experts: Judged) -> dict[str, Any]:
    table = list[list[str]]()
    for title, own in (("dense", dense), ("experts", experts)):
        for one in sorted({*own.releases.tolist()}):
            is_own = own.releases == one
            off = 100 * (own.predicted_s[is_own] / own.measured_s[is_own] - 1)
            covered = f"{100 * own.covered[is_own].mean():.0f}"
            table.append([one, title, str(len(off)), f"{np.abs(off).mean():.1f}", f"{off.mean():+.1f}", covered])
    return {
        "title": "Megatron-Bridge: release by release", "note": "Factors of all other releases.",
        "commands": [_COMMAND],
        "columns": ["release", "models", "rows", "MAPE, %", "mean, %", "in interval, %"], "rows": table,
    }  # fmt: skip


def _by_job(dense: Judged, experts: Judged) -> dict[str, Any]:
    table = list[list[str]]()
    for own in (dense, experts):
        predicted, measured, total = own.predicted_s, own.measured_s, len(own.rows)
        keys = [(row.plan.model, row.plan.system) for row in own.rows]
        for key in dict.fromkeys(sorted(keys)):
            is_own = np.array([one == key for one in keys])
            off = 100 * (predicted[is_own] / measured[is_own] - 1)
            points, differs = np.abs(off).sum() / total, f"{100 * own.spread(is_own):.0f}"
            table.append(
                [*key, str(len(off)), f"{points:.2f}", f"{off.mean():+.1f}", f"{np.abs(off).max():.1f}", differs]
            )
    return {
        "title": "Megatron-Bridge: what carries the error",
        "note": (
            "Points of the mean error of dense models, or of those with experts. The last column is by how much one "
            "plan differs between releases on average, which no plan tells: of GPT-OSS one release has a fault that "
            "its page names (26.06.01), and Qwen3 30B became twice as fast."
        ),
        "commands": [_COMMAND],
        "columns": ["model", "system", "rows", "points of MAPE", "mean, %", "worst, %", "between releases, %"],
        "rows": table,
    }  # fmt: skip


def _others(unanswered: Sequence[Row]) -> dict[str, Any]:
    reasons = dict[str, int]()
    for row in unanswered:
        reasons[row.why_not] = reasons.get(row.why_not, 0) + 1
    return {
        "title": "Megatron-Bridge: rows that are not answered", "note": "", "commands": [_COMMAND],
        "columns": ["reason", "rows"], "rows": [[why, str(many)] for why, many in reasons.items()],
    }  # fmt: skip
