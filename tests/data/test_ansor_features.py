"""Feature files of old TVM environments: written by the real exporter, imported, trained on; broken ones refused."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cdmpp
from cdmpp.ast.layout import FEATURES, LEAF_WIDTH
from cdmpp.data.importers.ansor_features import WIDTH, import_features
from cdmpp.data.loading import load_dataset, load_programs
from cdmpp.data.sources import load_device
from cdmpp.errors import CdmppError, DataError
from tests.toy_data import write_toy_dataset

EXPORTER = Path(__file__).resolve().parents[2] / "scripts/exporters/export_ansor.py"


def exporter() -> Any:
    spec = importlib.util.spec_from_file_location("export_ansor", EXPORTER)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def profiled(rng: np.random.Generator, n: int) -> np.ndarray:
    """Rows as CDMPP's public code stores them; the latency depends on the vectors, so that it can be learned."""
    rows = np.empty((n, 6), object)
    for i in range(n):
        leaves = int(rng.integers(1, 4))
        vectors = rng.normal(size=(leaves, WIDTH)).astype(np.float32)
        nodes = list(range(2, 2 + leaves))
        tree = [0, 1, *[item for node in nodes for item in (node, -1)], -1, -1]
        rows[i] = [1e-4 * float(np.exp(vectors[:, 5].sum())), 1e-6, 2e6, vectors[:, None], nodes, tree]
    return rows


@pytest.fixture
def feature_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Eight tasks of 12 programs through the exporter's `reference` command."""
    rng = np.random.default_rng(0)
    profiles = tmp_path / "profiles"
    profiles.mkdir()
    for task in range(8):
        np.save(profiles / f"task{task}.npy", profiled(rng, 12), allow_pickle=True)
    out = tmp_path / "t4.parquet"
    words = ["reference", "--profiles", str(profiles), "--network", "resnet18", "--device", "t4", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", ["export_ansor.py", *words])
    exporter().main()
    return out


def test_exported_rows_arrive_as_they_were(feature_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "set"
    report = import_features(feature_file, out, "t4")
    assert (report.lines, report.written, report.tasks, report.bad) == (96, 96, 8, [])
    dataset = load_dataset(out)
    assert dataset.features == "ansor164" and len(dataset) == 96
    rows = pq.read_table(feature_file).to_pylist()
    by_latency = {row["latency_s"]: row for row in rows}
    for i in range(len(dataset)):
        row = by_latency[dataset.latency_s[i]]
        ast_rows = dataset.asts.leaf_features[dataset.asts.leaf_offsets[i] : dataset.asts.leaf_offsets[i + 1]]
        assert ast_rows.shape[1] == LEAF_WIDTH and not ast_rows[:, WIDTH:].any()
        assert ast_rows[:, :WIDTH].ravel().tolist() == row["leaf_features"]
        begin = dataset.asts.leaf_offsets[i]
        assert dataset.asts.leaf_positions[begin] == 2 and dataset.asts.leaf_serial_positions[begin] == 2
        if len(ast_rows) > 1:  # the closing marker of the first leaf lies between
            assert dataset.asts.leaf_serial_positions[begin + 1] == 4
    again = import_features(feature_file, out, "t4")
    assert again.written == 0 and again.present == 96 and len(load_dataset(out)) == 96


def rewrite(path: Path, out: Path, **changes: list[Any]) -> Path:
    table = pq.read_table(path).slice(0, 3)
    for name, values in changes.items():
        place = table.schema.get_field_index(name)
        table = table.set_column(place, table.schema.field(name), pa.array(values, table.schema.field(name).type))
    pq.write_table(table, out)
    return out


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"latency_s": [1e-3, float("nan"), 1e-3]}, "row 2: latency_s is nan"),
        ({"latency_s": [1e-3, 1e-3, 0.0]}, "row 3: latency_s is 0.0"),
        ({"latency_s": [1e-3, None, 1e-3]}, "row 2: latency_s is None"),
        ({"node_ids": [[], [1], [1]]}, "row 1: .* leaf numbers for 0 leaves"),
        ({"leaf_features": [[0.0] * 10] * 3}, "10 leaf numbers"),
        ({"leaf_features": [[float("inf")] * WIDTH] * 3, "node_ids": [[1]] * 3}, "not finite"),
        ({"serialized_tree": [[0, -1]] * 3}, "leaf 2 is not in serialized_tree"),
        ({"task": ["", "a", "a"]}, "row 1: task and network must not be empty"),
    ],
)
def test_broken_rows_are_named_and_nothing_is_written(
    feature_file: Path, tmp_path: Path, changes: dict[str, list[Any]], message: str
) -> None:
    path = rewrite(feature_file, tmp_path / "broken.parquet", **changes)
    with pytest.raises(DataError, match=message):
        import_features(path, tmp_path / "set", "t4")
    assert not (tmp_path / "set").exists()


