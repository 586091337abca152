"""Tables of collectives: medians of repeats, copies dropped, sizes and names as ours, wrong tables refused."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cdmpp.collectives.collective_table import read_aiconfigurator, read_custom_all_reduce, read_vidur
from cdmpp.errors import DataError


def nccl(size: int, latency_ms: float, **changes) -> dict:
    row = {"system": "a100_sxm", "library": "NCCL", "op": "alltoall", "dtype": "half", "gpus": 4}
    return {**row, "message_bytes": size, "latency_ms": latency_ms, **changes}


def custom(version: str, size: int, latency_ms: float, framework: str = "vllm") -> dict:
    row = {
        "system": "l40s",
        "framework": framework,
        "kernel": "any",
        "backend": "vllm_graph",
        "dtype": "bfloat16",
        "gpus": 2,
    }
    return {**row, "framework_version": version, "message_bytes": size, "latency_ms": latency_ms}


def write(path, rows):
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def test_repeats_become_medians_in_seconds(tmp_path):
    rows = [nccl(1024, t) for t in (0.01, 0.03, 0.02)] + [nccl(2048, 0.05), nccl(2048, 9.0, dtype="int8")]
    (curve,) = read_aiconfigurator(write(tmp_path / "t.parquet", rows))
    assert (curve.kind, curve.backend, curve.link, curve.ranks, curve.nodes) == ("all_to_all", "nccl", "nvlink3", 4, 1)
    assert curve.bytes.tolist() == [1024, 2048]
    np.testing.assert_allclose(curve.latency_s, [2e-5, 5e-5])


def test_copies_of_a_table_count_once(tmp_path):
    table = [("1", 0.01, 0.02), ("2", 0.01, 0.02), ("3", 0.03, 0.06)]
    rows = [custom(version, size, t) for version, a, b in table for size, t in ((256, a), (512, b))]
    (curve,) = read_custom_all_reduce(write(tmp_path / "t.parquet", rows))
    assert curve.system == "l40s/vllm_graph" and curve.backend == "custom"
    np.testing.assert_allclose(curve.latency_s, [2e-5, 4e-5])  # not 1e-5, as two of three would have it


def test_nodes_of_vidur_have_no_known_link(tmp_path):
    row = {"host": "a100_dgx", "op": "all_reduce", "workers": 8, "median_ms": 0.1}
    rows = [{**row, "workers_per_node": per, "message_bytes": size} for per in (4, 8) for size in (2048, 4096)]
    found = {curve.nodes: curve.link for curve in read_vidur(write(tmp_path / "t.parquet", rows))}
    assert found == {1: "nvlink3", 2: None}


def test_wrong_tables_are_refused(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        read_vidur(tmp_path / "none.parquet")
    with pytest.raises(DataError, match="lacks the columns dtype"):
        read_aiconfigurator(write(tmp_path / "a.parquet", [{k: v for k, v in nccl(8, 1.0).items() if k != "dtype"}]))
    with pytest.raises(DataError, match="system 'abacus' is unknown"):
        read_aiconfigurator(
            write(tmp_path / "b.parquet", [nccl(8, 1.0, system="abacus"), nccl(16, 1.0, system="abacus")])
        )
    with pytest.raises(DataError, match="no row of the kind"):
        read_aiconfigurator(write(tmp_path / "c.parquet", [nccl(8, 1.0)]), dtype="float8")
