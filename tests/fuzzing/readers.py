"""Readers: everything of the verbs that reads a file of somebody else, with a small valid one for each."""

from __future__ import annotations

import csv
import gzip
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from cdmpp.ast.layout import FEATURES
from fuzzing.inputs import ROOT, write_bases
from tests.trace.small_traces import write_job

DEVICE = "epyc-genoa"


@dataclass(frozen=True)
class Reader:
    """How one file is read."""

    name: str
    file: str
    """Below the folder of the valid things."""
    read: Callable[[Path], Any]
    """What reads it, given a copy of that folder. Writes nothing but ``out`` there."""
    kind: str = "json"
    """``json``, ``lines`` (of JSON), ``yaml``, ``parquet``, ``csv`` or ``weights``."""
    forgiving: bool = False
    """A line that was cut short by a kill is left out in such a file: what is broken need not be refused."""
    needs_tvm: bool = False
    allowed: tuple[str, ...] = ()
    """Breakages that change nothing of what is read."""

    def path(self, home: Path) -> Path:
        return home / self.file


def _dataset(home: Path) -> Any:
    from cdmpp.data.loading import load_dataset

    return load_dataset(home / "dataset", DEVICE, progress=False)


def _asts(home: Path) -> Any:
    from cdmpp.ast.table import read_asts

    return read_asts(home / "asts" / "asts.parquet")


def _summary(home: Path) -> Any:
    from cdmpp.data.statistics import statistics

    return statistics(home / "dataset")


def _report(home: Path) -> Any:
    from cdmpp.measure.journal import Journal
    from cdmpp.measure.plan import load_plan
    from cdmpp.measure.report import report

    folder = home / "dataset"
    return report(folder, DEVICE), Journal(folder, DEVICE, "failures.jsonl"), load_plan(folder, {}, 0, lambda *_: None)


def _model(home: Path) -> Any:
    import cdmpp

    return cdmpp.load_model(home / "model")


def _job(home: Path) -> Any:
    from cdmpp.trace.folder import read_job, read_recordings

    return read_job(home / "job"), read_recordings(home / "job")


def _collectives(home: Path) -> Any:
    from cdmpp.collectives.collective_model import CollectiveModel

    return CollectiveModel.load(home / "collectives.json")


def _table(home: Path) -> Any:
    from cdmpp.collectives.collective_table import read_aiconfigurator

    return read_aiconfigurator(home / "collectives.parquet")


def _kit(home: Path) -> Any:
    from cdmpp.measure.kit.merge import merge_kit

    return merge_kit(home / "kit", sorted((home / "kit" / "results").glob("*.jsonl")), home / "out", force=True)


def _neusight(home: Path) -> Any:
    from cdmpp.data.importers.neusight_source import read_file

    return list(read_file(home / "linear.csv", "dataset/train/collect/linear/p2.1.0/Tesla T4.csv"))


def _operators(home: Path) -> Any:
    from cdmpp.data.importers.neusight import import_neusight

    return import_neusight(home / "ops.parquet", home / "out", progress=False)


def _features(home: Path) -> Any:
    from cdmpp.data.importers.ansor_features import import_features

    return import_features(home / "features.parquet", home / "out", "t4")


def _target(home: Path) -> Any:
    from cdmpp.data.targets import first_target

    return first_target(home / "database" / "resnet34_a100")


def _database(folder: str) -> Callable[[Path], Any]:
    def read(home: Path) -> Any:
        from cdmpp.data.importers.databases import import_database

        return import_database(home / folder, home / "out", "a100", "resnet34", progress=False)

    return read


def _programs(file: str) -> Callable[[Path], Any]:
    def read(home: Path) -> Any:
        from cdmpp.data.importers.programs import import_programs

        return import_programs(home / file, home / "out", "xeon-icelake", progress=False)

    return read


def _resumed(home: Path) -> Any:
    from cdmpp.cli.model.train import read_settings

    return read_settings({"resume": str(home / "run")})


def _checkpoint(home: Path) -> Any:
    from cdmpp.network.source.checkpoint import entry_of_config

    return entry_of_config(home / "config.json")


