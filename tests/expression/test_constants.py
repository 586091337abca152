"""Non-negative least squares of many problems agree with scipy's of one."""

import numpy as np
import pytest
from scipy.optimize import nnls

from cdmpp.expression.constants import nonnegative


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
