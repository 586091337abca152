"""The files of examples/cluster: workers as jobs, of this machine in place of SLURM; and the pods of Kubernetes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from cdmpp.execute.executor import executing, replies_of
from tests.execute.conftest import ECHO

EXAMPLES = Path(__file__).parents[2] / "examples" / "cluster"


def test_jobs_of_this_machine_do_the_work(tmp_path):
    pytest.importorskip("dask_jobqueue")
    words = [sys.executable, str(EXAMPLES / "slurm.py"), "--here", "--jobs", "2", "--cores", "1", "--memory", "1GB"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=tmp_path) as started:
        try:
            with executing(started.stdout.readline().strip()):
                found = dict(replies_of(ECHO, [{"op": "echo", "value": value} for value in range(20)], 20))
            assert found == {value: {"echo": value} for value in range(20)}
        finally:
            started.terminate()
        assert started.wait(30) == 0


def test_the_job_script_of_slurm_starts_a_worker(tmp_path):
    pytest.importorskip("dask_jobqueue")
    words = [
        sys.executable,
        str(EXAMPLES / "slurm.py"),
        "--script",
        "--cores",
        "16",
        "--memory",
        "64GB",
        "--queue",
        "cpu",
    ]
    told = subprocess.run(words, capture_output=True, text=True, check=True, cwd=tmp_path).stdout
    for line in ("#SBATCH -p cpu", "#SBATCH --cpus-per-task=16", "#SBATCH --mem=60G", "#SBATCH -t 08:00:00"):
        assert line in told
    assert "dask_worker tcp://" in told and "--nthreads 16" in told


def test_the_pods_are_those_of_dask_kubernetes():
    operator = pytest.importorskip("dask_kubernetes.operator")
    given = yaml.safe_load((EXAMPLES / "kubernetes.yaml").read_text())
    worker = given["spec"]["worker"]["spec"]["containers"][0]
    assert worker.pop("resources")["limits"]["cpu"] == worker["args"][-5] == "16"
    assert worker["args"][-6:] == ["--nthreads", "16", "--nworkers", "1", "--memory-limit", "0"]
    del worker["args"][-6:]
    made = operator.make_cluster_spec("cdmpp", image=worker["image"], n_workers=4)
    assert given == told(made)


def told(value):
    """Without what is None."""
    if isinstance(value, dict):
        return {key: told(one) for key, one in value.items() if one is not None}
    return [told(one) for one in value] if isinstance(value, list) else value
