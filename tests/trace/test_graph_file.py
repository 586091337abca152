"""A traced step survives its file."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cdmpp.errors import CdmppError
from cdmpp.trace.graph_file import graph_from_dict, graph_to_dict
from tests.steps.toy_traced import job, step_s


def test_a_job_survives_its_file():
    given = job(slow=1.5, latency_s=0.25)
    given = replace(given, measured=replace(given.measured, waits_s={0: 0.5, 1: 0.0}, unprofiled_s=13.0))
    assert step_s(graph_from_dict(graph_to_dict(given))) == pytest.approx(step_s(given))
    assert graph_from_dict(graph_to_dict(given)) == given
    with pytest.raises(CdmppError, match="version"):
        graph_from_dict({})
