"""The model of library operators: its roofline is found again, and what is left is learned."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cdmpp import devices
from cdmpp.ast.table import AstTable
from cdmpp.data.batching import ProgramTensors
from cdmpp.model.build import build_for
from cdmpp.model.config import model_config
from cdmpp.model.library_anchor import LibraryAnchor
from cdmpp.operators.operator import LibraryOperator
from cdmpp.operators.operator_vector import operator_program

NAMES = ("t4", "a100", "mi210")
FLOOR_S, COMPUTE, MEMORY = 2e-5, 0.6, 0.8


def operators(n: int, seed: int) -> list[LibraryOperator]:
    rng = np.random.default_rng(seed)

    def size(low: int, high: int) -> int:
        return int(np.exp(rng.uniform(np.log(low), np.log(high))))

    found = []
    for _ in range(n):
        if rng.random() < 0.6:
            sizes = {"rows": size(16, 8192), "inner": size(16, 8192), "cols": size(16, 8192)}
            found.append(LibraryOperator("linear", sizes))
        else:
            found.append(LibraryOperator("relu", {"rows": size(64, 65536), "cols": size(64, 4096)}))
    return found


def seconds(operator: LibraryOperator, device: str) -> float:
    spec = devices.get(device).spec
    matrix = spec["fp32_matrix_tflops"] if operator.name == "linear" else None
    peak = 1e12 * (matrix or spec["fp32_tflops"])
    busy = max(operator.flops / peak / COMPUTE, operator.io_bytes / (1e9 * spec["bandwidth_gbps"]) / MEMORY)
    return FLOOR_S + busy


@pytest.fixture(scope="module")
def programs() -> ProgramTensors:
    chosen = operators(600, 0)
    names = [NAMES[i % 3] for i in range(len(chosen))]
    asts = AstTable.from_asts(operator_program(operator, "gpu") for operator in chosen)
    labels = np.array([seconds(operator, name) for operator, name in zip(chosen, names, strict=True)])
    return ProgramTensors.build(asts, {name: devices.get(name) for name in NAMES}, names, labels)


def test_the_roofline_is_found_again(programs):
    anchor = LibraryAnchor()
    anchor.fit(programs, np.arange(400))
    batch = programs.batch(np.arange(400, 600))
    assert float((anchor(batch) - batch.log_latency).abs().mean()) < 0.08


def test_what_the_roofline_misses_is_learned(programs):
    model = build_for(model_config({"name": "library", "hidden": 32}), programs, np.arange(400))
    batch = programs.batch(np.arange(400))
    bent = batch.log_latency + 0.5 * torch.sin(batch.log_latency)
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(150):
        optimiser.zero_grad()
        loss = (model(batch).log_latency - bent).abs().mean()
        loss.backward()
        optimiser.step()
        losses.append(float(loss))
    assert losses[-1] < 0.35 * losses[0]


def test_a_program_alone_is_answered_as_among_others(programs):
    model = build_for(model_config({"name": "library", "hidden": 32}), programs, np.arange(400)).eval()
    together, alone = (model(programs.batch(rows)).log_latency for rows in (np.arange(8), np.arange(3, 4)))
    assert float(together[3]) == pytest.approx(float(alone[0]), abs=1e-5)
