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


@dataclass(frozen=True)
class Evaluation:
    """One plan as Calculon evaluates it; all are NaN where it refuses the plan."""

    step_s: float
    compute_s: float
    """Both passes, and what is computed again."""
    update_s: float
    bubble_s: float
    tensor_s: float
    """Exchanges of divided operators in the open."""
    stages_s: float
    replicas_s: float
    memory_bytes: float

    def parts(self, names: Sequence[str]) -> dict[str, float]:
        """Map names, in this order, to parts of the step, the step itself and memory."""
        values = (self.compute_s, self.update_s, self.bubble_s, self.tensor_s, self.stages_s, self.replicas_s,
                  self.step_s, self.memory_bytes)  # fmt: skip
        return dict(zip(names, values, strict=True))


@dataclass(frozen=True)
class BlockStats:
    """One block on one rank at one micro-batch in float16, without recomputing."""

    forward_s: float
    backward_s: float
    weights_s: float
    """Seconds of the backward pass that gradients of weights take."""
    update_s: float
    weight_bytes: int
    state_bytes: int
    """Bytes of the optimizer: a copy of the weights and two moments, all in float32."""
    saved_bytes: int
    """Bytes of results that the backward pass needs."""
    result_bytes: int
    """Bytes of the block's output, on every rank that divides its operators."""


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

    def network(self, tier: int) -> Any:
        """Return one of its networks: 0 joins the devices of a node, 1 all of them."""
        return self._system.get_network(tier)

    def rate(self, tier: int) -> float:
        """Return the bytes a second of one device on a network."""
        own = json.loads((self.folder / SYSTEM).read_text())["networks"][tier]
        return 1e9 * float(own["bandwidth"] * own["efficiency"])

    def block(self, tp: int, micro_batch: int) -> BlockStats:
        """Return what it has for one block whose operators ``tp`` ranks divide, sequences on all of them."""
        model = self.llm.Llm(self._network, _quiet())
        plan = execution(tp, 1, micro_batch, micro_batch, False, False) | {
            "tensor_par": tp, "data_par": 1, "data_par_net": 0, "data_par_overlap": False, "datatype": "float16",
            "fused_activation": True, "tensor_par_net": int(tp > 8),
        }  # fmt: skip
        model.compile(self._system, self.llm.Llm.Execution.from_json(plan))
        model._compute_block_stats()
        return BlockStats(
            model._block_fw_time, model._block_agrad_time + model._block_wgrad_time, model._block_wgrad_time,
            model._block_optim_time, int(model._block_weight_space), int(model._block_optimizer_space),
            int(model._block_act_storage_space), int(model._activation_size * model._bytes_per_element),
        )  # fmt: skip

    def block_of(self, plan: dict[str, Any]) -> Any:
        """Return its model of a plan with the numbers of one block, before those of a step."""
        model = self.llm.Llm(self._network, _quiet())
        model.compile(self._system, self.llm.Llm.Execution.from_json(plan))
        model._compute_block_stats()
        return model

    def parts(self, plan: dict[str, Any]) -> tuple[float, ...]:
        """Return seconds and bytes of a plan by part: those of ``Evaluation``, waits for the host, its memory."""
        model = self.block_of(plan)
        model._compute_batch_stats()
        return (
            model.get_fw_time() + model.get_bw_time() + model.get_recompute_time(), model.get_optim_step_time(),
            model.get_bubble_time(), model.get_tp_comm_exposed_time() + model.get_recomm_exposed_time(),
            model.get_pp_comm_exposed_time(), model.get_dp_comm_exposed_time(),
            model.get_fw_offload_overhead() + model.get_bw_offload_overhead(), model.get_total_time(),
            model.get_mem_tier1_cap_req(), model.get_mem_tier2_cap_req(),
        )  # fmt: skip

    def host(self) -> tuple[Any, float]:
        """Return bytes -> seconds on the link to the host, and the bytes of its memory for each device."""
        return self._system.compute_offload_time, float(self._system.mem2.capacity)

    def distinct(self, ranks: int, batch: int, names: Sequence[str], fixed: dict[str, Any]) -> list[tuple[Any, ...]]:
        """List the settings ``names`` of its own executions whose other settings are ``fixed``, each once."""
        fields = self.llm.Llm.Execution.fields()
        wanted, kept = (
            [(fields.index(one), value) for one, value in fixed.items()],
            [fields.index(one) for one in names],
        )
        listed = self._all.all_executions(self._network, self._system, ranks, batch, "float16", [True])
        return list(dict.fromkeys(
            tuple(one[place] for place in kept) for one in listed if all(one[place] == value for place, value in wanted)
        ))  # fmt: skip

    def evaluations(self, plans: Sequence[dict[str, Any]], has_any_memory: bool = False) -> list[Evaluation]:
        """Evaluate plans in float16, on devices of their own memory, or of any."""
        system = self._system
        if has_any_memory:
            config = json.loads((self.folder / SYSTEM).read_text())
            config["mem1"]["GiB"] = 1 << 30
            system = self.llm.System(config)
        return [self._evaluation(system, plan) for plan in plans]

    def _evaluation(self, system: Any, plan: dict[str, Any]) -> Evaluation:
        model = self.llm.Llm(self._network, _quiet())
        try:
            model.compile(system, self.llm.Llm.Execution.from_json(plan))
            model.run(system)
        except self.llm.Llm.Error:
            return Evaluation(*[float("nan")] * 8)
        return Evaluation(
            model.get_total_time(), model.get_fw_time() + model.get_bw_time() + model.get_recompute_time(),
            model.get_optim_step_time(), model.get_bubble_time(),
            model.get_tp_comm_exposed_time() + model.get_recomm_exposed_time(), model.get_pp_comm_exposed_time(),
            model.get_dp_comm_exposed_time(), model.get_mem_tier1_cap_req(),
        )  # fmt: skip

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
    logger = logging.Logger("calculon", logging.CRITICAL)
    logger.addHandler(logging.NullHandler())
    return logger
