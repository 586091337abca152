"""ASTs that two data sets have in common lie in one, in the order of its records, and read back as they were."""

import numpy as np
import pytest
from toy_data import write_toy_dataset

from benchmarks.publish.share_asts import pack, share
from cdmpp.ast.table import read_asts, write_asts
from cdmpp.data.loading import load_dataset
from cdmpp.errors import DataError


@pytest.fixture
def two(tmp_path):
    write_toy_dataset(tmp_path / "first", 40)
    write_toy_dataset(tmp_path / "second", 60, prefix="b")
    return tmp_path / "first", tmp_path / "second"


def test_what_is_shared_reads_back(two):
    first, second = two
    before = load_dataset(second, progress=False)
    shared, left = share(second, first)
    assert shared + left == 60 and shared >= 40
    after = load_dataset(second, progress=False)
    assert after.record_ids.tolist() == before.record_ids.tolist()
    np.testing.assert_array_equal(after.asts.leaf_features, before.asts.leaf_features)
    np.testing.assert_array_equal(after.asts.kernel_features, before.asts.kernel_features)


def test_packing_keeps_every_ast_in_the_order_of_the_records(two):
    first, _ = two
    part = first / "asts" / "part-00000.parquet"
    before = load_dataset(first, progress=False)
    names, table = read_asts(part)
    order = np.random.default_rng(0).permutation(len(names))
    write_asts(part, [names[i] for i in order], table.take(order))
    assert pack(first) == 40
    assert read_asts(part)[0] == before.record_ids.tolist()
    np.testing.assert_array_equal(load_dataset(first, progress=False).asts.leaf_features, before.asts.leaf_features)
    part.unlink()
    with pytest.raises(DataError, match="holds no part"):
        pack(first)
