"""The project as a whole: the wheel is complete, make works from nothing, the README tells the truth."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import cdmpp
from cdmpp import devices
from tests.compiled_before import object_before

REPOSITORY = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
README = (REPOSITORY / "README.md").read_text()
MEBIBYTE = 2**20


def tracked_files() -> list[Path]:
    if not (REPOSITORY / ".git").exists() or not shutil.which("git"):
        pytest.skip("not a git checkout")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    return [REPOSITORY / name for name in listed.stdout.split("\0") if name and (REPOSITORY / name).is_file()]


def make(*arguments: str, **changes: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **changes}
    for name in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS"):  # the suite itself may run under make
        environment.pop(name, None)
    return subprocess.run(["make", *arguments], cwd=REPOSITORY, capture_output=True, text=True, env=environment)


def test_wheel_holds_code_and_configuration_only(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {"cdmpp/cli/command.py", "cdmpp/py.typed"} <= names
    names_of = ("extract", "action_lists", "cpu_code", "gpu_code", "engine", "network")
    libraries = {f"cdmpp/lib/{name}.so" for name in names_of}
    assert {name for name in names if name.startswith("cdmpp/lib/")} == libraries  # nothing else of where it was built
    assert wheel.name.startswith(f"cdmpp-{cdmpp.__version__}-py3-none-")  # one for every Python
    assert {f"cdmpp/conf/device/{name}.yaml" for name in devices.names()} <= names
    assert {name.split("/")[0] for name in names} == {"cdmpp", f"cdmpp-{cdmpp.__version__}.dist-info"}
    for path in tracked_files():
        relative = path.relative_to(REPOSITORY)
        if relative.parts[0] == "cdmpp":
            assert (str(relative) in names) == (path.suffix not in (".cpp", ".h") and path.name != "CMakeLists.txt")
        elif relative.parts[0] == "conf":
            assert f"cdmpp/{relative}" in names


def test_an_object_of_other_sources_is_not_taken_for_the_wheel(tmp_path):
    made = tmp_path / "engine.cpp.o"
    made.touch()
    (tmp_path / "engine.sha256").write_text("ab12")
    same = ["c++", "-DCDMPP_SOURCES=ab12", "-Dengine_EXPORTS", "-o", made.name, "-c", "engine.cpp"]
    assert object_before(tmp_path, same) == made
    assert object_before(tmp_path, ["c++", "-DCDMPP_SOURCES=ab13", *same[2:]]) is None
    assert object_before(tmp_path, ["c++", same[1], "-Dnetwork_EXPORTS", *same[3:]]) is None
    assert object_before(tmp_path, [*same[:4], "other.o", *same[5:]]) is None
    assert object_before(tmp_path, ["c++", "--version"]) is None


def test_console_script_and_version():
    assert PROJECT["project"]["scripts"] == {"cdmpp": "cdmpp.cli:main"}
    done = subprocess.run([sys.executable, "-m", "cdmpp.cli", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"cdmpp {cdmpp.__version__}"


def test_make_help_names_every_target():
    listed = make("help").stdout
    for target in ("train", "test", "lint", "data"):
        assert f"make {target} " in listed


def test_make_train_passes_the_device_on():
    assert "scripts/train.py device=xeon-icelake" in make("-n", "train").stdout
    assert "scripts/train.py device=a100 trainer=fast" in make("-n", "train", "DEVICE=a100", "ARGS=trainer=fast").stdout


def test_make_without_a_fit_python_says_so(tmp_path):
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("sh", "bash", "make", "sed", "grep"):
        if found := shutil.which(name):
            (tools / name).symlink_to(found)
    (tools / "python3").write_text("#!/bin/sh\nexit 1\n")  # one that is there, but too old
    (tools / "python3").chmod(0o755)
    done = make("install", f"VENV={tmp_path / 'venv'}", PATH=str(tools))
    assert done.returncode != 0
    assert "no Python 3.11, 3.12 or 3.13" in done.stderr
    assert not (tmp_path / "venv").exists()


def test_the_compiler_that_is_a_wheel_is_found_while_pip_builds(tmp_path):
    """Pip gives what it starts a path without the packages that are installed."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys; sys.path = [p for p in sys.path if 'site-packages' not in p]"
    )
    words = re.search(r'CXX="\S+ (.*) ziglang c\+\+"', make("-n", "native").stdout)
    hidden = {**os.environ, "PYTHONPATH": str(tmp_path)}
    for options, found in ((["-m"], False), (words[1].split(), True)):  # any installed module will do
        done = subprocess.run([sys.executable, *options, "pytest", "--version"], env=hidden, capture_output=True)
        assert (done.returncode == 0) == found


def test_ci_runs_make_test():
    script = REPOSITORY / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert re.search(r"^(exec )?make test$", script.read_text(), re.MULTILINE)


def test_readme_is_read_in_three_minutes():
    assert f"# {len(devices.names())} devices," in README
    assert {"train", "test"} <= set(re.findall(r"^make ([a-z-]+)", README, re.MULTILINE))


def test_tree_stays_small_enough_to_travel():
    sizes = {path: path.stat().st_size for path in tracked_files()}
    of = {room: sum(size for path, size in sizes.items() if path.is_relative_to(REPOSITORY / room)) for room in
          (".", "datasets", "cdmpp/predict/pretrained")}  # fmt: skip
    assert of["."] < 60e6
    assert of["datasets"] < 40 * MEBIBYTE
    assert of["cdmpp/predict/pretrained"] < 18 * MEBIBYTE


def test_no_pickled_file_is_shipped():
    assert not [
        path for path in tracked_files() if path.suffix in {".pkl", ".pickle", ".pt", ".pth", ".ckpt", ".joblib"}
    ]
