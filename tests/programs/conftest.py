"""A few workloads and tuning lines of a real database."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def fixture_modules(native_database):
    pytest.importorskip("tvm")
    from cdmpp.programs.database import read_workloads

    return read_workloads(native_database)
