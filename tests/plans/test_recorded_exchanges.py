"""What plans exchange, next to real jobs on gloo that were recorded (``python -m benchmarks.gloo_jobs``)."""

from __future__ import annotations

import pytest

import cdmpp
from benchmarks.gloo_jobs.jobs import NETWORKS
from benchmarks.gloo_jobs.predicted import (
    exchanges_of,
    is_equal,
    job_of,
    page,
    plan_of,
    planned_exchanges,
    recorded_traffic_bytes,
    recordings,
    sent_bytes,
)  # fmt: skip
from cdmpp.errors import CdmppError
from cdmpp.steps.from_prediction import graph_of
from cdmpp.steps.transforms.scale import scale_ranks

RECORDED = recordings()
HEADER = 48
"""Bytes that gloo adds to a message."""


def _name(one):
    return f"{one['job']}, {one['network']}, {one['ranks']} ranks"


def _of(*schemes):
    return [one for one in RECORDED if job_of(one).scheme in schemes]


@pytest.mark.parametrize("one", RECORDED, ids=_name)
def test_a_job_exchanges_what_its_plan_says_or_the_plan_is_refused(one):
    job = job_of(one)
    if job.scheme == "tp":
        with pytest.raises(CdmppError, match="not supported"):
            exchanges_of(one)
    else:
        assert is_equal(one, exchanges_of(one))


WHOLE = ("two batch norms", "a layer without a gradient", "a mask of bools", "a root and four blocks")
"""Networks whose steps are predicted from the model itself."""


@pytest.fixture(scope="module", params=WHOLE)
def predicted(request):
    torch = pytest.importorskip("torch")
    make, shape = NETWORKS[request.param]
    return request.param, cdmpp.predict_step(make(), torch.randn(shape), device="a100", runtime="torch")


def test_a_step_that_is_predicted_from_the_model_exchanges_what_the_job_did(predicted):
    network, step = predicted
    tried = 0
    for one in RECORDED:
        job = job_of(one)
        if "stages" in job.settings or job.scheme == "pipeline":  # its ranks have a part of the model
            continue
        is_by_number = job.scheme == "fsdp" and network != "a root and four blocks"  # its job has a root and no more
        if one["network"] == network and not is_by_number:
            try:
                plan = plan_of(job, one["ranks"])
            except CdmppError:
                continue
            assert is_equal(one, planned_exchanges(scale_ranks(graph_of(step), one["ranks"]), plan)), _name(one)
            tried += 1
    assert tried


@pytest.mark.parametrize("one", _of("ddp", "fsdp", "tp"), ids=_name)
def test_the_kernel_counts_the_bytes_that_collectives_are_said_to_send(one):
    """An all-reduce of a few numbers has 12 (N - 1) messages, a header each; long ones have more, for more bytes."""
    predicted, ranks, count = recorded_traffic_bytes(one), one["ranks"], len(one["exchanges"])
    extra = max(one["sent_bytes"]) - predicted
    assert 0 <= extra <= max(0.01 * predicted, 12 * count * (ranks - 1) * HEADER)


def test_pipelines_send_a_message_a_tensor_and_more_in_the_first_step():
    """48 messages for 4 ranks and 8 micro-batches; 18 more in the first step, which tell shapes."""
    one = next(one for one in _of("pipeline") if one["job"].startswith("1f1b, 4 uneven"))
    sent = [row for own in (one["exchanges"], *one["other_ranks"]) for row in own if row[1] == "send"]
    assert len(sent) == 48 == sum(kind.kind == "send_recv" for kind in exchanges_of(one))
    assert sum(one["first_counts"]) == 2 * 66
    predicted = sent_bytes(exchanges_of(one), 4)
    for own, size in zip(one["sent_bytes"], predicted, strict=True):
        assert 0 <= own - size <= 2 * 16 * 3 * HEADER


def test_recordings_hold_every_kind_of_job():
    kinds = {(job_of(one).scheme, one["ranks"]) for one in RECORDED}
    assert kinds >= {(scheme, ranks) for scheme in ("ddp", "fsdp", "ps") for ranks in (2, 3, 4)} | {("tp", 4)}
    assert any(len({dtype for _, dtype, _ in one["parameters"]}) == 4 for one in RECORDED)


def test_a_root_sends_down_a_tree():
    one = next(one for one in _of("ddp") if one["buffers"] and one["ranks"] == 4)
    root, *others = one["sent_bytes"]
    assert root > max(others)
    assert max(sent_bytes(exchanges_of(one), 4)) < root


def test_the_page_is_that_of_the_recordings():
    from benchmarks.gloo_jobs.__main__ import PAGE

    assert PAGE.read_text() == page(RECORDED)
