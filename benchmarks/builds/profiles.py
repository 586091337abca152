"""``python -m benchmarks.builds.profiles``: where time goes in both builds, by stage, to docs/results/profiles.md.

Needs Linux, perf, and py-spy (``pip install py-spy``). ``--rows NAME,NAME`` profiles some rows, ``--rows none`` none;
samples are kept in the folder of the builds, and ``--again`` takes them anew. ``--seeds`` trains both builds with
several seeds (an hour on one core). What is finished is kept in docs/profiles.json, so that a stopped run goes on.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.builds.build import REPOSITORY, Build, built, parser_of
from benchmarks.builds.profiles_page import page
from benchmarks.builds.samples import PROFILED, Samples, Seconds, sampled, stages_of, tools_missing
from benchmarks.builds.seeds import TRAININGS, key, trained
from benchmarks.publish.markdown import write_page
from benchmarks.run import machine
from cdmpp.platform.files import write_json

STORED, PAGE = (REPOSITORY / "docs" / name for name in ("profiles.json", "results/profiles.md"))


def main() -> None:
    """Build, take what is missing, and write the page after each row and training."""
    options = _options()
    names = [] if options.rows == "none" else options.rows.split(",") if options.rows else list(PROFILED)
    if unknown := sorted(set(names) - set(PROFILED)):
        sys.exit(f"unknown rows {', '.join(unknown)}; there are {', '.join(PROFILED)}")
    builds = [built(*one, options.folder) for one in (("baseline", options.baseline), ("now", options.now))]
    stored = json.loads(STORED.read_text()) if STORED.is_file() else {"rows": {}, "seeds": {}}
    stored |= {"baseline": builds[0].commit, "now": builds[1].commit, "machine": machine()}
    for name in names:
        seconds = {one.name: _profile(name, one, options.folder / "profiles", options.again) for one in builds}
        stored["rows"][name] = {"commit": builds[1].commit, **seconds}
        _publish(stored)
    for device, seed in TRAININGS if options.seeds else ():
        found = stored["seeds"].setdefault(key(device, seed), {})
        for build in builds:
            if found.get(build.name, {}).get("commit") != build.commit:
                print(f"training {build.name}, {device}, seed {seed}", file=sys.stderr, flush=True)
                found[build.name] = trained(build, device, seed)
                _publish(stored)
    _publish(stored)
    print("\n".join(page(stored)))


def _profile(name: str, build: Build, folder: Path, again: bool) -> Seconds:
    kept = folder / f"{name}-{build.commit[:12]}.json"
    if again or not kept.is_file():
        if missing := tools_missing():
            sys.exit(f"not installed: {', '.join(missing)}; `pip install py-spy`, and perf from the system's packages")
        print(f"profiling {build.name}, {name}", file=sys.stderr, flush=True)
        samples = sampled(name, build, folder / f"{name}-{build.commit[:12]}")
        write_json(kept, asdict(samples))
    return stages_of(name, Samples(**json.loads(kept.read_text())))


def _publish(stored: dict[str, Any]) -> None:
    write_json(STORED, stored)
    write_page(PAGE, page(stored))


def _options() -> argparse.Namespace:
    parser = parser_of(
        "python -m benchmarks.builds.profiles", __doc__, "all that are profiled", "whose samples are kept"
    )
    parser.add_argument("--seeds", action="store_true", help="train with several seeds as well")
    return parser.parse_args()


if __name__ == "__main__":
    main()
