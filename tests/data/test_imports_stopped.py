"""Imports of every format but databases: few records in memory at a time, and a killed one ends as if it had not been.

Databases are in ``test_import_resumed``.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cdmpp.ast.compact_ast import CompactAST
from cdmpp.data import loading
from cdmpp.data.importers import ansor_features, kept_rows
from cdmpp.data.importers.ansor_features import COLUMNS, WIDTH, import_features
from cdmpp.data.loading import load_dataset
from cdmpp.data.records import read_records, read_tasks, record_parts
from cdmpp.data.schema import Record
from cdmpp.errors import DataError
from cdmpp.platform.paths import cache_root
from tests.data.test_neusight import row as neusight_row
from tests.toy_data import write_toy_dataset

PART = 5
PROGRAMS = 43
SCRIPT = """
import os, signal, sys
from importlib import import_module
from pathlib import Path

_, module, parts, act, function, call, source, out, *words = sys.argv
importer, writer = (import_module(f"cdmpp.data.importers.{name}") for name in (module, parts))
writer.PART_SIZE = writer._PART = 5
holder = writer if hasattr(writer, function) else importer
real, calls = getattr(holder, function), []
def counted(*given, **named):
    calls.append(0)
    if len(calls) == int(call):
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*given, **named)
setattr(holder, function, counted)
told = {} if module == "ansor_features" else {"progress": False}
getattr(importer, act)(Path(source), Path(out), *words, **told)
"""


class Format(NamedTuple):
    module: str
    """It has the import."""
    writer: str
    """It writes the parts."""
    write: Callable[[Path], Path]
    act: str
    words: tuple[str, ...]

    def imported(self, source: Path, out: Path) -> Any:
        told = {} if self.module == "ansor_features" else {"progress": False}
        return getattr(import_module(f"cdmpp.data.importers.{self.module}"), self.act)(source, out, *self.words, **told)

    def killed(self, source: Path, out: Path, function: str, call: int) -> None:
        """Import in another process, which ends at a call of ``function``."""
        words = [self.module, self.writer, self.act, function, str(call), str(source), str(out), *self.words]
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
        done = subprocess.run([sys.executable, "-c", SCRIPT, *words], env=environment, capture_output=True, text=True)
        assert done.returncode == -signal.SIGKILL, done.stderr


def features(folder: Path) -> Path:
    """Each task is of two networks; the last row repeats the first."""
    draw = np.random.default_rng(0)
    rows = [
        {
            "latency_s": 1e-3 * (1 + i), "std_s": None, "device": "t4", "network": f"net{i % 2}", "op_name": "conv",
            "task": f"task{i % 5}", "flops": 1e6, "node_ids": [2, 3], "serialized_tree": [],
            "leaf_features": draw.normal(size=2 * WIDTH).astype(np.float32).tolist(),
        }
        for i in range(PROGRAMS)
    ]  # fmt: skip
    rows.append({**rows[0], "latency_s": 3e-3})
    numbers = {"leaf_features": pa.list_(pa.float32()), "node_ids": pa.list_(pa.int32())}
    numbers |= {"serialized_tree": pa.list_(pa.int32()), "std_s": pa.float64()}
    kinds = {name: pa.float64() if name in ("latency_s", "flops") else pa.string() for name in COLUMNS} | numbers
    schema = pa.schema(list(kinds.items()), metadata={"cdmpp_feature_file": "ansor164-1"})
    pq.write_table(pa.Table.from_pylist(rows, schema), path := folder / "features.parquet")
    return path


def operators(folder: Path) -> Path:
    rows = [
        neusight_row(("t4", "l4")[i % 2], "linear", 1e-4 * (1 + i), rows=64, inner=128, cols=8 * (i // 2 + 1))
        for i in range(PROGRAMS)
    ]
    pq.write_table(pa.Table.from_pylist([*rows, {**rows[0], "latency_s": 3e-4}]), folder / "ops.parquet")
    return folder


def programs(folder: Path) -> Path:
    from tests.data.test_import_programs import elementwise

    lines = [elementwise(8 * (i + 1), network="net") for i in range(12)]
    text = "".join(json.dumps(line) + "\n" for line in [*lines, {**lines[0], "latency_s": 3e-3}])
    (path := folder / "programs.jsonl").write_text(text)
    return path


FEATURES = Format("ansor_features", "ansor_features", features, "import_features", ("t4",))
OPERATORS = Format("neusight", "neusight", operators, "import_neusight", ())
PROGRAMS_AS_TEXT = Format("programs", "databases", programs, "import_programs", ("xeon-icelake",))


def contents(out: Path) -> dict[str, bytes]:
    paths = (path for path in out.rglob("*") if path.is_file() and not path.name.startswith("."))
    return {str(path.relative_to(out)): path.read_bytes() for path in paths}


@pytest.mark.parametrize(
    ("format", "function", "call"),
    [
        (FEATURES, "append_records", 4),  # vectors of these records are there already
        (OPERATORS, "write_asts", 4),  # these records are there already
        pytest.param(PROGRAMS_AS_TEXT, "append_records", 2, marks=pytest.mark.tvm),
    ],
)
def test_a_killed_import_ends_as_one_that_was_let_run(tmp_path, monkeypatch, format, function, call):
    writer = import_module(f"cdmpp.data.importers.{format.writer}")
    monkeypatch.setattr(writer, "_PART" if format is OPERATORS else "PART_SIZE", PART)
    source, whole, out = format.write(tmp_path), tmp_path / "whole" / "many", tmp_path / "killed" / "many"
    format.killed(source, out, function, call)
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in record_parts(out)}
    assert 0 < len(before) * PART < (12 if format is PROGRAMS_AS_TEXT else PROGRAMS)
    format.imported(source, whole)
    format.imported(source, out)
    assert contents(out) == contents(whole)
    assert all((path.read_bytes(), path.stat().st_mtime_ns) == one for path, one in before.items())
    assert sum(record.n_merged for record in read_records(out)) == len(read_records(out)) + 1


@pytest.mark.tvm
def test_programs_that_were_restored_before_a_kill_are_not_restored_again(tmp_path, monkeypatch):
    from cdmpp.data.importers import programs as importer

    source, out = programs(tmp_path), tmp_path / "out"
    PROGRAMS_AS_TEXT.killed(source, out, "read_program", 8)
    assert not record_parts(out) and len(list((cache_root() / "restored").iterdir())) == 1
    (left,) = (cache_root() / "restored").iterdir()
    left.write_bytes(left.read_bytes()[:-9])  # as a kill within a write leaves it
    restored, real = [], importer.read_program
    monkeypatch.setattr(importer, "read_program", lambda request: restored.append(request["line"]) or real(request))
    PROGRAMS_AS_TEXT.imported(source, out)
    lines = source.read_text().splitlines()
    assert restored == lines[6:] and not any((cache_root() / "restored").iterdir())
    PROGRAMS_AS_TEXT.imported(source, tmp_path / "whole" / "out")
    assert contents(out) == contents(tmp_path / "whole" / "out")


def test_few_rows_are_in_memory_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(ansor_features, "PART_SIZE", PART)
    monkeypatch.setattr(kept_rows, "_PORTION", PART)
    source, alive, real = features(tmp_path), [], ansor_features.append_records

    def append(out, records):
        alive.append([sum(isinstance(one, kind) for one in gc.get_objects()) for kind in (Record, CompactAST)])
        return real(out, records)

    gc.collect()
    monkeypatch.setattr(ansor_features, "append_records", append)
    import_features(source, tmp_path / "out", "t4")
    assert len(alive) == -(-PROGRAMS // PART) and np.max(alive) <= 3 * PART


def test_few_records_are_in_memory_while_their_asts_are_derived(tmp_path, monkeypatch):
    write_toy_dataset(tmp_path / "set", PROGRAMS)
    shutil.rmtree(tmp_path / "set" / "asts")
    monkeypatch.setattr(loading, "_PORTION", PART)
    wanted, alive = [], []

    def derive(of, *_):
        ((_, sources),) = of.values()
        wanted.append([source.key.partition("-")[0] for source in sources])
        alive.append(sum(isinstance(one, Record) for one in gc.get_objects()))
        return {"asts": dict.fromkeys((source.key for source in sources), "not today")}

    gc.collect()
    monkeypatch.setattr(loading, "derive", derive)
    with pytest.raises(DataError, match=f"no compact AST for {PROGRAMS} of {PROGRAMS} records.*not today"):
        load_dataset(tmp_path / "set", progress=False)
    assert list(map(len, wanted)) == [PART] * (PROGRAMS // PART) + [PROGRAMS % PART] and max(alive) <= 3 * PART
    assert [key for part in wanted for key in part] == [one.record_id for one in read_records(tmp_path / "set")]


def test_a_task_is_of_all_networks_that_its_rows_name(tmp_path):
    import_features(features(tmp_path), tmp_path / "out", "t4")
    assert {tuple(task.networks) for task in read_tasks(tmp_path / "out").values()} == {("net0", "net1")}
