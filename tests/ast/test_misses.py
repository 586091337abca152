"""Misses of sets and pages, against counting every address and against what the layout of a matrix must give."""

from __future__ import annotations

import numpy as np
import pytest

from cdmpp.ast.leaf_features import LEAF_FEATURES, LEAF_NAMES
from tests.ast.quantities import quantity
from tests.reference.access import LINE_BYTES, Reach
from tests.reference.misses import SETS, sets_used


@pytest.mark.parametrize("seed", range(30))
def test_sets_are_those_of_every_address(seed):
    random = np.random.default_rng(seed)
    run = float(random.integers(1, 5) * 32)
    jumps = [
        (float(2 ** random.integers(5, 14) + random.choice([0, 0, 4, 100])), int(random.integers(2, 200)))
        for _ in range(random.integers(0, 3))
    ]
    starts = np.zeros(1, np.int64)
    for stride, extent in jumps:
        starts = np.add.outer(starts, np.arange(extent) * int(stride)).ravel()
    lines = np.unique((starts // LINE_BYTES)[:, None] + np.arange(-(-run // LINE_BYTES)).astype(np.int64))
    exact = len(np.unique(lines % SETS))
    found = sets_used(Reach(1.0, run, jumps))
    # Steps that are no whole lines are rounded down one loop at a time.
    assert found == exact if all(stride % LINE_BYTES == 0 for stride, _ in jumps) else abs(found - exact) <= SETS / 4


def amount(ast, name: str) -> float:
    place = LEAF_NAMES.index(name)
    return quantity(LEAF_FEATURES[place], ast.leaf_features[0, place])


def column_sums(width: int, rows: int = 32):
    """Each of 64 columns is summed before the next, over rows that lie ``width`` floats apart."""
    pytest.importorskip("tvm")
    import tvm
    from tvm.script import ir as I
    from tvm.script import tirx as T

    source = f"""
@I.ir_module
class Module:
    @T.prim_func
    def main(a: T.Buffer(({rows}, {width}), "float32"), out: T.Buffer((64,), "float32")):
        for j in range(64):
            for i in range({rows}):
                out[j] = out[j] + a[i, j]
"""
    return tvm.script.from_source(source, {"I": I, "T": T}), tvm.target.Target({"kind": "llvm"})


@pytest.mark.parametrize("readable", [False, True])
def test_rows_a_power_of_two_apart_crowd_into_one_set(readable):
    def misses(width):
        module, target = column_sums(width)
        from cdmpp.ast.extract import extract
        from tests.reference.extract import extract_readable

        ast = (extract_readable if readable else extract)(module, target)
        return lambda name: amount(ast, name)

    # 1024 floats are 4096 bytes, the period of the sets; 1040 floats are one line more.
    crowded, spread = misses(1024), misses(1040)
    whole = spread("miss_bytes_16kib")
    assert crowded("miss_bytes_16kib") == pytest.approx(whole, rel=0.1)
    assert spread("crowded_miss_bytes_48kib") == pytest.approx(whole, rel=0.1)
    # A line holds sixteen columns and is fetched for each of them.
    assert crowded("crowded_miss_bytes_48kib") > 10 * whole
    # Every row is a page of its own, and 33 of them fit in the buffer.
    assert 32 <= crowded("page_misses_64") <= 34


def test_pages_beyond_the_buffer_are_walked_again():
    module, target = column_sums(1024, rows=256)
    from cdmpp.ast.extract import extract

    many = extract(module, target)
    assert amount(many, "page_misses_64") >= 64 * 256
    assert 256 <= amount(many, "page_misses_1536") <= 258
