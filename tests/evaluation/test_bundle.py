"""A bundle gives back the data it was made of, and says what is wrong with a damaged one."""

from __future__ import annotations

import numpy as np
import pytest

from cdmpp.errors import DataError
from cdmpp.evaluation.bundle import load_bundle, save_bundle


def test_round_trip(data, tmp_path):
    save_bundle(tmp_path / "b", data, "made-up")
    loaded, name = load_bundle(tmp_path / "b")
    assert name == "made-up" and loaded.noise == data.noise
    for field in ("record_ids", "task_ids", "devices", "latency_s", "spread"):
        np.testing.assert_array_equal(getattr(loaded.dataset, field), getattr(data.dataset, field))
    np.testing.assert_array_equal(loaded.dataset.asts.leaf_features, data.dataset.asts.leaf_features)
    np.testing.assert_array_equal(loaded.dataset.asts.kernel_offsets, data.dataset.asts.kernel_offsets)
    np.testing.assert_allclose(loaded.per_store, data.per_store, rtol=1e-3)
    task_id, task = next(iter(data.dataset.tasks.items()))
    assert loaded.dataset.tasks[task_id].networks == task.networks
    assert not [path for path in (tmp_path / "b").iterdir() if path.suffix in (".pkl", ".pickle", ".tmp")]


def test_saving_again_replaces(data, tmp_path):
    for _ in range(2):
        save_bundle(tmp_path / "b", data, "made-up")
    assert len(load_bundle(tmp_path / "b")[0].dataset.record_ids) == len(data.dataset.record_ids)


def test_damage_is_named(data, tmp_path):
    with pytest.raises(DataError, match=r"bundle\.json"):
        load_bundle(tmp_path)
    save_bundle(tmp_path, data, "made-up")
    programs = tmp_path / "programs.parquet"
    programs.write_bytes(programs.read_bytes()[:200])
    with pytest.raises(DataError, match="corrupt or truncated"):
        load_bundle(tmp_path)
    save_bundle(tmp_path, data, "made-up")
    (tmp_path / "per_store.npz").write_bytes(b"PK")
    with pytest.raises(DataError, match="per_store.npz"):
        load_bundle(tmp_path)
