"""The example of real runs of stages."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[3] / "examples" / "partition_run.py"


def test_the_example_trains_under_both_schedules():
    said = subprocess.run(
        [sys.executable, str(EXAMPLE)], capture_output=True, text=True, timeout=500, check=True
    ).stdout
    found = re.findall(r"(\S+): [\d.]+ ms a step, held-out accuracy ([\d.]+)%", said)
    assert [name for name, _ in found] == ["1f1b", "delayed"] and all(float(one) > 70 for _, one in found)
    assert [int(one) for one in re.findall(r"gradients (\d) updates late", said)] == [0, 0, 2, 0]
