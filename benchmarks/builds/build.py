"""Build: one revision of this repository as a wheel, installed in an environment of its own."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
BASELINE, BASELINE_COMMIT = "v0.1-baseline", "8aed130db4155f95ae896a63dedd5964eebbdd25"
"""Tag of the build that all others are compared with, and its commit: clones need not have the tag."""
_LEFT_OUT = ("datasets", "docs", "tests", "benchmarks")
"""Folders that no wheel takes anything of."""


@dataclass(frozen=True)
class Build:
    """A build is one commit, installed; its heavy packages are those of the environment that runs this script."""

    name: str
    commit: str
    folder: Path
    """Its environment."""

    @property
    def python(self) -> Path:
        """Its interpreter, which imports this build and no other."""
        return self.folder / "bin" / "python"

    @property
    def command(self) -> Path:
        """Its ``cdmpp``."""
        return self.folder / "bin" / "cdmpp"

    def environment(self, cache: Path) -> Mapping[str, str]:
        """Variables of its processes: one thread, nothing from the web, and this cache."""
        path = os.pathsep.join([str(self.folder / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]])
        kept = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "CDMPP_DATA")}
        own = {"PATH": path, "CDMPP_CACHE": str(cache), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        return {**kept, **own}


def commit_of(revision: str) -> str:
    """The commit that a revision names; the process ends where there is none."""
    known = BASELINE_COMMIT if revision == BASELINE and not _ok("rev-parse", "-q", "--verify", revision) else revision
    if not _ok("rev-parse", "-q", "--verify", f"{known}^{{commit}}"):
        sys.exit(f"no such revision: {revision}; give --baseline or --now one that `git rev-parse` knows")
    return _git("rev-parse", f"{known}^{{commit}}")


def built(name: str, revision: str, folder: Path) -> Build:
    """Build a revision below ``folder``, unless that was done before."""
    commit = commit_of(revision)
    build = Build(name, commit, folder / commit[:12])
    ready = build.folder / "ready"
    if not ready.is_file():
        print(f"building {name}, {commit[:12]}", file=sys.stderr, flush=True)
        shutil.rmtree(build.folder, ignore_errors=True)
        with tempfile.TemporaryDirectory() as scratch:
            wheel = _wheel(commit, Path(scratch))
            _install(wheel, build.folder)
        ready.touch()
    return build


def _wheel(commit: str, scratch: Path) -> Path:
    tree = scratch / "tree"
    tree.mkdir()
    left_out = [f":(exclude){folder}" for folder in _LEFT_OUT]
    archive = subprocess.Popen(["git", "archive", commit, "--", ".", *left_out], cwd=REPOSITORY, stdout=subprocess.PIPE)
    subprocess.run(["tar", "-x", "-C", str(tree)], stdin=archive.stdout, check=True)
    if archive.wait():
        sys.exit(f"git archive {commit} failed")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    # Without isolation: what builds it is here, and both are built by the same compiler and versions.
    options = ["--no-deps", "--no-build-isolation", "--wheel-dir", str(scratch)]
    subprocess.run([*pip, "wheel", *options, str(tree)], check=True, env=_tools())
    return next(scratch.glob("cdmpp-*.whl"))


def _install(wheel: Path, folder: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "--python", str(python)]
    subprocess.run([*pip, "install", "--no-deps", "--no-index", str(wheel)], check=True, env=_tools())
    packages = folder / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    # A plain path: the .pth files in there, one of which is the checkout's, are not read.
    (packages / "shared.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    found = subprocess.run(
        [str(python), "-c", "import cdmpp; print(cdmpp.__file__)"], check=True, text=True, capture_output=True,
        cwd=folder, env={"PATH": os.environ["PATH"]},
    ).stdout.strip()  # fmt: skip
    if not Path(found).is_relative_to(packages):
        sys.exit(f"{python} imports {found}, not the build that was installed")


def _tools() -> dict[str, str]:
    """Variables with CMake and Ninja of this environment on the path, and no checkout."""
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return {**kept, "PATH": os.pathsep.join([str(Path(sys.executable).parent), kept["PATH"]])}


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=REPOSITORY, check=True, text=True, capture_output=True).stdout.strip()


def _ok(*words: str) -> bool:
    return subprocess.run(["git", *words], cwd=REPOSITORY, capture_output=True).returncode == 0


def parser_of(prog: str, about: str | None, rows: str, again: str) -> argparse.ArgumentParser:
    """Return a parser of what all commands on two builds take: their revisions, rows and folder."""
    parser = argparse.ArgumentParser(prog=prog, description=about)
    parser.add_argument("--baseline", default=BASELINE, help=f"revision to compare with (default {BASELINE})")
    parser.add_argument("--now", default="HEAD", help="revision that is judged (default HEAD)")
    parser.add_argument("--rows", default="", help=f"names of rows, with commas; default: {rows}")
    parser.add_argument("--again", action="store_true", help=f"also rows {again}")
    parser.add_argument("--folder", type=Path, default=REPOSITORY / "outputs" / "builds", help="where builds are kept")
    return parser
