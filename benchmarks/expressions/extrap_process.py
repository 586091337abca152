"""Fits of Extra-P, in a process of a Python that has it: a JSON list of splits in, predictions out.

It imports nothing of this project: ``EXTRAP_PYTHON extrap_process.py < splits.json``.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time

from extrap.entities.callpath import Callpath
from extrap.entities.coordinate import Coordinate
from extrap.entities.experiment import Experiment
from extrap.entities.measurement import Measurement
from extrap.entities.metric import Metric
from extrap.entities.parameter import Parameter
from extrap.modelers.model_generator import ModelGenerator


def fitted(split: dict) -> dict:
    """Model one split with the defaults of Extra-P; repeats of a configuration count by their median."""
    known, asked = split["known"], split["asked"]
    varying = [place for place in range(len(known[0])) if len({row[place] for row in known}) > 1]
    experiment, metric, path = Experiment(), Metric("time"), Callpath("main")
    for place in varying:
        experiment.add_parameter(Parameter(f"p{place}"))
    experiment.add_metric(metric)
    experiment.add_callpath(path)
    times = {}
    for row, seconds in zip(known, split["known_s"], strict=True):
        times.setdefault(tuple(row[place] for place in varying), []).append(seconds)
    for point in sorted(times):
        coordinate = Coordinate(*point)
        experiment.add_coordinate(coordinate)
        experiment.add_measurement(Measurement(coordinate, path, metric, times[point]))
    begun = time.process_time()
    generator = ModelGenerator(experiment, use_median=True)
    generator.model_all()
    cpu_s = time.process_time() - begun
    function = generator.models[(path, metric)].hypothesis.function
    points = [[row[place] for place in varying] for row in asked]
    times_s = [float(function.evaluate(one if len(one) > 1 else one[0])) for one in points]
    return {"times_s": times_s, "cpu_s": cpu_s, "text": function.to_string(*experiment.parameters)}


if __name__ == "__main__":
    with contextlib.redirect_stdout(sys.stderr):
        found = [fitted(split) for split in json.load(sys.stdin)]
    json.dump(found, sys.stdout)
