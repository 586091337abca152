"""Judge the memory of ranks on public figures: prints the tables of all sections, or of some.

python -m benchmarks.memory --data FOLDER            # FOLDER holds megatron-ci/ and nanotron-sweep/
python -m benchmarks.memory --data FOLDER --publish  # puts them into docs/measured/plan-memory.json and its page

The public figures are not part of this repository; each section says in its first lines where they come from.
"""

from __future__ import annotations

import sys

from benchmarks.memory import PAGES
from benchmarks.publish.sections import run

if __name__ == "__main__":
    sys.exit(run("benchmarks.memory", PAGES, __doc__))
