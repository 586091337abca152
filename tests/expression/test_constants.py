"""Non-negative least squares of many problems agree with scipy's of one."""

import numpy as np
import pytest
from scipy.optimize import nnls

from cdmpp.expression.constants import nonnegative, percentage_fit


@pytest.mark.parametrize("terms", [1, 2, 5, 9])
def test_many_problems_at_once_agree_with_one_at_a_time(terms):
    rng = np.random.default_rng(terms)
    columns = rng.normal(size=(50, 20, terms))
    target = rng.normal(size=(50, 20))
    found = nonnegative(np.einsum("brk,brl->bkl", columns, columns), np.einsum("brk,br->bk", columns, target))
    expected = np.array([nnls(one, other)[0] for one, other in zip(columns, target, strict=True)])
    assert np.allclose(found, expected, atol=1e-6) and (found >= 0).all() and (expected == 0).any()


def test_a_column_of_zeros_gets_no_constant():
    gram, moment = np.diag([2.0, 0.0]), np.array([4.0, 0.0])
    assert np.allclose(nonnegative(gram, moment), [2.0, 0.0])


@pytest.mark.parametrize("law", [(1e-4, 2e-9), (0.0, 2e-9), (3e-4, 0.0)])
def test_a_percentage_fit_is_that_of_scipy_and_weighs_relative_errors(law):
    """A line through exchanges of 1 KiB to 64 MiB: small ones count as much as large ones."""
    sizes = 2.0 ** np.arange(10, 27)
    took = (law[0] + law[1] * sizes) * np.exp(np.random.default_rng(0).normal(0, 0.02, len(sizes)))
    columns = np.stack([np.ones(len(sizes)), sizes / sizes.max()], axis=1)
    found = percentage_fit(columns, took)
    assert found == pytest.approx(nnls(columns / took[:, None], np.ones(len(sizes)))[0], rel=1e-5, abs=1e-12)
    assert found / [1, sizes.max()] == pytest.approx(law, rel=0.02, abs=1e-7 if law[1] else 1e-12)
