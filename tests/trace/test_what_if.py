"""Settings of a traced step in words."""

from __future__ import annotations

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
    ):
        with pytest.raises(CdmppError):
            changed(job(), wrong)
