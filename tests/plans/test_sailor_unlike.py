"""Sailor's plans on unlike GPUs asked of the product, on layers with round numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.plans.sailor_data import Measured, Trained, UnlikeLinks, trained, unlike_links
from benchmarks.plans.sailor_unlike_job import UnlikeJob
from cdmpp.collectives.curve import Curve
from tests.plans.test_sailor_figures import HEAD

NAN, MS = float("nan"), 1e-3
MIB = 2**20


def layers(factor: float) -> dict[int, tuple[Measured, ...]]:
    """Two layers of 1 and 2 ms forward and twice that backward; one example has 1 MiB of results."""
    one, two = (Measured(f * factor * MS, 2 * f * factor * MS, 0.0, 1000, MIB // 4, 1) for f in (1, 2))
    return {1: (one, two)}


def wire(bytes_per_s: float) -> Curve:
    sizes = np.array([1.0, 1e9])
    return Curve("", None, "nccl", "send_recv", 2, 1, sizes, sizes / bytes_per_s)


def job(on: tuple[tuple[str, ...], ...], many: int = 4, tensor: int = 1) -> UnlikeJob:
    replicas, stages = len(on[0]), len(on)
    cut = (2,) if stages == 1 else (1, 1)
    one = Trained("mit", "toy", "", 2, replicas, stages, tensor, 1, many * replicas, cut, 1.0, 1.0, NAN, NAN, on)
    links = UnlikeLinks(
        {"fast": wire(MIB / MS), "slow": wire(MIB / (4 * MS))}, {(gpu, tensor): wire(1e15) for gpu in ("fast", "slow")}
    )
    return UnlikeJob(one, {"fast": layers(1.0), "slow": layers(3.0)}, links)


def test_replicas_wait_for_the_slow_gpu_and_the_slow_adapter():
    """4 micro-batches of 27 ms on the slow GPU; an all-reduce of 8 kB over the slow adapter takes 0.03 ms."""
    assert job((("slow", "fast"),)).step_s() == pytest.approx(4 * 27 * MS, rel=1e-3)
    assert job((("fast", "fast"),)).step_s() == pytest.approx(4 * 9 * MS, rel=1e-3)


@pytest.mark.parametrize(("on", "message"), [((("fast",), ("fast",)), 1), ((("fast",), ("slow",)), 4)])
def test_messages_go_at_the_rate_of_the_slower_adapter(on, message):
    """One micro-batch: passes of 3 and 6 ms, or 18 on the slow GPU, and a message each way."""
    passes = 3 + (6 if on[1] == ("fast",) else 18)
    found = job(on, many=1)
    assert found.step_s() == pytest.approx((passes + 2 * message) * MS, rel=1e-3)
    slot_s, messages_s, ring_s = found.slots_s()
    assert (slot_s, messages_s, ring_s) == pytest.approx((2 * max(passes - 3, 3) * MS, 2 * message * MS, 0.0), rel=1e-3)


def test_gpus_of_a_node_share_its_adapter():
    """A node of 4 GPUs reduces four times the bytes of one of them."""
    one, four = (job((("fast", "fast"),), tensor=tensor) for tensor in (1, 4))
    size = 4 * 2000

    def reduced_s(found: UnlikeJob) -> float:
        from cdmpp.collectives.collective import Collective

        return found.topology.cost(Collective("all_reduce", size, 2, "nccl"), (0, 1)).latency_s

    assert reduced_s(four) == pytest.approx(4 * reduced_s(one))


def test_rows_say_where_stages_stand_and_copied_fits_are_not_read(tmp_path: Path):
    row = "mit,OPT-350,mit/N4,4,32,x,2,2,8,2,256,12 14,A-1x8/tp8;B-2x8/tp8 | C-3x8/tp8;B-2x8/tp8,66,7,6e9,,,\n"
    (tmp_path / "plans.csv").write_text(HEAD + row)
    assert trained(tmp_path, "mit")[0].on == (("A-1", "B-2"), ("C-3", "B-2"))
    (tmp_path / "network_fits.csv").write_text(
        "table,gpu_a,count_a,gpu_b,count_b,path,poly_coeffs,max_bytes_per_s\n"
        'intra,A,8,A,8,same node,"[0, 0, 5.0]",1\n'
        'multizone_bandwidths,A,4,A,4,x,"[0, 0, 2.0]",1\n'
        'multizone_bandwidths,A,8,A,8,x,"[0, 0, 9.0]",1\n'
        'multizone_bandwidths,A,4,B,4,x,"[0, 0, 8.0]",1\n'
    )
    links = unlike_links(tmp_path, ("A", "B"))
    assert (set(links.between), set(links.inside)) == ({"A"}, {("A", 8)})
    assert links.between["A"].at(2.0**22) == pytest.approx(2.0**22 / 2e9)
