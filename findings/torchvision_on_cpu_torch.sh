#!/usr/bin/env bash
# torchvision 0.28.0 of PyPI (Linux, x86-64) cannot be imported with torch 2.13.0+cpu, and pip calls the pair fitting.
#
# What surprises: the wheel asks for torch==2.13.0, which 2.13.0+cpu is to pip, so `pip check` finds no fault. The wheel is
# compiled for CUDA. torchvision catches that its compiled operators do not load (extension.py) and goes on without them,
# as one expects of a package whose models need none. But _meta_registrations.py describes two of them, nms and qnms, all
# the same, which torch refuses for operators that were never declared. transformers imports torchvision where it is
# installed, so `from transformers import LlamaConfig` fails too, in words that do not name torchvision.
#
# Expected: import torchvision works, and torchvision.ops.nms says that its kernel is missing.
# Needs: a pip index or link that gives the CPU build for torch==2.13.0, or TORCH_INDEX=https://download.pytorch.org/whl/cpu
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
pip="$folder/venv/bin/python -m pip --quiet --disable-pip-version-check"
$pip install ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} torch==2.13.0 2>/dev/null
$pip install numpy==2.4.6 pillow==12.0.0 torchvision==0.28.0 transformers==5.17.0 2>/dev/null
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
import importlib.metadata
import os
import subprocess
import sys

os.environ["HF_HUB_OFFLINE"] = "1"
versions = {name: importlib.metadata.version(name) for name in ("torch", "torchvision", "transformers")}
print(versions)
assert versions["torch"].endswith("+cpu"), "this is about the CPU build of torch: set TORCH_INDEX"


def last_line(*arguments):
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True)
    text = (done.stdout + done.stderr).strip().splitlines()
    print(f"exit {done.returncode}: python {' '.join(arguments)}\n    {text[-1] if text else ''}")
    return done.returncode, text[-1] if text else ""


code, said = last_line("-m", "pip", "--disable-pip-version-check", "check")
assert (code, said) == (0, "No broken requirements found."), "pip finds the fault now"
code, said = last_line("-c", "import torchvision")
assert code and "operator torchvision::nms does not exist" in said, "torchvision imports now"
code, said = last_line("-c", "from transformers import LlamaConfig")
assert code and "torchvision" not in said, "transformers imports, or names the cause, now"
PYTHON
