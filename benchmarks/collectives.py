"""The collective model beside simpler rules, on measured tables; and the file that ships.

python -m benchmarks.collectives DATA [--ship]: DATA holds ``aiconfigurator/`` and ``vidur/``. Everything that is fitted
sees the rest of the tables only. ``--ship`` writes ``cdmpp/collectives/collectives.json`` instead.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from scipy.interpolate import PchipInterpolator
from scipy.optimize import nnls

from benchmarks.publish.markdown import table
from cdmpp.collectives import interconnect
from cdmpp.collectives.algorithms import hierarchical
from cdmpp.collectives.collective import Collective, steps, traffic
from cdmpp.collectives.collective_model import SHIPPED, CollectiveModel, kept_curve
from cdmpp.collectives.collective_spread import LEVEL, spreads
from cdmpp.collectives.collective_table import read_aiconfigurator, read_custom_all_reduce, read_vidur
from cdmpp.collectives.curve import Curve
from cdmpp.collectives.interconnect import AlphaBeta
from cdmpp.collectives.rank_scaling import scaled_from_two
from cdmpp.collectives.sheet_model import SheetModel, follows_sheet

Errors = dict[str, dict[str, list[float]]]
"""System -> rule -> relative errors in per cent, one a measured point."""


def alpha_beta(curves: Sequence[Curve], asked: Curve) -> np.ndarray:
    """One alpha and one beta of a ring, fitted by relative errors to all points of ``curves``."""
    rows = [(steps(c.kind, c.ranks) / s, traffic(c.kind, c.ranks) * b / s, 1 / s)
            for c in curves for b, s in zip(c.bytes, c.latency_s, strict=True)]  # fmt: skip
    columns = [0, 1, 2] if len(curves) > 1 else [1, 2]  # steps and a constant are one where the count is
    (found, _), design = nnls(np.array(rows)[:, columns], np.ones(len(rows))), np.zeros(3)
    design[columns] = found
    told = np.stack([np.full(len(asked.bytes), steps(asked.kind, asked.ranks)),
                     traffic(asked.kind, asked.ranks) * asked.bytes, np.ones(len(asked.bytes))], axis=1)  # fmt: skip
    return told @ design


def held_out_sizes(curves: Iterable[Curve]) -> Errors:
    """Every second size is hidden."""
    errors: Errors = defaultdict(lambda: defaultdict(list))
    for curve in curves:
        rows = np.arange(len(curve.bytes))
        seen, hidden = curve.kept(rows[::2]), curve.kept(rows[1:-1:2] if len(rows) % 2 else rows[1::2][:-1])
        logs = np.exp(np.interp(np.log(hidden.bytes), np.log(seen.bytes), np.log(seen.latency_s)))
        smooth = np.exp(PchipInterpolator(np.log(seen.bytes), np.log(seen.latency_s))(np.log(hidden.bytes)))
        answers = {
            "alpha-beta": alpha_beta([seen], hidden),
            "log-log": logs,
            "PCHIP": smooth,
            "ours": kept_curve(seen).at(hidden.bytes),
        }
        _add(errors, curve.system, answers, hidden.latency_s)
    return errors


def held_out_count(curves: Sequence[Curve]) -> Errors:
    """2 and 4 ranks are seen, 8 predicted; the learned ratio sees 8 ranks of other devices."""
    errors: Errors = defaultdict(lambda: defaultdict(list))
    cells = {key: by for key, by in _by_ranks(curves).items() if {2, 4, 8} <= set(by)}
    for key, by in cells.items():
        two, four, eight = by[2], by[4], by[8]
        physical = scaled_from_two(kept_curve(two), kept_curve(four), 8)
        ratio = traffic(four.kind, 8) / traffic(four.kind, 4)
        others = [other for name, other in cells.items() if _card(name[0]) != _card(key[0]) and name[2] == key[2]]
        learned = np.median([_log_ratio(other) for other in others], axis=0) if others else np.zeros(len(eight.bytes))
        answers = {
            "alpha-beta": alpha_beta([two, four], eight),
            "4 by traffic": ratio * four.at(eight.bytes),
            "others' ratio": four.at(eight.bytes) * np.exp(learned) if others else np.full(len(eight.bytes), np.nan),
            "ours": physical.at(eight.bytes),
        }
        _add(errors, key[0], answers, eight.latency_s)
    return errors


def left_out(curves: Sequence[Curve]) -> Errors:
    """A device, and all others on its link, are hidden: its datasheet, and where it has a twin, the twin's table."""
    errors: Errors = defaultdict(lambda: defaultdict(list))
    for system in sorted({curve.system for curve in curves}):
        own = [curve for curve in curves if curve.system == system and follows_sheet(curve)]
        if not own:
            continue
        link = interconnect.get(str(own[0].link))
        blind = SheetModel.fit([curve for curve in curves if curve.link != link.name])
        for curve in own:
            asked = [Collective(curve.kind, int(size), curve.ranks, curve.backend) for size in curve.bytes]
            plain = SheetModel(0.0, 1.0, 1.0, 1.0)
            answers = {
                "sheet as printed": np.array([plain.seconds(one, link) for one in asked]),
                "ours by sheet": np.array([blind.seconds(one, link) for one in asked]),
            }
            key = (curve.link, curve.backend, curve.kind, curve.ranks)
            twins = [t for t in curves if (t.link, t.backend, t.kind, t.ranks) == key and t.system != system]
            if twins:
                answers["twin's table"] = kept_curve(twins[0]).at(curve.bytes)
            _add(errors, system, answers, curve.latency_s)
    return errors


