"""Real programs through TVM and LLVM: what is counted, and what is said where nothing can be."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from cdmpp.code import compile as compiling
from cdmpp.code.code_vector import CODE_NAMES, CODE_WIDTH
from cdmpp.predict.compiled import read_programs
from cdmpp.programs.task import Program
from tests.ast.programs import matmul_cpu, matmul_cuda


@pytest.fixture(scope="module")
def program():
    return Program(*matmul_cpu())


def test_every_multiply_add_is_counted_and_gpu_programs_have_none(program):
    on_cpu, on_gpu = compiling.code_vectors([program, Program(*matmul_cuda())])
    amounts = dict(zip(CODE_NAMES, 2.0 ** on_cpu.astype(np.float64) - 1, strict=True))
    assert amounts["n_fused_lanes"] == pytest.approx(64**3, rel=0.01)
    assert amounts["unknown_loops"] == pytest.approx(0, abs=1e-6)
    assert amounts["machine_unmatched_loops"] == pytest.approx(0, abs=1e-6)
    lanes = amounts["n_fused_lanes"] / amounts["machine_is_fma"]
    assert lanes in (
        pytest.approx(1, rel=0.1),
        pytest.approx(4, rel=0.1),
        pytest.approx(8, rel=0.1),
        pytest.approx(16, rel=0.1),
    )
    # Two vector units: the core cannot be faster than that, and an L1-resident product should not be ten times slower.
    assert amounts["machine_is_fma"] / 2 <= amounts["machine_cycles"] * 1.001 < 20 * amounts["machine_is_fma"]
    assert np.isnan(on_gpu).all()


def test_asts_carry_it_only_when_asked(program):
    assert read_programs([program], compiled=False).codes is None
    codes = read_programs([program], compiled=True).codes
    assert codes is not None and codes.shape == (1, CODE_WIDTH) and np.isfinite(codes).all()


def test_what_does_not_compile_is_said(program, monkeypatch, caplog):
    def broken(_):
        raise ValueError("no such instruction")

    monkeypatch.setattr(compiling, "compiled", broken)
    with caplog.at_level(logging.WARNING):
        assert np.isnan(compiling.code_vectors([program])).all()
    assert "1 of 1 programs have no code vector" in caplog.text and "no such instruction" in caplog.text
