"""Curve: what one collective took at growing sizes on one system, as knots of a line that never falls."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from cdmpp.errors import DataError


@dataclass(frozen=True)
class Curve:
    """A curve is latency over bytes, linear between knots: each piece has an alpha and a beta of its own."""

    system: str
    """Who was measured, such as ``a100_sxm``."""
    link: str | None
    """A name of ``conf/interconnect``; None where the source does not tell it."""
    backend: str
    kind: str
    ranks: int
    nodes: int
    bytes: np.ndarray
    """(n,) float64, rising, as ``collective.KINDS`` counts them."""
    latency_s: np.ndarray
    """(n,) float64, seconds."""

    def __post_init__(self) -> None:
        x, y = np.asarray(self.bytes, np.float64), np.asarray(self.latency_s, np.float64)
        what = f"curve of {self.kind} on {self.system} with {self.ranks} ranks"
        if x.ndim != 1 or x.shape != y.shape or len(x) < 2:
            raise DataError(f"{what}: expected two or more sizes with a latency each, given {x.shape} and {y.shape}")
        if not (np.isfinite(x).all() and np.isfinite(y).all() and x[0] > 0 and y.min() > 0 and (np.diff(x) > 0).all()):
            raise DataError(f"{what}: sizes must be positive and rise, latencies positive and finite")
        object.__setattr__(self, "bytes", x)
        object.__setattr__(self, "latency_s", y)

    def at(self, n_bytes: float | np.ndarray) -> np.ndarray:
        """Return seconds, same shape: below all knots those of the first, above with the slope of the last piece."""
        x, y, asked = self.bytes, self.latency_s, np.asarray(n_bytes, np.float64)
        slope = max((y[-1] - y[-2]) / (x[-1] - x[-2]), 0.0)
        return np.interp(asked, x, y) + np.maximum(asked - x[-1], 0.0) * slope

    def octaves_outside(self, n_bytes: float) -> float:
        """Count the halvings or doublings that bring a size among the measured ones; 0 inside."""
        return float(np.log2(max(n_bytes / self.bytes[-1], self.bytes[0] / n_bytes, 1.0)))

    def elasticity(self) -> np.ndarray:
        """Return (n,) relative changes of latency over those of bytes, from half to twice each size, in 0 to 1."""
        low, high = np.maximum(self.bytes / 2, self.bytes[0]), np.minimum(self.bytes * 2, self.bytes[-1])
        return np.clip(np.log(self.at(high) / self.at(low)) / np.log(high / low), 0.0, 1.0)

    def monotone(self) -> Curve:
        """Fit the nearest curve in log-seconds that never falls (isotonic regression)."""
        from sklearn.isotonic import isotonic_regression  # answers need none of it

        return replace(self, latency_s=np.exp(isotonic_regression(np.log(self.latency_s))))

    def kept(self, rows: np.ndarray) -> Curve:
        """Keep only the knots at ``rows``: indices, or a mask."""
        return replace(self, bytes=self.bytes[rows], latency_s=self.latency_s[rows])

    def fitted(self, tolerance: float) -> Curve:
        """Keep few knots: a line through measured ones is within ``tolerance`` of all, relative.

        Which ones is found by Ramer, Douglas and Peucker's rule; then the latency of the first knot and the rises to
        the others are fitted to all points by non-negative least squares of relative errors.
        """
        keep, open_pieces = {0, len(self.bytes) - 1}, [(0, len(self.bytes) - 1)]
        while open_pieces:
            first, last = open_pieces.pop()
            inner = slice(first + 1, last)
            guess = np.interp(self.bytes[inner], self.bytes[[first, last]], self.latency_s[[first, last]])
            off = np.abs(guess / self.latency_s[inner] - 1)
            if len(off) and off.max() > tolerance:
                worst = first + 1 + int(off.argmax())
                keep.add(worst)
                open_pieces += [(first, worst), (worst, last)]
        few = self.kept(np.array(sorted(keep)))
        from cdmpp.expression.constants import percentage_fit  # answers need none of it

        hats = np.stack([np.interp(self.bytes, few.bytes, unit) for unit in np.eye(len(few.bytes))], axis=1)
        rises = percentage_fit(hats @ np.tril(np.ones((len(few.bytes), len(few.bytes)))), self.latency_s)
        return replace(few, latency_s=np.maximum(np.cumsum(rises), self.latency_s[0] / 2))
