"""A training small enough for tests: five weights are pulled towards 1."""

from __future__ import annotations

import os
import signal
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


def nothing(seed: int, worker: int, workers: int) -> None:
    return None


def exiting(seed: int, worker: int, workers: int) -> Toy:
    os._exit(3)


def raising(seed: int, worker: int, workers: int) -> Toy:
    raise ValueError("my own error")


def hanging(seed: int, worker: int, workers: int) -> Toy:
    return Toy(seed, 1000.0)


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


class Returning(Toy):
    """Its third batch, the first one on the clock, returns something else."""

    def __init__(self, returned: object) -> None:
        super().__init__(0, 0.01)
        self.returned, self.calls = returned, 0

    def batch(self) -> tuple[int, float]:
        self.calls += 1
        right = super().batch()
        return self.returned if self.calls == 3 else right  # type: ignore[return-value]


def returning(seed: int, worker: int, workers: int, returned: object) -> Toy:
    return Returning(returned) if worker == 1 else Toy(seed, 0.01)


class TensorLoss(Toy):
    def batch(self) -> tuple[int, float]:
        samples, loss = super().batch()
        return samples, torch.tensor([loss], requires_grad=True)  # type: ignore[return-value]


def tensor_loss(seed: int, worker: int, workers: int) -> Toy:
    return TensorLoss(seed, 0.01)


def turned(seed: int, worker: int, workers: int) -> Toy:
    toy = Toy(seed)
    toy.parameters = [torch.zeros(1), torch.zeros(4, 3) if worker == 1 else torch.zeros(3, 4)]
    return toy


def split(seed: int, worker: int, workers: int) -> Toy:
    toy = Toy(seed)
    toy.parameters = (
        [torch.zeros(2), torch.zeros(3)] if worker == 1 else [torch.zeros(2), torch.zeros(2), torch.zeros(1)]
    )
    return toy


class Cut(Toy):
    """Its fourth batch, on the clock, loses a connection of its own."""

    calls = 0

    def __init__(self, error: type[Exception], where: str) -> None:
        super().__init__(0, 0.01)
        self.error, self.where = error, where

    def batch(self) -> tuple[int, float]:
        self.calls += 1
        if self.calls == 4 and self.where == "batch":
            raise self.error("no more data")
        return super().batch()

    def loss(self) -> float:
        if self.where == "loss" and self.parameters[1].any():
            raise self.error("no more data")
        return super().loss()


def cut(seed: int, worker: int, workers: int, error: type[Exception], where: str) -> Toy:
    return Cut(error, where if worker == 0 else "")


class BadLoss(Toy):
    """``loss`` is right for the initial parameters; for others it does what ``how`` says."""

    def __init__(self, how: str) -> None:
        super().__init__(0, 0.01)
        self.how = how

    def batch(self) -> tuple[int, float]:
        time.sleep(self.seconds)
        for one in self.parameters:
            one.add_(RATE * (1 - one))
        return 3, 1.0

    def loss(self) -> float:
        if not self.parameters[1].any():
            return super().loss()
        if self.how == "raise":
            raise ZeroDivisionError("no held-out samples")
        if self.how == "exit":
            os._exit(3)
        return float("nan")


def bad_loss(seed: int, worker: int, workers: int, how: str) -> Toy:
    return BadLoss(how)


class Saying(Toy):
    """Says in a line when it trains on the clock."""

    calls = 0

    def batch(self) -> tuple[int, float]:
        self.calls += 1
        if self.calls == 5:
            print("trains", flush=True)
        return super().batch()


def saying(seed: int, worker: int, workers: int) -> Toy:
    return Saying(seed, 0.01)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell starts in the background ignores it
    from cdmpp.synchrony import run
    from cdmpp.synchrony.policies import synchrony_of
    from cdmpp.synchrony.processes.place import ServerPlace, WorkerPlace
    from tests.synchrony.processes import toy_training

    run(toy_training.saying, synchrony_of("async"), [WorkerPlace()] * 2, [ServerPlace()] * 2, seconds=60.0)
