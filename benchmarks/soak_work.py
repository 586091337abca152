"""What ``soak.py`` kills: an import, a collection and a training, each small enough to be done a hundred times."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from cdmpp.data.importers import databases as importers
from cdmpp.data.records import write_tasks
from cdmpp.measure import reference_kernels
from cdmpp.measure.collector import Collector
from cdmpp.measure.settings import MeasureSettings
from cdmpp.measure.subjects import Subject, Subjects
from cdmpp.platform.files import read_json, write_json
from cdmpp.recipes.train import train
from cdmpp.training.config import Run, TrainConfig
from tests.data.other_network import other_network
from tests.measure.tiny_task import TASK, schedules
from tests.toy_data import toy_dataset

_ROOT = Path(__file__).resolve().parents[1]
_SCHEDULES = "schedules.json"
_EPOCHS = 12


def prepare(scratch: Path) -> tuple[Path, Path]:
    """Two networks' databases; the programs to measure are left in ``scratch``."""
    write_json(scratch / _SCHEDULES, {f"{number:016x}": text for number, text in enumerate(schedules())})
    first = _ROOT / "tests" / "fixtures" / "resnet34_a100"
    return first, other_network(first, scratch / "vgg_a100")


def work(command: Sequence[str], pipe: Connection, log: str) -> None:
    """A child process: says that it could begin, waits for leave, and works."""
    file = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    torch.set_num_threads(1)
    pipe.send("ready")
    pipe.recv()
    _WORK[command[0]](*command[1:])


def _import(source: str, out: str, network: str) -> None:
    importers.PART_SIZE = 2
    importers.import_database(Path(source), Path(out), "a100", network, progress=False)


def _train(out: str, seed: str) -> None:
    dataset, split = toy_dataset(240)
    small = {"name": "cdmpp", "width": 16, "layers": 1, "heads": 2, "feedforward": 16, "hidden": 16}
    trainer = {"epochs": _EPOCHS, "batch_size": 16, "members": 2}
    config = TrainConfig.from_dict({"model": small, "loss": {}, "trainer": trainer})
    train(dataset, split, config, Run(Path(out), int(seed), False, "cpu"))


class _Tiny(Collector):
    """Measures the hand-made schedules of one task."""

    def _subjects(self, scratch: Path) -> Subjects:
        write_tasks(self.folder, [TASK])
        schedules_of = read_json(self.folder.parent / _SCHEDULES)
        return Subjects(Subject.of(k, TASK, s, scratch) for k, s in schedules_of.items() if k not in self.journal)


def _measure(out: str) -> None:
    # How long the programs take does not matter here, so the machine need not be quiet.
    reference_kernels.TOLERANCE = dict.fromkeys(reference_kernels.TOLERANCE, 1e9)
    reference_kernels.WORKLOADS = {"compute": reference_kernels.WORKLOADS["compute"]}
    settings = MeasureSettings("xeon-icelake", builders=1, batch=2, min_separation_s=0.0, progress=False, force=True)
    _Tiny(settings, Path(out)).run()


_WORK: dict[str, Callable[..., None]] = {"import": _import, "measure": _measure, "train": _train}
