"""The benchmark on ADSP's published numbers: planted rows come out right, and waiting has the values of the formula."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.synchrony.adsp import tables, waiting_share
from benchmarks.synchrony.adsp_blocked import WAYS, blocked_table, exchanges
from benchmarks.synchrony.adsp_replays import SLACK, WORKERS, rounds_of
from benchmarks.synchrony.adsp_rows import Protocol, spans
from cdmpp.errors import DataError

BATCH_S = (0.5, 0.4, 1.5)
"""Of three planted workers."""
STEPS = 1200


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Rows of workers that are exactly as they say."""
    folder = tmp_path / "adsp"
    folder.mkdir()
    compute = [STEPS * one for one in BATCH_S]
    blocked = max(compute) - sum(compute) / WORKERS
    rows = [f"{name},2000,{WORKERS * STEPS},{compute[0]},{compute[1]},{compute[2]},{blocked}\n" for name in (
        "BSP", "SSP s=40", "ADACOMM", "Fixed ADACOMM tau=40"
    )]  # fmt: skip
    own = [2000 / one for one in BATCH_S]
    rows.append(f"ADSP,2000,{int(sum(own))},2000,2000,2000,0.0\n")
    (folder / "protocols_3workers.csv").write_text(
        "protocol,time_to_loss_s,steps,compute_s_worker0,compute_s_worker1,compute_s_worker2,blocked_s\n"
        + "".join(rows)
    )
    walls = (838.0, 1000.0, 1400.0)
    (folder / "run18_workers.csv").write_text("wall_s,worker,batch_s,step_s,worker_elapsed_s\n" + "".join(
        f"{wall},{worker},{9.0 if wall < 900 else one},{one},{wall - 100}\n"
        for wall in walls for worker, one in enumerate(BATCH_S)
    ))  # fmt: skip
    speed = sum(1 / one for one in BATCH_S) / WORKERS
    (folder / "run18_progress.csv").write_text("wall_s,mean_steps_per_worker,mean_commits_per_worker\n" + "".join(
        f"{wall},{wall * speed},{wall / 60}\n" for wall in walls
    ))  # fmt: skip
    shares = {ratio: 2 / 3 * (1 - 2 / (3 * ratio - 1)) for ratio in (1.0, 2.0, 3.0)}
    (folder / "heterogeneity.csv").write_text(
        "H,ssp40_waiting_ratio\n" + "".join(f"{ratio},{share}\n" for ratio, share in shares.items())
    )
    (folder / "ssp_slack.csv").write_text(
        "slack,homogeneous_time_s,heterogeneous_time_s\n0,9,10\n10,8,12\n40,7,11\n50,7,13\n"
    )
    return tmp_path


def test_planted_rows_are_found(data: Path):
    run, three, blocked, uneven, slack = tables(data)
    for row in run["rows"]:
        assert abs(float(row[1])) < 0.5 and abs(float(row[3])) < 2.5 and row[4] == "0.0"
    for row in three["rows"][:4]:
        assert all(abs(float(one)) < 4.5 for one in row[2:6]), row  # fast workers end a slack ahead
    assert [row[0] for row in blocked["rows"]] == ["BSP", "SSP s=40", "ADACOMM", "Fixed ADACOMM tau=40"]
    assert all(abs(float(row[2])) < 4.5 and abs(float(row[3])) < 4.5 for row in blocked["rows"])
    assert abs(float(three["rows"][4][1])) < 0.2
    assert abs(float(uneven["rows"][1][2])) < 1.5 and abs(float(uneven["rows"][2][2])) < 1.5
    assert [row[0] for row in slack["rows"]] == ["0", "10", "40", "50"]


@pytest.mark.parametrize("ratio", [1.0, 2.0, 10.0])
def test_fast_workers_wait_for_the_slow_one(ratio: float):
    """Two of three wait for all of the slowest batch but their own."""
    fast = (WORKERS * ratio - 1) / (WORKERS - 1)
    assert waiting_share(ratio, SLACK) == pytest.approx(2 / 3 * (1 - 1 / fast), abs=0.01)
    assert waiting_share(ratio, SLACK, 0.25) == pytest.approx(2 / 3 * (1 - 1 / fast) / 1.25, abs=0.01)


def test_batches_before_the_sleep_are_not_used(data: Path):
    first, second = spans(data)
    assert first.batch_s == pytest.approx(np.array(BATCH_S)) and second.batch_s == pytest.approx(np.array(BATCH_S))
    assert (first.seconds[0], second.seconds[0]) == (162.0, 400.0)


def test_snapshots_at_other_times_are_refused(data: Path):
    path = data / "adsp" / "run18_progress.csv"
    path.write_text(path.read_text().replace("1400", "1500"))
    with pytest.raises(DataError, match="snapshots at other times"):
        spans(data)


@pytest.mark.parametrize(("name", "seconds"), [("BSP", 9000.0), ("SSP s=40", 9000.0), ("Fixed ADACOMM tau=40", 2500.0)])
def test_machines_that_are_slow_in_everything_are_waited_for_as_the_server_clocks_it(name: str, seconds: float):
    """All seconds of a worker grow by the same factor, and so does the waiting for the slowest one."""
    compute = tuple(STEPS * one for one in BATCH_S)
    blocked = seconds / max(compute) * (max(compute) - sum(compute) / WORKERS)
    one = Protocol(name, seconds, WORKERS * STEPS, compute, blocked)
    row = blocked_table([one], [BATCH_S], "", [])["rows"][0]
    assert abs(float(row[4])) < 4.5, row  # fast workers end a slack ahead
    assert float(row[2]) == pytest.approx(100 * (max(compute) / seconds - 1), abs=3.0)


def test_exchanges_come_from_the_time_of_the_slowest_worker_and_not_from_waiting():
    one = Protocol("SSP s=40", 9000.0, 3600, (600.0, 480.0, 1800.0), 1.0)
    assert exchanges(one, WAYS[0]) == [0.0, 0.0, 0.0]
    assert exchanges(one, WAYS[1]) == pytest.approx([6.0, 6.0, 6.0])
    assert exchanges(one, WAYS[2]) == pytest.approx([2.0, 1.6, 6.0])
    assert exchanges(one, WAYS[3]) == pytest.approx([2.0 * 2 / 1.025, 1.6 * 2 / 1.025, 6.0])
    assert exchanges(Protocol("BSP", 9000.0, 3600, (600.0, 480.0, 1800.0), 1.0), WAYS[3]) is None
    assert rounds_of(Protocol("ADACOMM", 1.0, 3600, (1.0, 1.0, 1.0), 1.0)) == 30
