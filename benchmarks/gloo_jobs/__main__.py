"""Record small training jobs on gloo, compare them with what is predicted, and write the page.

python -m benchmarks.gloo_jobs [--only TEXT] [--publish]

    --only TEXT   record the jobs with this text in name or network again; all others stay as they are
    --publish     record nothing, write the page

Each rank is a process of this machine. Recordings lie in tests/fixtures/gloo_jobs.json, of which every one is a test.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from benchmarks.gloo_jobs.jobs import JOBS
from benchmarks.gloo_jobs.predicted import RECORDINGS, page, recordings

PAGE = Path(__file__).parents[2] / "docs" / "results" / "exchanges.md"
_PORT = 29600


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="text in the name of a job or of its network")
    parser.add_argument("--publish", action="store_true", help="record nothing, write the page")
    given = parser.parse_args()
    if not given.publish:
        _record(given.only)
    PAGE.write_text(page(recordings()))


def _record(only: str) -> None:
    from benchmarks.gloo_jobs.record import record

    found = {_key(one): one for one in (recordings() if RECORDINGS.exists() else ())}
    for job in JOBS:
        for ranks in job.ranks if only in job.name or only in job.network else ():
            print(f"{job.name}, {job.network}, {ranks} ranks", flush=True)
            made = record(job, ranks, _PORT + len(found))
            found[_key(made)] = made
            order = [(one.name, one.network, count) for one in JOBS for count in one.ranks]
            kept = sorted((one for key, one in found.items() if key in order), key=lambda one: order.index(_key(one)))
            lines = ",\n".join(json.dumps(one, separators=(",", ":")) for one in kept)
            RECORDINGS.write_text(f"[\n{lines}\n]\n")


def _key(recording: dict) -> tuple[str, str, int]:
    return recording["job"], recording["network"], recording["ranks"]


if __name__ == "__main__":
    main()
