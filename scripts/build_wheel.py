"""Build the wheel of the last commit, the same bytes wherever and whenever it is built; ``--check`` builds it twice.

python scripts/build_wheel.py --out dist          # dist/cdmpp-VERSION-py3-none-PLATFORM.whl, and its SHA-256
python scripts/build_wheel.py --out dist --check  # the second build in another folder, with another clock and mask
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OTHER = {"TZ": "Pacific/Kiritimati", "LC_ALL": "C", "CMAKE_BUILD_PARALLEL_LEVEL": "1"}
"""What a build must not depend on."""


def build(source: Path, out: Path, epoch: int, changes: dict[str, str] | None = None, umask: int = 0o022) -> Path:
    """Build the wheel of a folder of sources.

    Args:
        source: with ``pyproject.toml``.
        out: where the wheel goes.
        epoch: seconds since 1970 that all files of the wheel are of, ``SOURCE_DATE_EPOCH``.
        changes: variables of the environment.
        umask: of the process that builds.
    """
    before = {*out.glob("*.whl")} if out.exists() else set()
    environment = {**os.environ, **(changes or {}), "SOURCE_DATE_EPOCH": str(epoch)}
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet", "--no-deps"]
    command += ["--no-build-isolation", "--wheel-dir", str(out), str(source)]
    subprocess.run(command, check=True, env=environment, umask=umask, cwd=source)
    (made,) = {*out.glob("*.whl")} - before
    return made


def differing(one: Path, two: Path) -> list[str]:
    """Return what two wheels differ in: members, or the archives themselves; empty where they are the same bytes."""
    if one.read_bytes() == two.read_bytes():
        return []
    first, second = zipfile.ZipFile(one), zipfile.ZipFile(two)
    names = first.namelist(), second.namelist()
    if names[0] != names[1]:
        alone = sorted({*names[0]} ^ {*names[1]})
        return [f"{name}: in one of the two" for name in alone] or ["the order of the files"]
    found = [f"{name}: other content" for name in names[0] if first.read(name) != second.read(name)]
    return found or ["times, modes or compression of the files"]


def git(*words: str) -> bytes:
    """Return what git prints."""
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True).stdout


def sources(folder: Path, commit: str) -> None:
    """Put the files of a commit into a folder."""
    folder.mkdir(parents=True)
    subprocess.run(["tar", "x"], cwd=folder, input=git("archive", commit), check=True)


def main() -> int:
    """Build, compare, and say what was made."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("dist"), help="folder of the wheel (default dist)")
    parser.add_argument("--check", action="store_true", help="build a second time, and fail where a byte differs")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        commit, epoch = git("log", "-1", "--format=%H %ct").decode().split()
        sources(Path(place) / "one" / "sources", commit)
        wheel = build(Path(place) / "one" / "sources", Path(place) / "made", int(epoch))
        if given.check:
            other = Path(place) / "another" / "and longer" / "folder"
            sources(other, commit)
            again = build(other, Path(place) / "again", int(epoch), OTHER, umask=0o077)
            if found := differing(wheel, again):
                print(f"two builds of {wheel.name} differ:", *found, sep="\n  ", file=sys.stderr)
                return 1
        given.out.mkdir(parents=True, exist_ok=True)
        kept = Path(shutil.copy(wheel, given.out))
    print(hashlib.sha256(kept.read_bytes()).hexdigest(), kept)
    return 0


if __name__ == "__main__":
    sys.exit(main())