def test_skip_leaves_out_the_broken_row_only(feature_file: Path, tmp_path: Path) -> None:
    path = rewrite(feature_file, tmp_path / "broken.parquet", latency_s=[1e-3, float("nan"), 1e-3])
    report = import_features(path, tmp_path / "set", "t4", on_bad="skip")
    assert report.written == 2 and len(report.bad) == 1


def test_what_is_not_a_feature_file_of_the_device_is_refused(feature_file: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no usable row of device a100: 96 rows, 96 of other devices"):
        import_features(feature_file, tmp_path / "set", "a100")
    plain = tmp_path / "plain.parquet"
    pq.write_table(pa.table({"a": [1]}), plain)
    with pytest.raises(DataError, match="no feature file .* missing columns: latency_s"):
        import_features(plain, tmp_path / "set", "t4")
    plain.write_bytes(feature_file.read_bytes()[:1000])
    with pytest.raises(DataError, match="cannot read .* Parquet file is corrupt"):
        import_features(plain, tmp_path / "set", "t4")
    with pytest.raises(DataError, match=r"holds no \*.parquet"):
        (tmp_path / "empty").mkdir()
        import_features(tmp_path / "empty", tmp_path / "set", "t4")


def test_kinds_of_vectors_are_never_mixed(feature_file: Path, tmp_path: Path) -> None:
    import_features(feature_file, tmp_path / "data" / "ansor", "t4")
    write_toy_dataset(tmp_path / "data" / "ours")
    with pytest.raises(DataError, match="different features"):
        load_programs([tmp_path / "data" / "ansor", tmp_path / "data" / "ours"])
    with pytest.raises(DataError, match="no labelled programs of device t4"):
        load_device("t4", [tmp_path / "data"])
    with pytest.raises(DataError, match="source=ansor_features` makes one"):
        load_device("xeon-icelake", [tmp_path / "data"], features="ansor164")
    with pytest.raises(CdmppError, match="one of cdmpp, ansor164"):
        load_device("t4", [tmp_path / "data"], features="ansor")
    assert load_device("t4", [tmp_path / "data"], features="ansor164").features == "ansor164"


def test_a_model_is_trained_on_imported_vectors_and_reads_no_others(feature_file: Path, tmp_path: Path, run_script):
    import_features(feature_file, tmp_path / "data" / "ansor", "t4")
    out = tmp_path / "run"
    done = run_script(
        "scripts/train.py",
        "device=t4", "features=ansor164", f"data.path=[{tmp_path / 'data'}]", f"out={out}", "trainer=quick",
        "trainer.epochs=2", "model.width=16", "model.layers=1", "progress=false", "plots=false", "accelerator=cpu",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    figures = json.loads((out / "test.json").read_text())
    assert set(figures["models"]) == {"constant", "roofline", "xgb_ours", "cdmpp"}
    assert np.isfinite(figures["models"]["cdmpp"]["mape"])
    model = cdmpp.load_model(out / "model")
    assert model.features == "ansor164"
    assert json.loads((out / "model" / "config.json").read_text())["extractor_version"] == FEATURES["ansor164"]
    assert len(model.predict(tmp_path / "data" / "ansor", "t4")) == 96
    write_toy_dataset(tmp_path / "ours")
    with pytest.raises(CdmppError, match="reads ansor164"):
        model.predict(tmp_path / "ours", "t4")
    with pytest.raises(CdmppError, match="give it a data set or a Parquet file"):
        model.predict([], "t4")
