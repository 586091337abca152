"""Scripts of PyTorch run as jobs of ranks, forked from one process that has imported what they need for them all.

python forked_jobs.py MODULE ...: it imports them, reads a job a line on stdin, as JSON, and answers each with a line on
stdout. A rank that began as a process of its own, as under ``torchrun``, would spend most of its time on imports.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

LIMIT_S = 500.0
PYTORCH = (
    "torch.distributed.fsdp", "torch.distributed.pipelining", "torch.distributed.tensor.experimental._attention",
    "torch.distributed.tensor.parallel", "torch.multiprocessing", "torch.profiler",
)  # fmt: skip


class ForkedJobs:
    """The process that runs jobs: one after the other, each in forks of it. It is started by the first job."""

    def __init__(self, *modules: str) -> None:
        """Nothing starts yet; ``modules``: what it imports, PyTorch's own parts where none are given."""
        self._modules = modules or PYTORCH
        self._process: subprocess.Popen[str] | None = None

    def run(self, script: Path, *words: str, ranks: int = 0, **variables: str) -> str:
        """Run a script to its end; what it printed, rank 0 where it has ranks, which are then told as by torchrun."""
        if self._process is None:
            command = [sys.executable, str(Path(__file__)), *self._modules]
            paths = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
            environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            self._process = subprocess.Popen(command, text=True, env=environment, **pipes)
        job = {"words": [str(script), *words], "ranks": ranks, "variables": variables, "folder": os.getcwd()}
        print(json.dumps(job), file=self._process.stdin, flush=True)
        answer = json.loads(self._process.stdout.readline() or '{"failed": "the process of jobs ended"}')
        assert "failed" not in answer, answer["failed"]
        return answer["printed"]

    def close(self) -> None:
        if self._process is not None:
            self._process.stdin.close()
            self._process.wait()


def _become(job: dict[str, Any], variables: dict[str, str], printed: Path) -> None:
    """Be a rank from here on: a process that was started with a script."""
    status = 1
    try:
        os.setpgid(0, 0)
        for end, path in ((0, os.devnull), (1, f"{printed}.out"), (2, f"{printed}.err")):
            os.dup2(os.open(path, os.O_RDWR | os.O_CREAT), end)
        os.chdir(job["folder"])
        os.environ.update(job["variables"] | variables)
        sys.argv = job["words"]
        sys.path[0] = str(Path(sys.argv[0]).parent)
        runpy.run_path(sys.argv[0], run_name="__main__")
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _ended(ranks: dict[int, int]) -> tuple[int, int] | None:
    """Wait for processes; the rank and the exit status of one that failed, -1 for a job that takes too long."""
    end = time.monotonic() + LIMIT_S
    while ranks:
        for process, rank in [*ranks.items()]:
            found, status = os.waitpid(process, os.WNOHANG)
            if found:
                del ranks[process]
                if status:
                    return rank, os.waitstatus_to_exitcode(status)
        if time.monotonic() > end:
            return 0, -1
        time.sleep(0.01)
    return None


def _run(job: dict[str, Any], folder: Path) -> dict[str, str]:
    import torch.distributed as dist

    count, ranks, store = job["ranks"], dict[int, int](), None
    listening = socket.create_server(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    for rank in range(max(count, 1)):
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count, "MASTER_PORT": port}
        variables = {name: str(value) for name, value in place.items()} if count else {}
        if count:
            variables |= {"MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_USE_AGENT_STORE": "True"}
        process = os.fork()
        if process == 0:
            _become(job, variables, folder / str(rank))
        ranks[process] = rank
    try:
        if count:  # after the forks: it has a thread
            store = dist.TCPStore(
                "127.0.0.1", port, count, is_master=True, wait_for_workers=False, master_listen_fd=listening.detach()
            )
        failed = _ended(ranks)
    finally:
        for process in ranks:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process, signal.SIGKILL)
            os.waitpid(process, 0)
        del store
        listening.close()
    if failed:
        rank, status = failed
        told = (folder / f"{rank}.err").read_text()[-3000:]
        return {"failed": f"{job['words']}: exit status {status} of rank {rank}\n{told}"}
    return {"printed": (folder / "0.out").read_text()}


def main() -> None:
    import torch

    for name in sys.argv[1:]:
        importlib.import_module(name)
    torch.set_num_threads(1)  # a pool of threads does not come along
    for line in sys.stdin:
        with tempfile.TemporaryDirectory() as folder:
            answer = _run(json.loads(line), Path(folder))
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
