"""Judge fitted expressions of run times: prints the tables of all sections, or of some.

python -m benchmarks.expressions --data FOLDER                       # FOLDER holds sia/, vtrain/ and others
python -m benchmarks.expressions placements --data FOLDER --publish  # puts them into docs/measured and its page

The public figures are not part of this repository. Extra-P (PyPI ``extrap``) stands beside where EXTRAP_PYTHON names a
Python that has it; it needs numpy below 2, so an environment of its own.
"""

from __future__ import annotations

import sys

from benchmarks.expressions import SECTIONS
from benchmarks.publish.sections import run

if __name__ == "__main__":
    sys.exit(run("benchmarks.expressions", {"expressions": SECTIONS}, __doc__))
