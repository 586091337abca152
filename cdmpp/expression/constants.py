"""Constants: non-negative least squares of many small problems at once, by block principal pivoting.

Given the exponents, the best constants are a convex problem. Source of the method: Portugal, Judice and Vicente, "A
comparison of block pivoting and interior-point algorithms for linear least squares problems with nonnegative
variables" (Mathematics of Computation, 1994).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
_RIDGE = 1e-9
_MOST = 40
"""Exchanges of sets; each one that is left with an infeasible entry is single from the tenth on."""


def percentage_fit(columns: Floats, measured: Floats) -> Floats:
    """Fit the constants of a sum of terms: least squares of relative errors, none below 0.

    Args:
        columns: values of the terms, shape ``(rows, terms)``.
        measured: what their sum is to be, above 0, shape ``(rows,)``.

    Returns:
        Constants, shape ``(terms,)``.
    """
    shares = columns / measured[:, None]
    return nonnegative(shares.T @ shares, shares.sum(axis=0))


def nonnegative(gram: Floats, moment: Floats) -> Floats:
    """Minimise ``x A x / 2 - b x`` over x >= 0.

    Args:
        gram: A, positive semidefinite, shape ``(..., k, k)``.
        moment: b, shape ``(..., k)``.

    Returns:
        x, shape ``(..., k)``.
    """
    k = moment.shape[-1]
    flat_gram, flat_moment = gram.reshape(-1, k, k), moment.reshape(-1, k)
    scale = np.sqrt(np.einsum("bii->bi", flat_gram))
    scale = np.where(scale > 0, scale, 1.0)
    a = flat_gram / (scale[:, :, None] * scale[:, None, :]) + _RIDGE * np.eye(k)
    b = flat_moment / scale
    free = b > 0
    found = np.zeros_like(b)
    left = np.arange(len(b))
    for step in range(_MOST):
        mask = free[left]
        both = mask[:, :, None] & mask[:, None, :]
        system = np.where(both, a[left], 0.0) + np.einsum("bi,ij->bij", ~mask, np.eye(k))
        x = np.linalg.solve(system, np.where(mask, b[left], 0.0)[:, :, None])[:, :, 0]
        slope = np.einsum("bij,bj->bi", a[left], x) - b[left]
        wrong = (mask & (x < -1e-12)) | (~mask & (slope < -1e-10))
        found[left] = np.maximum(np.where(mask, x, 0.0), 0.0)
        bad = wrong.any(axis=1)
        if not bad.any():
            break
        left, wrong = left[bad], wrong[bad]
        if step >= 10:  # the last infeasible entry only: this cannot cycle
            last = k - 1 - np.argmax(wrong[:, ::-1], axis=1)
            wrong = np.zeros_like(wrong)
            wrong[np.arange(len(left)), last] = True
        free[left] ^= wrong
    return (found / scale).reshape(moment.shape)
