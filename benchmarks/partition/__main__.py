"""Cut profiled networks over devices: prints the tables of all sections, or of some.

python -m benchmarks.partition --data FOLDER                  # FOLDER holds pipedream/
python -m benchmarks.partition pipedream --data FOLDER --publish     # puts them into docs/measured and its page

The public figures are not part of this repository; each section says in its first lines where they come from.
"""

from __future__ import annotations

import sys

from benchmarks.partition import SECTIONS
from benchmarks.publish.sections import run

if __name__ == "__main__":
    sys.exit(run("benchmarks.partition", {"partition": SECTIONS}, __doc__))
