"""A few workloads and tuning lines of a real database."""

from __future__ import annotations

from pathlib import Path

import pytest

FIXTURES = Path(__file__).parents[1] / "fixtures"


@pytest.fixture(scope="session")
def native_database() -> Path:
    return FIXTURES / "resnet34_a100"


@pytest.fixture(scope="session")
def legacy_database() -> Path:
    return FIXTURES / "legacy_resnet34"


@pytest.fixture(scope="session")
def fixture_modules(native_database):
    pytest.importorskip("tvm")
    from cdmpp.programs.database import read_workloads

    return read_workloads(native_database)
