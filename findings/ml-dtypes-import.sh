#!/usr/bin/env bash
# ml_dtypes 0.7.0: `import ml_dtypes` takes about 0.36 s of processor time, 80 times that of 0.6.0 (0.0045 s).
#
# What surprises: the module registers NumPy types and does nothing else, and every process that imports TVM (through
# tvm_ffi), ONNX or JAX pays for it. NumPy is imported before the clock starts; nothing else is imported.
#
# Expected: both versions import in some milliseconds. Fails where 0.7.0 no longer takes ten times as long as 0.6.0.
# Needs: a pip index.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip --quiet --disable-pip-version-check install numpy==2.4.6
for version in 0.6.0 0.7.0; do
    "$folder/venv/bin/python" -m pip --quiet --disable-pip-version-check install --no-deps "ml_dtypes==$version"
    for _ in 1 2 3; do
        "$folder/venv/bin/python" -c "
import time
import numpy
begin = time.process_time()
import ml_dtypes
print(time.process_time() - begin)" >> "$folder/$version"
    done
    echo "$version: $(sort -n "$folder/$version" | head -1) s of processor time"
done
"$folder/venv/bin/python" - "$folder" <<'PYTHON'
import sys
from pathlib import Path

old, new = (min(map(float, (Path(sys.argv[1]) / version).read_text().split())) for version in ("0.6.0", "0.7.0"))
sys.exit(0 if new > 10 * old else 1)
PYTHON
