"""One part of a kit: a zip file that Python runs, ``python part-000.zip``: programs, runtime and measuring code."""

from __future__ import annotations

import glob
import importlib.metadata
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cdmpp.errors import CdmppError
from cdmpp.platform.files import write_atomic

_ROOT = Path(__file__).resolve().parents[2]
_CODE = """__init__ errors version old_keywords platform/__init__ platform/workers measure/__init__ measure/protocol
measure/reference_kernels measure/software measure/timing
measure/window measure/worker measure/kit/__init__ measure/kit/runner""".split()
"""Modules of this package that the device needs: none of them imports more than numpy and tvm_ffi there."""
_MAIN = '''"""Measure the programs of this part: `python {name}.zip` (see --help)."""
import sys, tempfile, zipfile
from pathlib import Path

here = Path(sys.argv[0]).resolve()
with tempfile.TemporaryDirectory(prefix="cdmpp-kit-") as folder:
    zipfile.ZipFile(here).extractall(folder)
    sys.path[:0] = [folder, folder + "/site"]
    from cdmpp.measure.kit.runner import main
    status = main(Path(folder), here)
sys.exit(status)
'''


def runtime_files(cuda: bool) -> dict[str, Path]:
    """Map archive name to file of TVM's runtime libraries in loading order; with ``cuda`` a GPU's, too."""
    spec = importlib.util.find_spec("tvm")
    if spec is None or spec.origin is None:
        raise CdmppError("building a kit needs TVM: pip install 'cdmpp[tvm]'")
    folder = Path(spec.origin).parent / "lib"
    files = [folder / "libtvm_runtime.so"]
    if cuda:
        if shutil.which("nvcc") is None:
            raise CdmppError("nvcc was not found on PATH: install the CUDA toolkit to build a kit for an NVIDIA GPU")
        homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), *sorted(glob.glob("/usr/local/cuda*"))]
        libraries = [path for home in homes if home for path in sorted(Path(home).glob("lib64/libcudart.so.*"))]
        if not libraries:
            raise CdmppError("libcudart was not found: install the CUDA toolkit, or set CUDA_HOME to where it is")
        sonames = [path for path in libraries if path.name.count(".") == 2]
        files = [(sonames or libraries)[0], *files, folder / "libtvm_runtime_cuda.so"]
    return {f"runtime/{path.name}": path for path in files}


def fetch_ffi(python: str, folder: Path) -> None:
    """Unpack tvm_ffi for Python ``python`` (such as 3.12) into ``folder``; ``CdmppError`` where pip has no wheel."""
    version = importlib.metadata.version("apache-tvm-ffi")
    with tempfile.TemporaryDirectory() as wheels:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:", "--dest", wheels]
        command += ["--python-version", python, f"apache-tvm-ffi=={version}"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise CdmppError(f"pip has no apache-tvm-ffi {version} for Python {python}: {done.stderr[-300:]}")
        for wheel in sorted(Path(wheels).glob("*.whl")):
            zipfile.ZipFile(wheel).extractall(folder)


def compressed_size(path: Path) -> int:
    """Return the bytes that a file takes in a part."""
    return len(zlib.compress(path.read_bytes(), 6)) + 200


def write_part(path: Path, files: Mapping[str, Path], texts: Mapping[str, Any]) -> None:
    """Write one part atomically: ``files`` (archive name -> file), ``texts`` (archive name -> JSON value), the code."""

    def write(temporary: Path) -> None:
        with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
            archive.writestr("__main__.py", _MAIN.replace("{name}", path.stem))
            for module in _CODE:
                archive.write(_ROOT / f"{module}.py", f"cdmpp/{module}.py")
            for name, file in files.items():
                archive.write(file, name)
            for name, value in texts.items():
                archive.writestr(name, json.dumps(value))

    write_atomic(path, write)
