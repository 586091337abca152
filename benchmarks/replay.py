"""Searches replayed on recorded programs: each model chooses among those that were measured once, 64 at a time.

    python -m benchmarks.replay [device=a100] [networks=resnet34,googlenet] [seeds=0,1,2] [out=outputs/replay]
        [models=frozen,online,xgb,random] [evaluation=outputs/evaluation] [name=a100] [data=FOLDER,...]

Nothing is measured, so no device is needed. The tasks of a network that no model was trained on take turns and share a
model, as in ``ms.tune_tasks``. ``evaluation`` holds what ``cdmpp model evaluate device=a100 models=[cdmpp]
splits=[by_network+test_networks:resnet34,...]`` trained, under ``name`` where it was given one. ``data``: the records
to choose among, where they are not all that are found. Our model reads the machine code of every candidate whose code
vector is there. Every (network, seed, model) is a file; finished ones stay.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np

from benchmarks.publish.command_line import run
from cdmpp import devices
from cdmpp.data.dataset import LatencyDataset
from cdmpp.data.loading import load_programs
from cdmpp.data.per_store import per_store_rows
from cdmpp.data.sources import data_folders
from cdmpp.data.splits import make_split
from cdmpp.evaluation.cell import Cell
from cdmpp.model.pooled import with_devices
from cdmpp.platform.files import read_json, write_json
from cdmpp.predict.model_folder import load
from cdmpp.predict.rows import predict_rows
from cdmpp.training.metrics import call_sites
from cdmpp.tuning.learner import Learner

BATCH, MOST = 64, 256
MARKS = (1, 8, 64, 128, 192, 256)


class Player(Protocol):
    """A model that chooses among programs of one data set, by their rows."""

    tells_seconds: bool

    def behind(self, task: str, rows: np.ndarray) -> np.ndarray:
        """(n,) of programs of one task, least for those it would measure first; log-latency if it tells seconds."""

    def learn(self, task: str, rows: np.ndarray) -> None:
        """Their latency is known now."""


@dataclass
class Ours:
    """A trained model and what it learns on the way, as ``cdmpp.tuning`` scores where nothing is compiled."""

    log_latency: np.ndarray
    """(n,) of all programs, by the trained model."""
    features: np.ndarray
    log_measured: np.ndarray
    frozen: bool = False
    learner: Learner = field(default_factory=Learner)
    learned: list[int] = field(default_factory=list)
    tells_seconds = True

    def behind(self, task: str, rows: np.ndarray) -> np.ndarray:
        return self.log_latency[rows] + self.learner.expected(self.features[rows], task)

    def learn(self, task: str, rows: np.ndarray) -> None:
        if not self.frozen:
            self.learner.learn(self.features[rows], self.log_measured[rows] - self.log_latency[rows], task)
            self.learned += rows.tolist()

    def without(self, row: int) -> Ours:
        """The same, had it never seen the program ``row``."""
        kept = np.array(self.learned, int) != row
        mine = self.learner
        rest = Learner(mine.weights, mine.features[kept], mine.errors[kept], mine.tasks[kept]) if len(mine) else mine
        return Ours(self.log_latency, self.features, self.log_measured, learner=rest)


class Trees:
    """MetaSchedule's XGBModel itself, given the features that it would extract."""

    tells_seconds = False

    def __init__(self, rows: Sequence[np.ndarray], latency_s: np.ndarray, modules: Mapping[str, Any], seed: int):
        from tvm.s_tir.meta_schedule.cost_model import XGBModel

        np.random.seed(seed)  # what it scores with until it has seen 100 programs
        self.model, self.latency_s, self.modules = XGBModel(num_tuning_cores=2)._inst, latency_s, modules
        self.model.extractor = SimpleNamespace(
            extract_from=lambda _, chosen: [SimpleNamespace(numpy=lambda row=row: rows[row]) for row in chosen]
        )

    def behind(self, task: str, rows: np.ndarray) -> np.ndarray:
        return -self.model.predict(SimpleNamespace(mod=self.modules[task]), rows.tolist())

    def learn(self, task: str, rows: np.ndarray) -> None:
        results = [SimpleNamespace(run_secs=[float(self.latency_s[row])]) for row in rows]
        self.model.update(SimpleNamespace(mod=self.modules[task]), rows.tolist(), results)


@dataclass
class Chance:
    """Any order."""

    random: np.random.Generator
    tells_seconds = False

    def behind(self, task: str, rows: np.ndarray) -> np.ndarray:
        return self.random.random(len(rows))

    def learn(self, task: str, rows: np.ndarray) -> None:
        """Nothing."""