def between_nodes(curves: Sequence[Curve]) -> Errors:
    """Several nodes of Vidur's DGX A100: an alpha and a beta of two nodes with a GPU each, and of one whole node."""
    errors: Errors = defaultdict(lambda: defaultdict(list))
    kind = {(curve.ranks, curve.nodes): curve for curve in curves if curve.kind == "all_reduce"}
    far = _line(kind[2, 2])
    for (ranks, nodes), curve in kind.items():
        if nodes > 1 and ranks > nodes:
            near, asked = _line(kind[ranks // nodes, 1]), [Collective("all_reduce", int(b), ranks) for b in curve.bytes]
            flat = np.array(
                [steps("all_reduce", ranks) * far.alpha_s + one.traffic_bytes * far.beta_s for one in asked]
            )
            answers = {
                "flat ring": flat,
                "hierarchical": np.array([hierarchical(one, nodes, near, far) for one in asked]),
            }
            _add(errors, f"{nodes} nodes of {ranks // nodes}", answers, curve.latency_s)
    return errors


def coverage(curves: Sequence[Curve]) -> Errors:
    """Share of hidden points in the interval, whose width comes from other devices."""
    found: Errors = defaultdict(lambda: defaultdict(list))
    for system in sorted({curve.system for curve in curves}):
        rest = [curve for curve in curves if curve.link and _card(curve.system) != _card(system)]
        width = spreads(rest, SheetModel.fit(rest))
        own = [curve for curve in curves if curve.system == system]
        topology = interconnect.get(str(own[0].link)).topology
        for way, rule in (("size", held_out_sizes), ("ranks", held_out_count)):
            within = 100 * np.expm1(width.get(f"{way}/{topology}", width[way]))
            for by_rule in rule(own).values():
                found[system][way] += [100.0 * (abs(off) <= within) for off in by_rule["ours"]]
    return found


def noise(half: Sequence[Curve], bytes_of: Sequence[Curve]) -> Errors:
    """How far two data types of equal bytes are from each other."""
    errors: Errors = defaultdict(lambda: defaultdict(list))
    others = {(c.system, c.kind, c.ranks): c for c in bytes_of}
    for curve in half:
        if other := others.get((curve.system, curve.kind, curve.ranks)):
            errors[curve.system]["int8 beside half"] += list(100 * np.abs(other.at(curve.bytes) / curve.latency_s - 1))
    return errors


def _line(curve: Curve) -> AlphaBeta:
    """A step's alpha and a byte's beta that the curve amounts to."""
    rows = np.stack(
        [np.full(len(curve.bytes), steps(curve.kind, curve.ranks)), traffic(curve.kind, curve.ranks) * curve.bytes], 1
    )
    found, _ = nnls(rows / curve.latency_s[:, None], np.ones(len(curve.bytes)))
    return AlphaBeta(*found)


def _card(system: str) -> str:
    return system.partition("/")[0]


def _log_ratio(by: dict[int, Curve]) -> np.ndarray:
    return np.log(by[8].latency_s) - np.log(by[4].at(by[8].bytes))


def _by_ranks(curves: Iterable[Curve]) -> dict[tuple, dict[int, Curve]]:
    cells: dict[tuple, dict[int, Curve]] = defaultdict(dict)
    for curve in curves:
        if curve.nodes == 1:
            cells[curve.system, curve.backend, curve.kind][curve.ranks] = curve
    return cells


def _add(errors: Errors, system: str, answers: dict[str, np.ndarray], truth: np.ndarray) -> None:
    for rule, answer in answers.items():
        errors[system][rule] += [float(off) for off in 100 * np.abs(answer / truth - 1) if np.isfinite(off)]


def show(title: str, errors: Errors) -> None:
    """A table in Markdown: mean of each system and rule, and the mean of systems."""
    rules = list(dict.fromkeys(rule for by_rule in errors.values() for rule in by_rule))
    means = {system: [np.mean(by[rule]) if by.get(rule) else np.nan for rule in rules] for system, by in errors.items()}
    if len(means) > 1:
        means["mean"] = list(np.nanmean(list(means.values()), axis=0))
    rows = [[name, *("-" if np.isnan(value) else f"{value:.1f}" for value in of)] for name, of in means.items()]
    print(f"\n{title}\n", *table(["", *rules], rows), sep="\n", flush=True)


def main() -> None:
    """Print the tables, or write the file that ships."""
    data, *flags = sys.argv[1:]
    nccl_file, vidur_file = (Path(data) / name / "collectives.parquet" for name in ("aiconfigurator", "vidur"))
    nccl, vidur = read_aiconfigurator(nccl_file), read_vidur(vidur_file)
    one_node = [curve for curve in vidur if curve.nodes == 1]
    if flags == ["--ship"]:
        CollectiveModel.fit([*nccl, *one_node]).save(SHIPPED)
        return
    custom = read_custom_all_reduce(nccl_file.with_name("custom_allreduce.parquet"))
    as_cards = [replace(curve, system=_card(curve.system)) for curve in custom]
    coarse = [curve.kept(np.arange(0, len(curve.bytes), 2)) for curve in nccl]
    shown: list[tuple[str, Callable[[], Errors]]] = [
        ("Noise", lambda: noise(nccl, read_aiconfigurator(nccl_file, "int8"))),
        ("Held-out sizes, NCCL and oneCCL", lambda: held_out_sizes(nccl)),
        ("The sizes that stay, every second of them held out", lambda: held_out_sizes(coarse)),
        ("Held-out sizes, custom all-reduce", lambda: held_out_sizes(as_cards)),
        ("Held-out sizes, Vidur", lambda: held_out_sizes(vidur)),
        ("2 and 4 to 8 ranks, NCCL", lambda: held_out_count(nccl)),
        ("2 and 4 to 8 ranks, custom all-reduce", lambda: held_out_count(custom)),
        ("2 and 4 to 8 ranks, Vidur", lambda: held_out_count(one_node)),
        ("Left-out devices", lambda: left_out(nccl)),
        ("Several nodes, Vidur", lambda: between_nodes([curve for curve in vidur if curve.system == "a100_dgx"])),
        (f"Share within the interval of {100 * LEVEL:.0f} %", lambda: coverage(nccl)),
    ]
    for title, errors in shown:
        show(title, errors())


if __name__ == "__main__":
    main()
