"""The reports on what is here: devices, models, data."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cdmpp import devices
from cdmpp.data.statistics import DeviceStatistics, quantiles
from cdmpp.data.summary import DataSummary
from cdmpp.predict.catalogue import ModelEntry
from cdmpp.report.report import Column, Report, Table
from cdmpp.units import PERCENT, SHARE

_SPEC = {"cores": "core_count", "MHz": "clock_mhz", "fp32 TFLOP/s": "fp32_tflops", "GB/s": "bandwidth_gbps",
         "GB": "memory_gb"}  # fmt: skip
_ORIGINS = ("measured", "described", "range", "unknown")
_TENTHS = ("p10", "p50", "p90")


def devices_report(data: Sequence[DataSummary], usable: Sequence[ModelEntry]) -> Report:
    """Report all described devices as rows, with the data and the models that are here for each."""
    rows, answer = [], []
    for device in devices.all_devices():
        data_sets = [entry for entry in data if entry.device == device.name]
        names = [entry.name for entry in usable if device.name in entry.devices]
        described = {key: getattr(device, key) for key in ("name", "title", "kind", "core", "target")}
        spec = {key: _number(device, key) for key in devices.SPEC_FIELDS}
        answer.append({**described, "spec": spec, "data": [summary_row(one) for one in data_sets], "models": names})
        origins = Counter(device.origin(key) for key in devices.SPEC_FIELDS)
        rows.append({
            "name": device.name, "kind": device.kind, "title": device.title,
            **{key: device.spec[key] for key in _SPEC.values()}, **{name: origins[name] for name in _ORIGINS},
            "data": [f"{one.programs} programs" if one.programs else one.folder.name for one in data_sets],
            "models": names,
        })  # fmt: skip
    columns = (
        Column("name", "name", kind="text"),
        Column("kind", "kind", kind="text", rank=5),
        Column("title", "what it is", kind="text", rank=3),
        *(Column(key, name, digits=4, rank=2) for name, key in _SPEC.items()),
        *(Column(name, name, rank=4, meaning=f"How many of its numbers are known as {name}.") for name in _ORIGINS),
        Column("data", "data", kind="text"),
        Column("models", "models", kind="text"),
    )
    caption = (
        "- : not published; of a range the middle. `cdmpp probe` times a CPU's own numbers; --json has every source"
    )
    return Report("Devices", answer, tables=(Table("Devices", columns, rows, caption),))


def _number(device: devices.Device, name: str) -> dict[str, Any]:
    bounds = {"range": list(device.ranges[name])} if name in device.ranges else {}
    return {"value": device.spec[name], **bounds, "known": device.origin(name), "source": device.sources[name]}


def models_report(entries: Sequence[ModelEntry]) -> Report:
    """Report the trained models that are here as rows, with the figures of their cards."""
    answer = [entry.summary() for entry in entries]
    rows = [
        {
            **row,
            "promised_80": row["interval_promised"].get("0.8"),
            "covered_80": row["interval_coverage"].get("0.8"),
            "others": [device for device in row["devices"] if device != row["name"]],
            "made": row["created"][:10] if row["usable"] else row["state"],
        }
        for row in answer
    ]
    columns = (
        Column("name", "model", kind="text"),
        Column("others", "devices of another name", kind="text", rank=1),
        Column("figures_of", "figures of", kind="text"),
        Column("mape", "MAPE %", PERCENT, digits=1),
        Column("median_ape", "median %", PERCENT, digits=1),
        Column("spearman_within_task", "Spearman in task", PERCENT, digits=3),
        Column("top1_regret", "top-1 regret", PERCENT, digits=3),
        Column("promised_80", "80 % promises", SHARE),
        Column("covered_80", "80 % covered, %", PERCENT, digits=1),
        Column("made", "made", kind="text"),
    )
    caption = "80 %: what intervals of that level promise, and the test programs that they covered. card.json says more"
    damaged = tuple(f"{row['name']} is damaged: {row['problem']}" for row in answer if row["state"] == "damaged")
    return Report("Models", answer, tables=(Table("Models", columns, rows, caption),), warnings=damaged)


def data_report(
    entries: Sequence[DataSummary], readable: Sequence[tuple[Path, DeviceStatistics]], paths: Sequence[Path]
) -> Report:
    """Report folders with data, and devices in them, as rows; ``readable`` are those with their numbers."""
    numbers = {(folder, one.device): one.plain() for folder, one in readable}
    answer = [{**summary_row(one), "statistics": numbers.get((one.folder, one.device))} for one in entries]
    caption = f"Looked in {', '.join(map(str, paths))} ($CDMPP_DATA adds folders)"
    tables = [Table("Data", _PLACES, [_place(entry) for entry in entries], caption)]
    if readable:
        tables += [_numbers(readable), _classes(readable)]
    return Report("Data", answer, tables=tuple(tables))


def summary_row(entry: DataSummary) -> dict[str, Any]:
    """Return one folder and device, as JSON takes it."""
    return {**dataclasses.asdict(entry), "folder": str(entry.folder)}


_PLACES = (
    Column("device", "device", kind="text"),
    Column("programs", "programs"),
    Column("tasks", "tasks"),
    Column("about", "form", kind="text"),
    Column("folder", "folder", kind="text"),
)


def _place(entry: DataSummary) -> dict[str, Any]:
    kind = entry.features if entry.features != "cdmpp" else ""
    return {**summary_row(entry), "about": " ".join(filter(None, (entry.form, kind, entry.note)))}


def _numbers(readable: Sequence[tuple[Path, DeviceStatistics]]) -> Table:
    """Latencies, noise of the labels, quality of the schedules."""
    columns = (
        Column("data_set", "data set", kind="text"),
        Column("networks", "networks"),
        *(Column(f"latency_{name}_s", f"latency {name}", "s", digits=4) for name in _TENTHS),
        Column("spread", "two best visits differ by, mean", SHARE),
        Column("noise", "measured again, mean change", SHARE),
        *(Column(f"schedules_{name}", f"slowest / fastest schedule, {name}") for name in _TENTHS),
        Column("failures", "not recorded"),
    )
    rows = [
        {
            "data_set": _data_set(folder, one),
            "networks": one.networks,
            **_tenths("latency_{}_s", one.latency_s),
            "spread": float(one.spread.mean()),
            "noise": None if one.noise is None else one.noise.mean,
            **_tenths("schedules_{}", one.schedule_range),
            "failures": sum(one.failures.values()),
        }
        for folder, one in readable
    ]
    return Table("In numbers", columns, rows)


def _classes(readable: Sequence[tuple[Path, DeviceStatistics]]) -> Table:
    names = list(dict.fromkeys(name for _, one in readable for name in one.programs_by_class))
    rows = [
        {"data set": _data_set(folder, one), **{name: one.programs_by_class.get(name, 0) for name in names}}
        for folder, one in readable
    ]
    columns = (Column("data set", "data set", kind="text"), *(Column(name, name) for name in names))
    return Table("Programs by operator", columns, rows)


def _data_set(folder: Path, one: DeviceStatistics) -> str:
    return folder.name if folder.name == one.device else f"{folder.name} ({one.device})"


def _tenths(key: str, values: Any) -> dict[str, float | None]:
    found: Sequence[float | None] = quantiles(values) or [None] * len(_TENTHS)
    return {key.format(name): value for name, value in zip(_TENTHS, found, strict=True)}
