"""Namespaces, rates and quotas of real jobs: they limit, and they go away."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cdmpp.errors import UsageError
from cdmpp.synchrony import run
from cdmpp.synchrony.policies import synchrony_of
from cdmpp.synchrony.processes import namespaces, quota
from cdmpp.synchrony.processes.place import ServerPlace, WorkerPlace
from tests.disturbed import best_of
from tests.synchrony.processes.toy_training import busy


@pytest.mark.netns
def test_links_are_limited_and_deleted():
    if reason := namespaces.why_not():
        pytest.skip(reason)
    with namespaces.links([100, None]) as (one, other):
        told = subprocess.run([*one.command, "tc", "qdisc", "show", "dev", "eth0"], capture_output=True, text=True)
        assert "tbf" in told.stdout and "100Mbit" in told.stdout
        free = subprocess.run([*other.command, "tc", "qdisc", "show", "dev", "eth0"], capture_output=True, text=True)
        assert "tbf" not in free.stdout
        knock = f"import socket; socket.create_connection(({other.address!r}, 9), timeout=5)"
        answer = subprocess.run([*one.command, sys.executable, "-c", knock], capture_output=True, text=True)
        assert "ConnectionRefusedError" in answer.stderr  # somebody is there, and listens to nothing
        held = _namespaces()
        assert {one.namespace, other.namespace} <= held
    assert not {one.namespace, other.namespace} & _namespaces()


@pytest.mark.netns
def test_a_shared_link_has_a_part_for_each_peer():
    if reason := namespaces.why_not():
        pytest.skip(reason)
    with namespaces.links([60, 100, 100], fair=1) as (shared, *others):
        listed = subprocess.run([*shared.command, "tc", "class", "show", "dev", "eth0"], capture_output=True, text=True)
        parts = [line for line in listed.stdout.splitlines() if "rate 30Mbit ceil 60Mbit" in line]
        assert len(parts) == 2
        filters = [*shared.command, "tc", "filter", "show", "dev", "eth0"]
        listed = subprocess.run(filters, capture_output=True, text=True)
        for other in others:
            address = bytes(map(int, other.address.split("."))).hex()
            assert f"match {address}/ffffffff at 16" in listed.stdout  # where a packet goes to


def _namespaces() -> set[str]:
    return {path.name for path in Path("/run/netns").glob("*")}


@pytest.mark.netns
def test_a_quota_holds_a_process_and_is_deleted():
    if reason := quota.why_not():
        pytest.skip(reason)
    spin = "import time\ninput()\nbegin, own = time.perf_counter(), time.process_time()\n"
    spin += "while time.process_time() < own + 0.2: pass\nprint(time.perf_counter() - begin)"
    with quota.quotas([0.2, None]) as (limited, free):
        assert free is None and limited is not None
        ends = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        child = subprocess.Popen([sys.executable, "-c", spin], text=True, **ends)
        limited.take(child.pid)
        out, _ = child.communicate("\n")
        assert float(out) > 0.7  # of 0.2 s on a processor: 1 s less what the first period gives at once
        folder = limited.folder
    assert not folder.exists()


@pytest.mark.parametrize(("share", "times"), [(0.5, (2500, 5000)), (0.2, (1000, 5000)), (0.05, (1000, 20000))])
def test_a_quota_is_never_less_than_the_kernel_allows(share, times):
    assert quota.Quota(Path("/none"), share).times_us == times


@pytest.fixture
def version_2(tmp_path, monkeypatch):
    """A tree of version 2 as the kernel shows one; ``cgroup.subtree_control`` has the controllers of groups inside.

    This kernel's own version 2 may have no CPU controller, where version 1 holds it.
    """

    def made(controllers: str, inside: str, first: str = "") -> Path:
        root = tmp_path / "unified"
        root.mkdir()
        (root / "cgroup.controllers").write_text(controllers)
        (root / "cgroup.subtree_control").write_text(inside)
        (tmp_path / "mounts").write_text(f"{first}cgroup2 {root} cgroup2 rw,nosuid 0 0\n")
        monkeypatch.setattr(quota, "_MOUNTS", tmp_path / "mounts")
        return root

    return made


def test_groups_of_version_2_get_a_share_and_the_largest_weight(version_2):
    root = version_2("cpuset cpu io memory\n", "cpu memory\n")
    with quota.quotas([0.2, None, 0.05]) as (fast, free, slow):
        assert free is None and fast is not None and slow is not None and fast.folder.parent == root
        assert (fast.folder / "cpu.max").read_text() == "1000 5000"
        assert (slow.folder / "cpu.max").read_text() == "1000 20000"
        for one in (fast, slow):
            assert (one.folder / "cpu.weight").read_text() == "10000"
            one.take(4711)
            assert (one.folder / "cgroup.procs").read_text() == "4711"
            for file in one.folder.iterdir():  # the kernel's files go with their folder
                file.unlink()
    assert not list(root.glob("cdmpp-*")) and (root / "cgroup.subtree_control").read_text() == "cpu memory\n"


def test_the_controller_of_version_2_is_asked_for_and_one_that_is_refused_is_said(version_2):
    root = version_2("cpu memory", "memory")  # a plain file does not answer as the kernel does
    assert "(version 2) has one, and the kernel gives it to no group inside" in (quota.why_not() or "")
    assert (root / "cgroup.subtree_control").read_text() == "+cpu"


def test_a_version_2_without_the_controller_is_a_reason(version_2):
    version_2("pids\n", "")
    assert "unified (version 2) has none" in (quota.why_not() or "")


def test_version_1_holds_the_controller_where_both_are_mounted(version_2, tmp_path):
    version_2("cpu\n", "cpu\n", f"cgroup {tmp_path}/cpu cgroup rw,cpu,cpuacct 0 0\n")
    (tmp_path / "cpu").mkdir()
    assert quota._controller() == (tmp_path / "cpu", False)


@pytest.mark.netns
@best_of(3)
def test_a_job_keeps_to_its_shares_and_rates():
    if reason := namespaces.why_not() or quota.why_not():
        pytest.skip(reason)
    before = _namespaces()
    workers = [WorkerPlace(cpu_share=0.3, mbit=80.0), WorkerPlace(cpu_share=0.1, mbit=80.0)]
    record = run(busy, synchrony_of("async"), workers, [ServerPlace(mbit=80.0)], seconds=3.0)
    fast, slow = record.workers
    assert slow.batch_s > 1.8 * fast.batch_s
    assert record.parameter_bytes == 1_000_000
    for one in record.workers:  # 1 MB each way at 80 Mbit/s: 0.2 s
        assert 0.19 < one.share.communication_s / len(one.commits) < 0.6
    assert _namespaces() == before
    assert not list(Path("/sys/fs/cgroup").glob(f"**/cdmpp-{os.getpid()}-*"))


def test_limits_that_cannot_be_set_are_refused(monkeypatch):
    monkeypatch.setattr(namespaces.os, "geteuid", lambda: 1000)
    with pytest.raises(UsageError, match="limits of the job cannot be set here: network namespaces need root"):
        run(busy, synchrony_of("async"), [WorkerPlace(mbit=80.0)])
