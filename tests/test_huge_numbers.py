"""Nothing is allocated, and nothing looped, by a number of a file or an option before it is checked."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("tvm")

from huge_numbers import ANSWERED  # noqa: E402

from cdmpp.data.derive import COMMAND  # noqa: E402
from cdmpp.errors import CdmppError  # noqa: E402
from cdmpp.platform.allocation import check_bytes, free_bytes, within_free_memory  # noqa: E402
from cdmpp.platform.workers import Worker  # noqa: E402

HERE = Path(__file__).resolve().parent


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory) -> dict[str, tuple[str, str, float]]:
    """Case -> how it ended, what was said, seconds of processor. One process for all: importing takes longest."""
    folder = tmp_path_factory.mktemp("huge")
    path = os.pathsep.join(map(str, (HERE.parent, HERE)))
    environment = {**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, HERE / "huge_numbers.py", folder], cwd=folder, capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return {name: (kind, said, took_s) for name, kind, said, took_s in map(json.loads, done.stdout.splitlines())}


def test_every_huge_number_is_refused_at_once(outcomes):
    assert len(outcomes) > 35
    wrong = {
        name: found[:2]
        for name, found in outcomes.items()
        if found[0] != "refused" and not (found[0] == "answered" and name.startswith(ANSWERED))
    }
    assert not wrong
    slow = {name: took_s for name, (_, _, took_s) in outcomes.items() if took_s > 10}
    assert not slow


def test_a_refusal_says_what_was_asked_and_what_is_allowed(outcomes):
    limit = r"at most|expected|from 1 to|up to|are free|fewer|once for each|smaller"
    refused = {name: said for name, (kind, said, _) in outcomes.items() if kind == "refused"}
    vague = [said for name, said in refused.items() if not re.search(limit, said) and "65,536 ranks" not in name]
    assert not vague
    assert "rank 0 of a world of 2000000000: expected" in outcomes["trace: world of 2e9"][1]
    assert "131,072" in outcomes["config.json: labels"][1]


def test_compilers_are_kept_within_a_limit():
    worker = Worker(COMMAND)
    worker.start()
    try:
        limits = Path(f"/proc/{worker._process.pid}/limits").read_text()
    finally:
        worker.stop()
    most = re.search(r"Max address space +(\S+)", limits)
    assert most and most[1] != "unlimited" and int(most[1]) < 12e9


def test_what_is_asked_of_memory_is_compared_with_what_is_free():
    check_bytes("a table", 10**6, "never")
    with pytest.raises(CdmppError, match=r"a table needs 1e\+21 GB of memory and .* are free: give fewer rows"):
        check_bytes("a table", 10**30, "give fewer rows")
    assert 0 < free_bytes() < 10**14


def test_memory_is_limited_in_the_block_and_not_after():
    import resource

    import numpy as np

    before = resource.getrlimit(resource.RLIMIT_AS)
    told = r"the table needs more than the .* of memory that are free: Unable to alloc"
    with pytest.raises(CdmppError, match=told), within_free_memory("the table"):
        np.ones(10**14)
    with (
        pytest.raises(CdmppError, match=told) as found,
        within_free_memory("the network"),
        within_free_memory("the table"),
    ):
        np.zeros(2**60, np.uint8)
    assert "the network" not in str(found.value)  # said once
    with pytest.raises(KeyError), within_free_memory("the table"):
        raise KeyError("another fault")
    assert resource.getrlimit(resource.RLIMIT_AS) == before
