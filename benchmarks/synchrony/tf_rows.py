"""Public figures of TensorFlow's benchmarks of May 2017: images a second of five networks on 1 to 64 GPUs.

Repository tensorflow/tensorflow, tensorflow/docs_src/performance/benchmarks.md at 5984ffe, Apache-2.0; transcribed in
the folder ``tf-parameter-server`` of ``--data``.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
import torchvision

from cdmpp.errors import DataError

ITEM_BYTES = 4
_FILE = Path("tf-parameter-server") / "throughput.csv"
Job = tuple[str, str, str, int]


@dataclass(frozen=True)
class Row:
    """One measured speed."""

    platform: str
    model: str
    is_real: bool
    """True if images come from files, through the input pipeline of the host; False: they are synthetic."""
    batch: int
    """Images of a GPU in one step."""
    gpus: int
    machines: int
    servers: int
    """Parameter servers on machines; 0 where one machine keeps the parameters by itself."""
    step_s: float

    @property
    def job(self) -> Job:
        """Return what is the same on any number of GPUs."""
        return self.platform, self.model, "real" if self.is_real else "synthetic", self.batch

    @property
    def bytes(self) -> int:
        """Return the bytes of the parameters in float32, as torchvision's network of this name has them."""
        return ITEM_BYTES * parameters(self.model)


@cache
def parameters(model: str) -> int:
    """Count the parameters of a network, without auxiliary heads."""
    options = {"aux_logits": False, "init_weights": False} if model == "inception_v3" else {}
    with torch.device("meta"):
        network = torchvision.models.get_model(model, **options)
    return sum(one.numel() for one in network.parameters())


def rows(data: Path) -> list[Row]:
    """Read all rows; ``DataError``: one is unsound."""
    with (data / _FILE).open(newline="") as file:
        return [_row(number, row) for number, row in enumerate(csv.DictReader(file), 2)]


def _row(number: int, row: dict[str, str]) -> Row:
    try:
        batch, gpus, machines, servers = (
            int(row[name]) for name in ("batch_per_gpu", "gpus", "instances", "parameter_servers")
        )
        step_s = batch * gpus / float(row["images_per_s"])
        if min(batch, gpus, machines) < 1 or servers < 0 or row["data"] not in ("real", "synthetic"):
            raise ValueError("a count below 1, or unknown data")
        return Row(row["platform"], row["model"], row["data"] == "real", batch, gpus, machines, servers, step_s)
    except (KeyError, ValueError, ZeroDivisionError) as error:
        raise DataError(f"{_FILE}, line {number}: {error}") from error
