"""Pooled programs and a ranker's scores by the compiled library: those of readable code and of the torch module."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from cdmpp.ast.table import AstTable
from cdmpp.devices import get
from cdmpp.model.compiled_ranker import CompiledRanker
from cdmpp.model.pooled import pooled, with_devices
from cdmpp.model.ranker import Ranker
from tests.reference import pooling
from tests.toy_data import toy_ast


def programs(kind: str, seed: int, n: int = 40) -> AstTable:
    rng = np.random.default_rng(seed)
    table = AstTable.from_asts([toy_ast(rng, kind) for _ in range(n)])
    leaves = table.leaf_features.copy()
    leaves[rng.random(leaves.shape) < 0.5] = 0.0  # as of most programs
    leaves[rng.random(leaves.shape) < 0.1] *= -1.0
    leaves[0, 5] = 150.0  # beyond what is told apart
    return replace(table, leaf_features=leaves)


@pytest.mark.parametrize(("kind", "names"), [("cpu", ("epyc-genoa", "xeon-icelake")), ("gpu", ("a100", "t4"))])
def test_every_column_is_that_of_the_readable_code(kind, names):
    table = programs(kind, 7)
    sheets = [get(names[i % 2]) for i in range(len(table))]
    np.testing.assert_allclose(pooled(table, sheets), pooling.pooled(table, sheets), rtol=2e-6, atol=2e-6)


def test_kernels_that_take_equally_long_stay_in_order():
    table = programs("cpu", 3, 1)
    kernels = np.repeat(table.kernel_features[:1], 3, axis=0)
    kernels[:, -1] = [1.0, 2.0, 3.0]
    same = replace(table, kernel_features=kernels, kernel_offsets=np.array([0, 3]))
    sheets = [get("epyc-genoa")]
    np.testing.assert_allclose(pooled(same, sheets), pooling.pooled(same, sheets), rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("n", [1, 7, 101])
def test_scores_are_those_of_the_module(n):
    torch.manual_seed(4)
    table = programs("cpu", 5, n)
    rows = with_devices(table, [get("epyc-genoa")] * n)
    ranker = Ranker().eval().requires_grad_(False)
    known = torch.from_numpy(with_devices(programs("cpu", 6), [get("epyc-genoa")] * 40))
    ranker.fit_statistics(known)  # columns that never varied are not read
    assert 0 < int((ranker.scale == 0).sum()) < len(ranker.scale)
    rows[0, :9] = 1e30
    np.testing.assert_allclose(
        CompiledRanker(ranker).scores(rows), ranker(torch.from_numpy(rows)), rtol=1e-5, atol=1e-5
    )
