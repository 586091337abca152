"""The log of the reference kernels, under its name and the one that it had before."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from cdmpp.measure.protocol import Timed
from cdmpp.measure.reference_kernels import PREFIX, ReferenceKernels


class _Machine:
    def request(self, request: dict[str, Any], limit_s: float) -> dict[str, Any]:
        return {"samples": [2e-3, 3e-3]}


def test_a_log_under_its_old_name_is_still_read(tmp_path: Path) -> None:
    log, old = tmp_path / "reference_kernels.jsonl", tmp_path / "sentinels.jsonl"
    old.write_text(json.dumps({"time": 1.0, "run_s": {"compute": 1e-3}}) + "\n" + '{"time": 2.0, "run')
    kernel = Timed(PREFIX + "compute", [], tmp_path / "compute.so")
    kernels = ReferenceKernels(_Machine(), log, lambda timed: {}, [kernel])  # type: ignore[arg-type]
    assert kernels.best() == {"compute": 1e-3}
    assert kernels.take() == {"compute": 2e-3} and not kernels.quiet({"compute": 2e-3})
    assert len(log.read_text().splitlines()) == 1 and len(old.read_text().splitlines()) == 2
    again = ReferenceKernels(_Machine(), log, lambda timed: {}, [kernel])  # type: ignore[arg-type]
    assert [entry["compute"] for entry in again.history] == [1e-3, 2e-3]
