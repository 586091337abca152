"""Judge parameter servers and synchronies on public figures: prints the tables of all sections, or of some.

python -m benchmarks.synchrony --data FOLDER                  # FOLDER holds tf-parameter-server/ and adsp/
python -m benchmarks.synchrony tf --data FOLDER --publish     # puts them into docs/measured and its page

The public figures are not part of this repository; each section says in its first lines where they come from.
"""

from __future__ import annotations

import sys

from benchmarks.publish.sections import run
from benchmarks.synchrony import SECTIONS

if __name__ == "__main__":
    sys.exit(run("benchmarks.synchrony", {"parameter-servers": SECTIONS}, __doc__))