def _sheet(group: str, name: str) -> Callable[[Path], Any]:
    def read(home: Path) -> Any:
        from cdmpp import devices
        from cdmpp.collectives import cluster, interconnect
        from cdmpp.devices import cores, gpu_core

        readers: dict[str, Callable[[Path], Any]] = {
            "device": devices.read_device.__wrapped__,
            "core": cores.read_core.__wrapped__,
            "gpu_core": gpu_core.read_gpu_core.__wrapped__,
            "cluster": cluster.read_cluster.__wrapped__,
            "interconnect": interconnect.read_interconnect.__wrapped__,
        }
        return readers[group](home / "conf" / group / f"{name}.yaml")

    return read


_SHEETS = {"device": "xeon-icelake", "core": "ice_lake", "gpu_core": "ga100", "cluster": "dgx-a100",
           "interconnect": "nvlink3"}  # fmt: skip
READERS = (
    Reader("dataset", "dataset/dataset.json", _dataset),
    Reader("tasks", "dataset/tasks.parquet", _dataset, "parquet"),
    Reader("records", "dataset/records/part-00000.parquet", _dataset, "parquet"),
    Reader("asts", "asts/asts.parquet", _asts, "parquet"),
    Reader("repeats", "dataset/repeats.jsonl", _summary, "lines", forgiving=True),
    Reader("failures", "dataset/failures.jsonl", _report, "lines", forgiving=True),
    Reader("failures in numbers", "dataset/failures.jsonl", _summary, "lines", forgiving=True),
    Reader("plan", "dataset/plan.json", _report, allowed=("an empty object",)),
    Reader("model", "model/config.json", _model),
    Reader("card", "model/card.json", _model, allowed=("an empty object",)),
    Reader("weights", "model/model.safetensors", _model, "weights"),
    Reader("trace", "job/any-9.json", _job, allowed=("doubled",)),
    Reader("packed trace", "job/any-8.json.gz", _job, allowed=("doubled",)),
    Reader("steps", "job/any-9.steps.json", _job),
    Reader("probe", "job/probe.json", _job),
    Reader("collectives", "collectives.json", _collectives),
    Reader("collective table", "collectives.parquet", _table, "parquet"),
    Reader("kit", "kit/kit.json", _kit),
    Reader("kit programs", "kit/programs/part-00000.parquet", _kit, "parquet"),
    Reader("kit results", "kit/results/results-part-000.jsonl", _kit, "lines", forgiving=True),
    Reader("neusight", "linear.csv", _neusight, "csv"),
    Reader("operators", "ops.parquet", _operators, "parquet"),
    Reader("features", "features.parquet", _features, "parquet"),
    Reader("target", "database/resnet34_a100/database_tuning_record.json", _target, "lines", forgiving=True),
    Reader("database", "database/resnet34_a100/database_tuning_record.json", _database("database/resnet34_a100"),
           "lines", needs_tvm=True),
    Reader("workloads", "database/resnet34_a100/database_workload.json", _database("database/resnet34_a100"), "lines",
           needs_tvm=True, allowed=("truncated",)),
    Reader("packed database", "packed_db/database_tuning_record.json.gz", _database("packed_db"), "lines",
           needs_tvm=True),
    Reader("programs", "programs.jsonl", _programs("programs.jsonl"), "lines", needs_tvm=True),
    Reader("packed programs", "programs.jsonl.gz", _programs("programs.jsonl.gz"), "lines", needs_tvm=True),
    Reader("settings", "run/settings.json", _resumed),
    Reader("checkpoint", "config.json", _checkpoint),
    *(Reader(group, f"conf/{group}/{name}.yaml", _sheet(group, name), "yaml") for group, name in _SHEETS.items()),
)  # fmt: skip


