"""Calculon (SC'23), run from a checkout of its repository as its own search runs it, in this process."""

from __future__ import annotations

import copy
import importlib
import json
import logging
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cdmpp.errors import DataError

URL = "https://github.com/calculon-ai/calculon"
MODEL, SYSTEM = "models/gpt3-175B.json", "systems/h100_80g_nvl8.json"


@dataclass(frozen=True)
class Evaluated:
    """Calculon evaluated executions: those that can be and fit, and its CPU seconds."""

    good: int
    cpu_s: float


class Calculon:
    """A checkout; ``DataError`` where the folder is none."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        if not (self.folder / MODEL).is_file() or not (self.folder / SYSTEM).is_file():
            raise DataError(f"{folder} is no checkout of Calculon: it lacks {MODEL} or {SYSTEM}; git clone {URL}")
        asked = ["git", "-C", str(self.folder), "rev-parse", "--show-toplevel", "HEAD"]
        told = subprocess.run(asked, capture_output=True, text=True, check=False)
        top, _, self.commit = told.stdout.strip().partition("\n")
        if told.returncode or Path(top) != self.folder:
            raise DataError(f"{folder} is no git checkout, so that its commit is unknown: git clone {URL}")
        sys.path.insert(0, str(self.folder))
        try:
            self.llm = importlib.import_module("calculon.llm")
        except ModuleNotFoundError as error:
            raise DataError(f"Calculon imports {error.name}, which is missing: pip install {error.name}") from error
        self._all = self.llm.AllExecutions
        found = Path(str(self.llm.__file__)).resolve()
        if self.folder not in found.parents:
            raise DataError(f"another calculon was imported before: {found}")
        self._network = self.llm.Llm.Application(json.loads((self.folder / MODEL).read_text()))
        self._system = self.llm.System(json.loads((self.folder / SYSTEM).read_text()))

    def sample(self, ranks: int, batch: int, count: int, is_narrow: bool = False) -> tuple[int, list[tuple[Any, ...]]]:
        """Draw executions from those that its search lists for GPT-3 175B in float16; also return how many these are.

        Args:
            ranks: devices.
            batch: examples of a step.
            count: of the sample; it is the same each time.
            is_narrow: draw only from those without tensor parallelism, interleaving and offloading.
        """
        fields = self.llm.Llm.Execution.fields()
        listed = self._all.all_executions(self._network, self._system, ranks, batch, "float16", [True])
        if is_narrow:
            fixed = {"tensor_par": 1, "tensor_par_comm_type": "ar", "pipeline_interleaving": 1} | dict.fromkeys(
                ("weight_offload", "activations_offload", "optimizer_offload"), False
            )
            wanted = [(fields.index(name), value) for name, value in fixed.items()]
            listed = (one for one in listed if all(one[place] == value for place, value in wanted))
        drawn, chance, total = list[tuple[Any, ...]](), random.Random(0), 0
        for total, one in enumerate(listed, 1):  # noqa: B007
            if total <= count:
                drawn.append(one)
            elif (place := chance.randrange(total)) < count:
                drawn[place] = one
        return total, drawn

    def evaluated(self, executions: list[tuple[Any, ...]]) -> Evaluated:
        """Evaluate executions with the function that ``llm-all-executions`` has for it."""
        start_s = time.process_time()
        good = self._all.search(self._network, self._system, executions)
        return Evaluated(len(good), time.process_time() - start_s)

    def step_s(self, plans: Sequence[dict[str, Any]], peak_tflops: float) -> list[float]:
        """Return the seconds of a step of each plan in float32 on devices with any amount of memory.

        ``peak_tflops``: of float32. The rest is as in its repository; NaN where it refuses a plan.
        """
        config = json.loads((self.folder / SYSTEM).read_text())
        for unit in ("matrix", "vector"):
            config[unit]["float32"] = {**copy.deepcopy(config[unit]["float16"]), "tflops": peak_tflops}
        config["mem1"]["GiB"], config["mem2"]["GiB"] = 1 << 30, 0
        system = self.llm.System(config)
        found = []
        for plan in plans:
            model = self.llm.Llm(self._network, _quiet())
            try:
                model.compile(system, self.llm.Llm.Execution.from_json(plan))
                model.run(system)
                found.append(float(model.get_total_time()))
            except self.llm.Llm.Error:
                found.append(float("nan"))
        return found


def execution(
    ranks: int, stages: int, batch: int, micro_batch: int, recomputes: bool, shards_optimizer: bool
) -> dict[str, Any]:
    """An execution without tensor parallelism; stages and replicas lie in different nodes."""
    replicas = ranks // stages
    return {
        "num_procs": ranks, "tensor_par": 1, "pipeline_par": stages, "data_par": replicas, "tensor_par_net": 0,
        "pipeline_par_net": int(stages > 1), "data_par_net": int(replicas > 1), "batch_size": batch,
        "microbatch_size": micro_batch, "datatype": "float32", "fused_activation": False,
        "attention_type": "multihead", "activation_recompute": "full" if recomputes else "none",
        "pipeline_interleaving": 1, "optimizer_sharding": shards_optimizer, "tensor_par_comm_type": "ar",
        "tensor_par_overlap": "none", "seq_par_ag_redo": False, "data_par_overlap": replicas > 1,
        "weight_offload": False, "activations_offload": False, "optimizer_offload": False, "training": True,
    }  # fmt: skip


def _quiet() -> logging.Logger:
    logger = logging.Logger("calculon")
    logger.addHandler(logging.NullHandler())
    return logger
