"""What compiled programs execute: as callgrind (valgrind 3.19.0) or counters in blocks told, of TVM 0.27 (LLVM 22).

``benchmarks/counts`` compares hundreds; these are those that an earlier reader counted worst, kept as text.
"""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

import pytest

from cdmpp.devices.cores import get_core
from cdmpp.machine_code.cpu.code_features import KINDS
from cdmpp.machine_code.cpu.native import native_amounts

FIXTURE = Path(__file__).parents[1] / "fixtures" / "executed.jsonl.xz"
PROGRAMS: list[dict[str, Any]] = [json.loads(line) for line in lzma.decompress(FIXTURE.read_bytes()).splitlines()]
CHECKS = 130
"""Instructions at most that check the arguments where buffers may overlap: callgrind cannot tell them apart."""


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: f"{program['name']} ({program['mcpu']})")
def test_as_many_instructions_are_counted_as_are_executed(program: dict[str, Any]) -> None:
    amounts = native_amounts(program["llvm_ir"], program["assembly"], get_core("zen3"))
    counted = sum(amounts[f"machine_{kind.name}"] for kind in KINDS)
    assert amounts["unknown_loops"] == (not program["known"])
    if program.get("checks"):
        assert program["executed"] - CHECKS <= counted <= program["executed"]
    elif program.get("data_decide_a_little"):
        assert counted != program["executed"]
        assert counted == pytest.approx(program["executed"], rel=0.01)
    elif program["known"]:
        assert counted == program["executed"]


def test_programs_of_every_named_kind_are_there() -> None:
    names = " ".join(program["name"] for program in PROGRAMS)
    for kind in ("tail", "batched matmul", "transposed", "adaptive average pool", "conv1d", "depthwise", "overlap"):
        assert kind in names
    assert any("%diff.check" in program["llvm_ir"] for program in PROGRAMS)
    assert any("%found.conflict" in program["llvm_ir"] for program in PROGRAMS)
    assert not all(program["known"] for program in PROGRAMS)
