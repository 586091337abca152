"""Sailor's plans as the product judges them, with factors of plans that are not the judged ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from benchmarks.plans.sailor_data import ITEM_BYTES, Trained
from benchmarks.plans.sailor_job import Job
from benchmarks.plans.scores import least_absolute, left_out

_SLIGHTLY = 1e-3


@dataclass(frozen=True)
class Judged:
    """Measured plans and what the product says of them."""

    jobs: Sequence[Job]

    @cached_property
    def plans(self) -> list[Trained]:
        return [job.trained for job in self.jobs]

    @cached_property
    def measured_s(self) -> np.ndarray:
        return np.array([one.iteration_s for one in self.plans])

    @cached_property
    def measured_bytes(self) -> np.ndarray:
        return np.array([one.peak_bytes for one in self.plans])

    @cached_property
    def parts_s(self) -> np.ndarray:
        """(n, 3) seconds of each step that follow the first factor, the second, and none."""
        found = []
        for job in self.jobs:
            whole = job.step_s()
            host, gpu = ((job.step_s(*pair) - whole) / _SLIGHTLY for pair in ((1 + _SLIGHTLY, 1), (1, 1 + _SLIGHTLY)))
            found.append((host, gpu, whole - host - gpu))
        return np.array(found)

    def seconds(self, factors: Callable[[int], tuple[float, float]]) -> np.ndarray:
        """Replay each plan with two factors; its number -> factors."""
        return np.array([job.step_s(*factors(number)) for number, job in enumerate(self.jobs)])

    def factors(self, groups: Sequence[object]) -> Callable[[int], tuple[float, float]]:
        """Return the factors for each plan, by plans of other groups."""
        numbers = list(groups)

        def fitted(judged: int) -> tuple[float, float]:
            seen = np.array([one != numbers[judged] for one in numbers])
            host, gpu = least_absolute(self.parts_s[seen, :2], self.parts_s[seen, 2], self.measured_s[seen])
            return float(host), float(gpu)

        return fitted

    @cached_property
    def left_out_s(self) -> np.ndarray:
        """Seconds by two factors of all other plans."""
        return self.seconds(self.factors(range(len(self.jobs))))

    @cached_property
    def tensors(self) -> np.ndarray:
        """Bytes of tensors of the rank that holds most."""
        return np.array([job.held_bytes() for job in self.jobs])

    def bytes_left(self, groups: Sequence[object]) -> np.ndarray:
        """Bytes by a share of the tensors and a constant, by plans of other groups."""
        return self._fitted_bytes(np.stack([self.tensors, np.ones(len(self.jobs))], axis=1), groups)

    @cached_property
    def left_out_bytes(self) -> np.ndarray:
        return self.bytes_left(range(len(self.jobs)))

    def three_numbers(self, groups: Sequence[object]) -> np.ndarray:
        """The fitted baseline: bytes a parameter, an item in flight and a GPU, of the heaviest stage."""
        found = []
        for job in self.jobs:
            one, begin, stages = job.trained, 0, []
            for stage, count in enumerate(one.layers):
                layers = job.profiles[one.micro_batch][begin : begin + count]
                begin += count
                alive = min(one.micro_batches, one.stages - stage) * one.micro_batch
                items = sum(layer.parameters for layer in layers), alive * sum(layer.saved for layer in layers)
                stages.append((*items, 1.0))
            found.append(max(stages, key=lambda row: ITEM_BYTES * (5 * row[0] + row[1])))
        return self._fitted_bytes(np.array(found), groups)

    def _fitted_bytes(self, columns: np.ndarray, groups: Sequence[object]) -> np.ndarray:
        nothing, measured = np.zeros(len(self.jobs)), self.measured_bytes
        return left_out(
            groups, lambda seen, i: float(columns[i] @ least_absolute(columns[seen], nothing[seen], measured[seen]))
        )
