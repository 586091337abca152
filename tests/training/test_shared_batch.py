"""Losses of a whole batch, computed by two real processes of gloo: the values and gradients that one process has."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from cdmpp.training import endings
from cdmpp.training.shared_batch import SharedBatch
from tests.plans.forked_jobs import ForkedJobs

TESTS = Path(__file__).parents[1]
SCRIPT = """
import json, os, signal, sys
sys.path.insert(0, {tests!r})
import torch
torch.set_num_threads(1)
from dataclasses import replace
from pathlib import Path
import numpy as np
from toy_data import toy_dataset
from cdmpp.errors import CdmppError
from cdmpp.recipes.train import train
from cdmpp.training.config import Run, TrainConfig
from cdmpp.training.lit import LatencyModule
from cdmpp.training.processes import Terminated, is_rank_zero

def end(kind):
    if kind == "lost" and not is_rank_zero():
        os._exit(0)
    if "terminated" in kind:
        os.kill(os.getpid(), signal.SIGTERM)
    if "stopped" in kind:
        os._exit(0)

if __name__ == "__main__":
    processes, epochs, out, kind = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4]
    dataset, split = toy_dataset(121)
    split = replace(split, pool=split.test[:9], test=split.test[9:])
    began = LatencyModule.on_train_epoch_start
    LatencyModule.on_train_epoch_start = lambda self: (end(kind) if self.current_epoch == 1 else None, began(self))
    if kind == "unlike" and not is_rank_zero():
        split = replace(split, train=split.train[1:])
    config = TrainConfig.from_dict({{
        "model": {{"name": "cdmpp", "width": 16, "layers": 1, "heads": 2, "feedforward": 16, "hidden": 16,
                  "code_dropout": 0.0, "dropout": 0.3 if "dropout" in kind else 0.0}},
        "loss": {{"domain": "cmd", "domain_weight": 5.0}},
        "trainer": {{"epochs": epochs, "batch_size": 25, "devices": processes, "lr": 0.01,
                    "strategy": "ddp" if processes > 1 else "auto"}},
    }})
    try:
        result = train(dataset, split, config, Run(out, 0, False, "cpu"))
    except CdmppError as error:
        told = json.dumps({{"error": str(error)}}) + "\\n"
        os.write(1, told.encode())  # one write: two processes share the pipe
        sys.exit(0)
    except Terminated as stop:
        print(json.dumps({{"status": stop.code}}))
        sys.exit(0)
    latency = result.predictor.predict(dataset.asts).latency_s.tolist()
    print(json.dumps({{"latency_s": latency, "loss": [row["train_loss"] for row in result.history],
                      "mape": [row["val_mape"] for row in result.history]}}))
