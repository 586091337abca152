"""The closed form of provisioning as the benchmark of real jobs asks it: right values for one worker and for many."""

from __future__ import annotations

import pytest

from benchmarks.synchrony.cells import Cell
from benchmarks.synchrony.predict_runs import Batches, Constants, loop_rate

RUNS = {
    "alone/cnn/0.2": {"batch_s": 0.1, "samples": 8, "parameter_bytes": 1_000_000, "spread": 0.0},
    "link/100": {"one_way": 80.0},  # Mbit/s: ten million bytes a second
}
CONSTANTS = Constants(commit_cpu_s=0.004, slow_down=0.0, add_bytes_per_s=1e8)


def test_one_worker_takes_its_batches_and_its_commit():
    """Ten batches, the first 4 ms shorter; 20 ms for the commit of a fifth of a core, 100 ms each way, 10 ms to add."""
    assert loop_rate(RUNS, Cell("cnn", 1, 0.2, 100.0, 10, 1), {}, CONSTANTS, Batches.ALONE) == pytest.approx(
        80 / (1 - 0.004 + 0.02 + 0.2 + 0.01)
    )


def test_many_workers_go_as_fast_as_the_links_of_the_servers():
    for servers in (1, 2):
        rate = loop_rate(RUNS, Cell("cnn", 50, 0.2, 100.0, 1, servers), {}, CONSTANTS, Batches.ALONE)
        assert rate == pytest.approx(8 * servers / 0.1, rel=0.1)