def replay(
    player: Player, tasks: Mapping[str, np.ndarray], latency_s: np.ndarray, weights: Mapping[str, float]
) -> list[dict[str, float]]:
    """A line for each of ``MARKS``: regrets after so many programs of each task, and the bias at the best one.

    ``tasks``: rows of the programs of each. Regret: the best that was measured over the best that there is, as the
    geometric mean over tasks, and of times summed by ``weights`` (call sites). Bias: mean of predicted over measured
    latency less one of each task's best program, which is kept from the model where it was measured already.
    """
    orders: dict[str, list[int]] = {task: [] for task in tasks}
    bias: dict[int, float] = {}
    for done in range(0, MOST, BATCH):
        if player.tells_seconds:
            bias[done] = float(np.mean([_error_at_best(player, task, rows, latency_s) for task, rows in tasks.items()]))
        for task, rows in tasks.items():
            left = rows[~np.isin(rows, orders[task])]
            if len(left):
                chosen = left[np.argsort(player.behind(task, left), kind="stable")[:BATCH]]
                orders[task] += chosen.tolist()
                player.learn(task, chosen)
    best = {task: float(latency_s[rows].min()) for task, rows in tasks.items()}
    lines = []
    for trials in MARKS:
        reached = {task: float(latency_s[order[:trials]].min()) for task, order in orders.items()}
        sums = [sum(weights[task] * times[task] for task in tasks) for times in (reached, best)]
        logs = [np.log(reached[task] / best[task]) for task in tasks]
        line = {"trials": trials, "weighted_regret": sums[0] / sums[1], "regret": float(np.exp(np.mean(logs)))}
        told = 0 if trials == 1 else trials
        lines.append(line | ({"bias_at_best": bias[told]} if told in bias else {}))
    return lines


def _error_at_best(player: Any, task: str, rows: np.ndarray, latency_s: np.ndarray) -> float:
    best = rows[[int(np.argmin(latency_s[rows]))]]
    return float(np.exp(player.without(int(best[0])).behind(task, best))[0] / latency_s[best[0]] - 1.0)


def main(device: str, networks: str, seeds: str, models: str, evaluation: str, name: str, data: str, out: str) -> None:
    """Replay all cells that are not there yet and print their lines."""
    folders = [Path(folder) for folder in data.split(",") if folder] or data_folders(device, (Path("datasets"),))
    dataset = load_programs(folders, device)
    per_store = per_store_rows(dataset, folders) if "xgb" in models.split(",") else {}
    sheet, latency_s = devices.get(device), np.asarray(dataset.latency_s)
    features = with_devices(dataset.asts, [sheet] * len(dataset.asts))
    for network in networks.split(","):
        split_name = f"by_network+test_networks:{network}"
        for seed in map(int, str(seeds).split(",")):
            test = np.asarray(make_split(dataset, split_name, seed).test)
            names = np.asarray(dataset.task_ids)[test].astype(str)
            order = np.random.default_rng(seed).permutation(np.unique(names))
            tasks = {task: test[names == task] for task in order.tolist() if np.sum(names == task) > 1}
            for model in models.split(","):
                path = Path(out) / f"{device}-{network}-{model}-{seed}.json"
                if not path.exists():
                    if model in ("frozen", "online"):
                        folder = (
                            Cell(split_name, seed, "cdmpp").model_folder(Path(evaluation), name or device) / "model"
                        )
                        said = np.full(len(latency_s), np.nan)
                        said[test] = np.log(predict_rows(load(folder), dataset, test))
                        player: Player = Ours(said, features, np.log(latency_s), model == "frozen")
                    elif model == "xgb":
                        player = Trees(_rows(dataset, per_store), latency_s, _modules(dataset, tasks), seed)
                    else:
                        player = Chance(np.random.default_rng(seed))
                    lines = replay(player, tasks, latency_s, call_sites(dataset, names))
                    row = {"device": device, "network": network, "model": model, "seed": seed}
                    row |= {"tasks": len(tasks), "programs": sum(map(len, tasks.values())), "lines": lines}
                    write_json(path, row)
                print(path.stem, *read_json(path)["lines"], sep="\n  ", flush=True)


def _rows(dataset: LatencyDataset, per_store: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Return the rows of each program; none of its stores where TVM cannot tell."""
    some = next(iter(per_store.values()))
    return [per_store.get(str(key), np.zeros((1, some.shape[1]), np.float32)) for key in dataset.record_ids]


def _modules(dataset: LatencyDataset, tasks: Mapping[str, Any]) -> dict[str, Any]:
    from cdmpp.programs.replay import parse_workload

    return {task: parse_workload(dataset.tasks[task].workload) for task in tasks}


if __name__ == "__main__":
    run(
        main,
        device="a100",
        networks="resnet34,googlenet",
        seeds="0,1,2",
        models="frozen,online,xgb,random",
        evaluation="outputs/evaluation",
        name="",
        data="",
        out="outputs/replay",
    )
