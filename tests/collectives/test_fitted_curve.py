"""Fitted curves: few knots of a line that never falls, with the least relative error of all such lines."""

import numpy as np
import pytest
from scipy.optimize import minimize

from cdmpp.collectives.curve import Curve


def measured(noise):
    sizes = 2.0 ** np.arange(8, 27)
    took = (1.2e-5 + 4e-11 * sizes) * np.exp(np.random.default_rng(1).normal(0, noise, len(sizes)))
    return Curve("a100", None, "nccl", "all_reduce", 8, 1, sizes, took)


@pytest.mark.parametrize("noise", [0.0, 0.02, 0.1])
def test_knots_never_fall_and_no_others_would_be_nearer(noise):
    curve = measured(noise).monotone()
    fitted = curve.fitted(0.03)
    assert (np.diff(fitted.latency_s) >= 0).all() and len(fitted.bytes) <= len(curve.bytes)

    def error(latency_s):
        return ((np.interp(curve.bytes, fitted.bytes, latency_s) / curve.latency_s - 1) ** 2).sum()

    best = minimize(
        lambda logs: error(np.cumsum(np.exp(logs))), np.log(np.maximum(np.diff(fitted.latency_s, prepend=0), 1e-9)),
        method="L-BFGS-B", options={"maxiter": 2000, "maxfun": 100_000},
    )  # fmt: skip
    assert error(fitted.latency_s) <= best.fun * (1 + 1e-3) + 1e-9


def test_a_line_is_found_again():
    fitted = measured(0.0).fitted(0.03)
    sizes = 2.0 ** np.arange(8, 27)
    assert fitted.at(sizes) == pytest.approx(1.2e-5 + 4e-11 * sizes, rel=1e-3)
