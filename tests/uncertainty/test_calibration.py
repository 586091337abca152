"""What is stored of a calibration answers as before."""

from __future__ import annotations

import json

import numpy as np
import pytest

from cdmpp.uncertainty.calibration import Calibration, Examined, calibrate
from cdmpp.uncertainty.novelty import ProgramSketch


def examined(rng: np.random.Generator, n: int) -> Examined:
    hidden, largest, smallest = (rng.normal(size=(n, width)).astype(np.float32) for width in (16, 6, 6))
    counts = rng.integers(1, 9, n)
    return Examined(rng.normal(size=(1, n)), ProgramSketch(hidden, largest + 3, smallest), counts, counts, counts * 0)


@pytest.mark.parametrize("n_tasks", [2, 50])
def test_what_is_stored_answers_the_same(n_tasks):
    rng = np.random.default_rng(4)
    training, validation, new = examined(rng, 200), examined(rng, 4 * n_tasks), examined(rng, 30)
    tasks = [f"task{i // 4}" for i in range(4 * n_tasks)]
    groups = ["cpu/a" if i % 2 else "cpu/b" for i in range(4 * n_tasks)]
    calibration = calibrate(training, validation, rng.normal(size=4 * n_tasks), tasks, groups)
    arrays, settings = calibration.arrays(), calibration.settings()
    again = Calibration.restore(arrays, json.loads(json.dumps(settings)))
    paths = ["cpu/a"] * 10 + ["cpu/b"] * 10 + ["gpu/c"] * 10
    np.testing.assert_equal(again.intervals(new, paths), calibration.intervals(new, paths))
    score = calibration.novelty.score(new.sketch)
    np.testing.assert_array_equal(again.novelty.score(new.sketch), score)
    np.testing.assert_array_equal(again.novelty.unlike(score), calibration.novelty.unlike(score))
    np.testing.assert_equal(again.arrays(), arrays)
    with pytest.raises(TypeError, match="grid"):
        Calibration.restore({name: array for name, array in arrays.items() if name != "novelty.grid"}, settings)
