"""Jobs of several ranks, for all files of plans."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from plans.forked_jobs import ForkedJobs


@pytest.fixture(scope="session")
def forked_jobs() -> Iterator[ForkedJobs]:
    jobs = ForkedJobs()
    yield jobs
    jobs.close()