def write_valid(home: Path) -> None:
    """One valid file for each reader."""
    from cdmpp.recipes.compose import compose

    write_bases(home)
    data = home / "dataset"
    records = pq.read_table(data / "records" / "part-00000.parquet").to_pylist()
    repeat = {"record_id": records[0]["record_id"], "device": DEVICE, "first_s": 1e-3, "again_s": 1.1e-3,
              "hours_apart": 2.0}  # fmt: skip
    (data / "repeats.jsonl").write_text(json.dumps(repeat) + "\n")
    failure = {"id": "0123", "task_id": records[0]["task_id"], "device": DEVICE, "cause": "crash"}
    (data / "failures.jsonl").write_text(json.dumps(failure) + "\n")
    order = sorted({record["task_id"] for record in records})
    (data / "plan.json").write_text(json.dumps({"order": order, "networks": []}))
    shutil.copytree(ROOT / "cdmpp" / "predict" / "pretrained" / "epyc-genoa", home / "model")
    write_job(home / "job")
    steps = {"steps_s": [1e-3] * 12, "profiled": [4, 8], "event_s": 1e-6}
    (home / "job" / "any-9.steps.json").write_text(json.dumps(steps))
    probe = {"rows": [{"kind": "all_reduce", "bytes": 1000, "latency_s": 1e-4}], "processor_share": 0.1}
    (home / "job" / "probe.json").write_text(json.dumps(probe))
    shutil.copy(ROOT / "cdmpp" / "collectives" / "collectives.json", home)
    rows = [{"system": "a100_sxm", "library": "NCCL", "op": "all_reduce", "dtype": "half", "gpus": 8,
             "message_bytes": 1024 * 2**n, "latency_ms": 0.01 * 1.5**n} for n in range(6)]  # fmt: skip
    pq.write_table(pa.Table.from_pylist(rows), home / "collectives.parquet")
    _write_kit(home / "kit", records, data)
    _write_operators(home)
    _write_features(home)
    folder = home / "packed_db"
    folder.mkdir()
    for path in (home / "database" / "resnet34_a100").iterdir():
        (folder / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
    line = {"tvmscript": (home / "script" / "1.py").read_text(), "latency_s": 1e-3}
    (home / "programs.jsonl").write_text(json.dumps(line) + "\n")
    (home / "programs.jsonl.gz").write_bytes(gzip.compress(json.dumps(line).encode()))
    (home / "run").mkdir()
    (home / "run" / "settings.json").write_text(json.dumps(compose("config", ["device=xeon-icelake", "out=run"])))
    (home / "config.json").write_text(json.dumps({"model_type": "bert", "hidden_size": 64, "num_hidden_layers": 1}))
    for group, name in _SHEETS.items():
        (home / "conf" / group).mkdir(parents=True)
        shutil.copy(ROOT / "conf" / group / f"{name}.yaml", home / "conf" / group)


def _write_kit(kit: Path, records: list[dict[str, Any]], data: Path) -> None:
    (kit / "programs").mkdir(parents=True)
    (kit / "results").mkdir()
    header = {"device": DEVICE, "kind": "cpu", "target": records[0]["target"]}
    (kit / "kit.json").write_text(json.dumps(header))
    kept = [{name: one[name] for name in ("record_id", "task_id", "schedule")} | {"part": "000"} for one in records]
    pq.write_table(pa.Table.from_pylist(kept), kit / "programs" / "part-00000.parquet")
    shutil.copy(data / "tasks.parquet", kit)
    entry = {"record_id": kept[0]["record_id"], "visits": [[1e-3], [1.01e-3]], "quiet": [True, True], "at": ""}
    (kit / "results" / "results-part-000.jsonl").write_text(json.dumps(entry) + "\n")


def _write_operators(home: Path) -> None:
    from cdmpp.data.importers.neusight import _COLUMNS

    names = ["OPName", "Latency", "Device", "Torch Version", "CUDNN Version", "Kernel Name", "CUDA Version"]
    with (home / "linear.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*names, "B", "M", "N", "K"])
        writer.writerow(["linear", "0.05", "Tesla T4", "p2.1.0", "8902", "f", "cu121", 1, 58, 13, 141])
    row = {**dict.fromkeys(_COLUMNS), "device": "t4", "op": "linear", "dtype": "float32", "latency_s": 1e-3,
           "split": "test", "batch": 1, "rows": 64, "inner": 32, "cols": 16, "kernel": "f",
           "torch": "2.1.0"}  # fmt: skip
    pq.write_table(pa.Table.from_pylist([row]), home / "ops.parquet")


def _write_features(home: Path) -> None:
    from cdmpp.data.importers.ansor_features import METADATA_KEY, WIDTH

    row = {"latency_s": 1e-3, "std_s": 1e-6, "device": "t4", "network": "resnet18", "task": "a", "op_name": "",
           "flops": 1e6, "leaf_features": np.zeros(WIDTH).tolist(), "node_ids": [2],
           "serialized_tree": [0, 2, -1, -1]}  # fmt: skip
    table = pa.Table.from_pylist([row]).replace_schema_metadata({METADATA_KEY: FEATURES["ansor164"].encode()})
    pq.write_table(table, home / "features.parquet")
