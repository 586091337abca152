"""A training small enough for tests: five weights are pulled towards 1."""

from __future__ import annotations

import os
import time

import torch

RATE = 0.1


class Toy:
    def __init__(self, seed: int, seconds: float = 0.0) -> None:
        self.weights = torch.full((5,), float(seed))
        self.parameters = [self.weights[:0], self.weights[:2].clone(), self.weights[2:].clone()]
        self.seconds = seconds

    def batch(self) -> tuple[int, float]:
        time.sleep(self.seconds)
        loss = self.loss()
        for one in self.parameters:
            one.add_(RATE * (1 - one))
        return 3, loss

    def loss(self) -> float:
        return float(sum((1 - one).square().sum() for one in self.parameters))


def train(seed: int, worker: int, workers: int) -> Toy:
    return Toy(seed, 0.01)


def uneven(seed: int, worker: int, workers: int) -> Toy:
    return Toy(seed, 0.01 * (worker + 1))


def stuck(seed: int, worker: int, workers: int) -> Toy:
    toy = Toy(seed, 0.0)
    if worker == 1:
        toy.batch = Late(toy)  # type: ignore[method-assign]
    return toy


class Late:
    """Stands still after the two batches before the clock starts."""

    def __init__(self, toy: Toy) -> None:
        self.toy, self.calls = toy, 0

    def __call__(self) -> tuple[int, float]:
        self.calls += 1
        time.sleep(60.0 * (self.calls > 2))
        return Toy.batch(self.toy)


class Busy:
    """Multiplies matrices; its parameters stay as they are."""

    def __init__(self) -> None:
        self.parameters = [torch.zeros(250_000)]
        self.matrix = torch.ones(256, 256)

    def batch(self) -> tuple[int, float]:
        for _ in range(20):
            self.matrix @ self.matrix
        return 1, 0.0


def busy(seed: int, worker: int, workers: int) -> Busy:
    return Busy()


def failing(seed: int, worker: int, workers: int) -> Toy:
    if worker == 1:
        raise ArithmeticError("no data here")
    return Toy(seed)


def leaving(seed: int, worker: int, workers: int) -> Toy:
    if worker == 1:
        os._exit(3)
    return Toy(seed)


def different(seed: int, worker: int, workers: int) -> Toy:
    toy = Toy(seed)
    if worker == 1:
        toy.parameters.append(torch.zeros(2))
    return toy


def doubles(seed: int, worker: int, workers: int) -> Toy:
    toy = Toy(seed)
    toy.parameters = [torch.zeros(2, dtype=torch.float64)]
    return toy
