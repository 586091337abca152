"""Workers as jobs of SLURM: prints the address for `--executor`, and keeps the scheduler until Ctrl-C.

python examples/cluster/slurm.py --jobs 4 --cores 16 --memory 64GB --queue cpu
python examples/cluster/slurm.py --script      # the job script that would be submitted
python examples/cluster/slurm.py --here        # jobs are processes of this machine: a trial without SLURM
"""

from __future__ import annotations

import argparse
import signal
import threading

import dask
from dask_jobqueue import SLURMCluster
from dask_jobqueue.local import LocalCluster


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--jobs", type=int, default=2)
    words.add_argument("--cores", type=int, default=4, help="of each job; each takes one program at a time")
    words.add_argument("--memory", default="16GB", help="of each job")
    words.add_argument("--queue", default=None, help="the partition")
    words.add_argument("--walltime", default="08:00:00")
    words.add_argument("--script", action="store_true")
    words.add_argument("--here", action="store_true")
    given = words.parse_args()

    # Dask ends a job whose worker died and is not there again after so long; by default 15 s, which imports may need.
    dask.config.set({"distributed.deploy.lost-worker-timeout": "5 minutes"})
    # One process with as many threads as cores: the work is done in child processes, one for each thread.
    job = {"cores": given.cores, "processes": 1, "memory": given.memory, "scheduler_options": {"dashboard": False}}
    if given.here:
        cluster = LocalCluster(**job)
    else:
        # Workers begin in the folder that all machines share, and stay no longer than the job.
        extra = ["--lifetime-stagger", "4m"]
        cluster = SLURMCluster(queue=given.queue, walltime=given.walltime, worker_extra_args=extra, **job)
    with cluster:
        if given.script:
            print(cluster.job_script())
            return
        cluster.scale(jobs=given.jobs)
        print(cluster.scheduler_address.replace("tcp://", "dask://"), flush=True)
        stopped = threading.Event()
        for one in (signal.SIGINT, signal.SIGTERM):
            signal.signal(one, lambda *_: stopped.set())
        stopped.wait()


if __name__ == "__main__":
    main()