"""


@pytest.fixture(scope="module")
def forked() -> Iterator[ForkedJobs]:
    jobs = ForkedJobs("cdmpp.recipes.train", "cdmpp.training.lit", "torch.distributed")
    yield jobs
    jobs.close()


@pytest.fixture(scope="module")
def run(forked: ForkedJobs) -> Callable[..., list[dict]]:
    """Train with a number of processes, as under torchrun; what the first one says."""

    def ran(folder: Path, processes: int, epochs: int, out: str, kind: str = "") -> list[dict]:
        words = [str(processes), str(epochs), str(folder / out), kind]
        told = forked.run(script(folder), *words, ranks=processes if processes > 1 else 0)
        return [json.loads(line) for line in told.splitlines() if line.startswith("{")]

    return ran


def script(folder: Path) -> Path:
    found = folder / "run.py"
    found.write_text(SCRIPT.format(tests=str(TESTS)))
    return found


@pytest.fixture(scope="module")
def one(run, tmp_path_factory) -> dict:
    """What one process learns."""
    return run(tmp_path_factory.mktemp("one"), 1, 3, "one")[0]


def test_a_loss_of_the_whole_batch_is_that_of_one_process(run, one, tmp_path):
    """Latents are compared as one sample (CMD), of programs that processes divide unevenly."""
    (two,) = run(tmp_path, 2, 3, "two")
    np.testing.assert_allclose(two["loss"], one["loss"], rtol=1e-4)
    np.testing.assert_allclose(two["mape"], one["mape"], rtol=1e-3)
    np.testing.assert_allclose(two["latency_s"], one["latency_s"], rtol=2e-3)


@pytest.mark.parametrize(("before", "after"), [(2, 1), pytest.param(1, 2, marks=pytest.mark.slow)])
def test_a_stopped_run_goes_on_with_another_number_of_processes(run, one, tmp_path, before, after):
    assert run(tmp_path, before, 3, "out", "stopped") == []
    assert (tmp_path / "out" / "member-0" / "checkpoints" / "last.ckpt").is_file()
    (again,) = run(tmp_path, after, 3, "out")
    assert len(again["mape"]) == 3
    np.testing.assert_allclose(again["mape"], one["mape"], rtol=1e-3)
    np.testing.assert_allclose(again["latency_s"], one["latency_s"], rtol=2e-3)


def test_who_loses_the_other_process_says_so_and_one_process_goes_on(run, one, tmp_path):
    (told,) = run(tmp_path, 2, 3, "out", "lost")
    assert "another process of this training is gone (" in told["error"] and "the same command goes on" in told["error"]
    assert "[/" not in told["error"]  # no place in PyTorch's source
    (again,) = run(tmp_path, 1, 3, "out")
    np.testing.assert_allclose(again["mape"], one["mape"], rtol=1e-3)


@pytest.mark.parametrize("processes", [1, 2])
def test_sigterm_ends_a_training_with_a_status_of_its_own(run, one, tmp_path, processes):
    """Lightning ends one with status 0, as if it were trained."""
    assert run(tmp_path, processes, 3, "out", "terminated") == [{"status": 143}]
    assert not (tmp_path / "out" / "model").exists()
    (again,) = run(tmp_path, 1, 3, "out")
    np.testing.assert_allclose(again["mape"], one["mape"], rtol=1e-3)


def test_a_process_ends_where_the_one_that_started_it_is_gone(monkeypatch, caplog):
    """It would wait half an hour for that one to listen."""
    ended, statuses = threading.Event(), []
    monkeypatch.setenv("CDMPP_FIRST_PROCESS", str(os.getpid()))  # its parent has another number
    monkeypatch.setattr(endings, "_LOOK_S", 0.01)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    monkeypatch.setattr(os, "_exit", lambda status: (statuses.append(status), ended.set()))
    with endings._with_the_first():
        assert ended.wait(60)
    assert set(statuses) == {2} and "the first process of this training is gone" in caplog.text


def test_dropout_draws_otherwise_in_two_processes_but_always_the_same(run, tmp_path):
    """Each process drops by its own rank: what two learn is not what one learns, yet a seed decides it, to the bit."""
    (one,) = run(tmp_path, 1, 3, "one", "dropout")
    (two,) = run(tmp_path, 2, 3, "two", "dropout")
    assert np.abs(np.subtract(two["loss"], one["loss"])).max() > 1e-3  # without dropout they are equal to 1e-4
    np.testing.assert_allclose(two["loss"], one["loss"], rtol=0.2)
    assert run(tmp_path, 2, 3, "stopped", "dropout stopped") == []
    (again,) = run(tmp_path, 2, 3, "stopped", "dropout")
    assert again == two  # two runs, one of them in two parts


def test_processes_with_unlike_programs_are_refused(tmp_path):
    """Lightning starts the second process."""
    environment = {k: v for k, v in os.environ.items() if k not in ("RANK", "LOCAL_RANK", "NODE_RANK", "WORLD_SIZE")}
    environment |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(TESTS.parent)}
    command = [sys.executable, str(script(tmp_path)), "2", "1", str(tmp_path / "out"), "unlike"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert answers and all("2 different sets of programs" in one["error"] for one in answers)


def test_a_mean_of_unequal_parts_is_that_of_all_rows():
    values = torch.randn(7, 3)
    parts = [values[rank::2] for rank in range(2)]

    def gather(_: torch.Tensor) -> torch.Tensor:
        return torch.stack(next(answers))

    answers = iter([[part.sum(0) for part in parts], [torch.tensor(4.0), torch.tensor(3.0)]])
    torch.testing.assert_close(SharedBatch(0, 2, gather).mean(parts[0]), values.mean(0))
    assert SharedBatch(1, 3).part(np.arange(8)).tolist() == [1, 4, 7]
    assert SharedBatch().mean(values).equal(values.mean(0))
