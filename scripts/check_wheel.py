"""Install a wheel into an environment of its own and run README's commands from an empty folder.

python scripts/check_wheel.py                                   # builds the wheel first
python scripts/check_wheel.py --wheel dist/cdmpp-*.whl --index https://download.pytorch.org/whl/cpu

The environment shares nothing with this one but the cache of pip. Files of the checkout that a command names are copied
beside it, as a reader has them; what only the reader has (a database, a recorded job, an ONNX file) is left out.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
THEIRS = ("tuning_db/", "model.onnx", "trace traces")
"""Words of commands that need what only the reader has."""
LONG = ("tune ",)
"""Commands that take long, and need a quiet machine."""


def commands(readme: str) -> list[str]:
    """Return the commands of README's part on predicting, without their remarks."""
    part = re.search(r"^## Predict$(.*?)^## ", readme, re.MULTILINE | re.DOTALL)
    assert part is not None
    lines = re.findall(r"^(cdmpp .*?)\s*(?:#.*)?$", part[1], re.MULTILINE)
    return [line for line in lines if line]


def runnable(command: str) -> bool:
    """Return True where nothing is needed that only the reader has."""
    return not any(word in command for word in (*THEIRS, *LONG))


def files_of(command: str) -> list[Path]:
    """Return the files of the checkout that a command names."""
    return [Path(word) for word in command.split() if (ROOT / word).is_file()]


def environment(place: Path) -> dict[str, str]:
    """Return variables without those that would lead back into the checkout."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("CDMPP", "PYTHON", "VIRTUAL_ENV"))
    }
    kept |= {"PATH": f"{place / 'venv' / 'bin'}:/usr/bin:/bin", "CDMPP_CACHE": str(place / "cache")}
    return kept | {"OMP_NUM_THREADS": "1"}


def install(place: Path, wheel: Path, python: str, index: str | None, extras: str) -> None:
    """Make the environment."""
    subprocess.run([python, "-m", "venv", str(place / "venv")], check=True)
    pip = [str(place / "venv" / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    more = ["--extra-index-url", index] if index else []
    # torchvision is no extra: it must be of the index that torch is of, so the two are chosen together.
    subprocess.run([*pip, *more, f"{wheel}[{extras}]" if extras else str(wheel), "torchvision"], check=True, cwd=place)
    # As `make` does: PyPI's torchvision beside a torch for CPUs loads without its compiled operators.
    subprocess.run([pip[0], str(ROOT / "scripts" / "check_environment.py")], check=True, cwd=place)


def main() -> int:
    """Install, run, and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wheel", type=Path, help="the wheel (default: that of the last commit is built)")
    parser.add_argument("--python", default=sys.executable, help="which Python (default: this one)")
    parser.add_argument("--index", help="a further index of packages, for torch")
    parser.add_argument("--extras", default="tvm,networks,plots", help="extras to install (default tvm,networks,plots)")
    given, failed = parser.parse_args(), 0
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        if given.wheel is None:
            build = [sys.executable, str(ROOT / "scripts" / "build_wheel.py"), "--out", str(place)]
            subprocess.run(build, check=True)
            given.wheel = next(place.glob("*.whl"))
        install(place, given.wheel.resolve(), given.python, given.index, given.extras)
        empty = place / "empty"
        for command in commands((ROOT / "README.md").read_text()):
            if not runnable(command):
                print(f"left out  {command}")
                continue
            shutil.rmtree(empty, ignore_errors=True)
            for file in files_of(command):
                (empty / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / file, empty / file)
            empty.mkdir(exist_ok=True)
            begun = time.monotonic()
            ran = subprocess.run(command.split(), cwd=empty, env=environment(place), capture_output=True, text=True)
            failed += ran.returncode != 0
            state = "ok" if ran.returncode == 0 else f"exit {ran.returncode}"
            print(f"{state:8} {time.monotonic() - begun:6.1f} s  {command}", flush=True)
            if ran.returncode:
                print(ran.stderr[-2000:], file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
