"""Settings of a traced step in words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cdmpp.errors import CdmppError
from cdmpp.steps.wire import PAYLOAD
from cdmpp.trace.what_if import changed
from tests.steps.toy_traced import MB, job, step_s


def test_settings_in_words():
    told = {"bandwidth": "0.5", "bucket_mb": "100", "kernel:lin": "0.5"}
    assert step_s(changed(job(), told)) == pytest.approx(2 + 8 + 8 + 0.5)
    known = {"bandwidth": "0.5", "link_gbps": str(8e-9 * MB / (PAYLOAD * 0.5))}  # half of a second's bytes
    assert step_s(changed(job(), known)) == pytest.approx(step_s(job()))
    for wrong in (
        {"link_gbps": "1"},
        {"bandwidth": "0.5", "link_gbps": "0"},
        {"speed": "2"},
        {"bandwidth": "fast"},
        {"bandwidth": "0"},
        {"ranks": "1"},
        {"straggler": "yes"},
        {"kernel:": "0.5"},
        {"kernel: ": "0.5"},
    ):
        with pytest.raises(CdmppError):
            changed(job(), wrong)


@pytest.mark.parametrize("words", ["ranks=2", "bandwidth=0.5", "latency=0.5", "bucket_mb=1", "straggler=no"])
def test_what_needs_an_exchange_is_refused_without(words):
    key, _, value = words.partition("=")
    with pytest.raises(CdmppError, match=f"--what-if {key}: the traced steps hold no exchange"):
        changed(replace(job(), exchanges=()), {key: value})


def test_a_straggler_is_one_of_several_that_do_the_same():
    one, other = job().ranks
    server = replace(other, ops=tuple(replace(op, name=f"server {op.name}") for op in other.ops))
    with pytest.raises(CdmppError, match="no two of the 2 ranks do the same"):
        changed(replace(job(), ranks=(one, server)), {"straggler": "no"})
