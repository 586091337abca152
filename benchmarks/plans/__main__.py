"""Judge the oracle of plans on public figures: prints the tables of all sections, or of some.

python -m benchmarks.plans --data FOLDER                       # FOLDER holds paradl/, alpa-osdi22/ and others
python -m benchmarks.plans paradl --data FOLDER --publish      # puts them into docs/measured/plans.json and its page

The public figures are not part of this repository; each section says in its first lines where they come from.
"""

from __future__ import annotations

import sys

from benchmarks.plans import PAGES
from benchmarks.publish.sections import run

if __name__ == "__main__":
    sys.exit(run("benchmarks.plans", PAGES, __doc__))
