"""Results of the benchmarks as Markdown: one function a section."""

from __future__ import annotations

from typing import Any


def extraction(rows: list[dict[str, Any]]) -> list[str]:
    lines = ["| operator | target | programs | ours (programs/s) | PerStoreFeature (programs/s) | ratio |"]
    lines += ["|---|---|---:|---:|---:|---:|"]
    groups = [(row["operator"], row["target"], [row]) for row in rows]
    groups += [("all", kind, [row for row in rows if row["target"] == kind]) for kind in ("cpu", "cuda")]
    groups += [("**all**", "**both**", rows)]
    for operator, target, group in groups:
        count, ours, theirs = (sum(row[key] for row in group) for key in ("programs", "ours", "per_store"))
        rates = f"{count / ours:,.0f} | {count / theirs:,.0f} | {theirs / ours:.2f}"
        lines.append(f"| {operator} | {target} | {count} | {rates} |")
    return lines


def model(models: dict[str, dict[str, float]]) -> list[str]:
    ours, other = models["cdmpp"], models["reference"]
    titles = {
        "parameters": "parameters",
        "batch_1": "predictions/s, batch 1",
        "batch_512": "predictions/s, batch 512",
        "training": "training samples/s",
        "memory_mb": "peak memory (MB)",
    }
    lines = ["| | cdmpp | reference | cdmpp / reference |", "|---|---:|---:|---:|"]
    rows = [(title, ours[key], other[key]) for key, title in titles.items()]
    return lines + [f"| {title} | {a:,.0f} | {b:,.0f} | {a / b:.2f} |" for title, a, b in rows]


def convergence(found: dict[str, Any]) -> list[str]:
    lines = ["| | cdmpp | reference | cdmpp / reference |", "|---|---:|---:|---:|"]
    titles = {"reached_s": "time to that error (s)", "total_s": "whole training (s)", "best_mape": "lowest error (%)"}
    for key, title in titles.items():
        ours, other = found[key]["cdmpp"], found[key]["reference"]
        ratio = "never reached" if ours is None else f"{ours / other:.3f}"
        lines.append(f"| {title} | {'–' if ours is None else f'{ours:,.1f}'} | {other:,.1f} | {ratio} |")
    return lines


def streaming(rows: list[dict[str, float]]) -> list[str]:
    lines = ["| programs | vectors in files (MB) | load (s) | rest (s) | memory (MB) | of it before loading (MB) |"]
    lines.append("|---:|---:|---:|---:|---:|---:|")
    keys = ("features_mb", "load_s", "rest_s", "anonymous_mb", "start_mb")
    digits = (0, 1, 1, 0, 0)
    for row in rows:
        values = (f"{row[key]:,.{n}f}" for key, n in zip(keys, digits, strict=True))
        lines.append(f"| {row['programs']:,} | {' | '.join(values)} |")
    return lines


def loading(rows: list[dict[str, float]]) -> list[str]:
    lines = ["| programs | load (s) | batches (s) | peak memory (MB) |", "|---:|---:|---:|---:|"]
    keys = ("load_s", "batches_s")
    for row in rows:
        seconds = " | ".join(f"{row[key]:.1f}" for key in keys)
        lines.append(f"| {row['programs']:,.0f} | {seconds} | {row['memory_mb']:,.0f} |")
    return lines
