"""Two processes that share every batch must learn what one learns."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from cdmpp import devices
from cdmpp.data.batching import ProgramTensors, TrainingBatches
from cdmpp.errors import DataError
from cdmpp.training.processes import is_rank_zero
from tests.toy_data import toy_dataset

TESTS = Path(__file__).parents[1]
SCRIPT = """
import json, sys
sys.path.insert(0, {tests!r})
import torch
torch.set_num_threads(1)
from toy_data import toy_dataset
from pathlib import Path
from cdmpp.recipes.train import train
from cdmpp.training.config import Run, TrainConfig

if __name__ == "__main__":
    dataset, split = toy_dataset(120)
    config = TrainConfig.from_dict({{
        "model": {{"name": "cdmpp", "width": 16, "layers": 1, "heads": 2, "feedforward": 16, "hidden": 16,
                  "code_dropout": 0.0}},
        "loss": {{}},
        "trainer": {{"epochs": 3, "batch_size": 25, "members": 2, "devices": int(sys.argv[1])}},
    }})
    result = train(dataset, split, config, Run(Path(sys.argv[2]), 0, False, "cpu"))
    latency = result.predictor.predict(dataset.asts).latency_s.tolist()
    print(json.dumps({{"latency_s": latency, "history": [row["val_mape"] for row in result.history]}}))
"""


def run(tmp_path: Path, processes: int) -> dict:
    script = tmp_path / "run.py"
    script.write_text(SCRIPT.format(tests=str(TESTS)))
    environment = {k: v for k, v in os.environ.items() if k not in ("RANK", "LOCAL_RANK", "NODE_RANK", "WORLD_SIZE")}
    environment |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(TESTS.parent)}
    done = subprocess.run(
        [sys.executable, str(script), str(processes), str(tmp_path / f"out{processes}")],
        capture_output=True, text=True, timeout=500, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    answers = [line for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(answers) == 1, "only the first process may go on after training"
    return json.loads(answers[0])


def test_two_processes_learn_what_one_learns(tmp_path):
    one, two = run(tmp_path, 1), run(tmp_path, 2)
    np.testing.assert_allclose(two["history"], one["history"], rtol=2e-3)
    np.testing.assert_allclose(two["latency_s"], one["latency_s"], rtol=5e-3)


def test_shares_of_a_batch_are_the_batch():
    dataset, _ = toy_dataset(60)
    sheet = devices.get("xeon-icelake")
    programs = ProgramTensors.build(dataset.asts, {sheet.name: sheet}, dataset.devices, dataset.latency_s)
    rows = np.arange(60)
    whole = list(TrainingBatches(programs, rows, 20, 1, 0, 2))
    shares = [list(TrainingBatches(programs, rows, 20, 1, 0, 2, (i, 3))) for i in range(3)]
    for step, groups in enumerate(whole):
        mine = torch.cat([group.rows for group in groups]).sort().values
        theirs = torch.cat([group.rows for share in shares for group in share[step]]).sort().values
        assert torch.equal(mine, theirs)
    with pytest.raises(DataError, match="cannot share"):
        TrainingBatches(programs, rows, 1, 1, 0, 2, (0, 3))


@pytest.mark.parametrize(
    ("environment", "first"),
    [
        ({}, True),
        ({"LOCAL_RANK": "0"}, True),
        ({"LOCAL_RANK": "1"}, False),
        ({"LOCAL_RANK": "0", "NODE_RANK": "1"}, False),
        ({"RANK": "4", "LOCAL_RANK": "0"}, False),
    ],
)
def test_one_process_of_all_has_rank_zero(monkeypatch, environment, first):
    for name in ("RANK", "LOCAL_RANK", "NODE_RANK"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert is_rank_zero() is first
