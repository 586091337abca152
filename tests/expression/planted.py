"""Tables of runs whose times follow a known expression."""

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from cdmpp.expression import RunTable

Floats = npt.NDArray[np.float64]
Law = Callable[[Mapping[str, Floats]], Floats]


def planted(law: Law, values: Mapping[str, list[float]], rows: int, noise: float, seed: int = 0) -> RunTable:
    """Draw runs at random among ``values``; ``noise``: standard deviation of the logarithm of a time."""
    rng = np.random.default_rng(seed)
    columns = {name: rng.choice(np.array(known, dtype=float), rows) for name, known in values.items()}
    return RunTable.of(columns | {"step_s": law(columns) * np.exp(rng.normal(0, noise, rows))}, "step_s")


def scaling_law(columns: Mapping[str, Floats]) -> Floats:
    """Launches, work that is divided, and an exchange."""
    gpus, batch = columns["gpus"], columns["batch"]
    return 4e-3 + 1e-3 * batch / gpus + 2e-3 * np.log2(gpus)


SCALING = {"gpus": [1, 2, 4, 8], "batch": [16, 32, 64, 128]}
