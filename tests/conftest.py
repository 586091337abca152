"""The wheel, built once, and unpacked as an installed package would lie."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
SLOW_TO_START = re.compile(r"\b(tvm|subprocess|multiprocessing|cdmpp\.programs|torchvision|transformers)\b")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fast", action="store_true", help="leave out files that name TVM; no test may start a process")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With ``--fast`` leave out a test file that speaks of TVM or of processes; None lets pytest decide."""
    if not config.getoption("--fast") or not collection_path.name.startswith("test_"):
        return None
    return True if SLOW_TO_START.search(collection_path.read_text()) else None


@pytest.fixture(autouse=True)
def only_fast(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """With ``--fast`` a test that starts a process, or leaves TVM imported, fails."""
    if not request.config.getoption("--fast"):
        yield
        return

    def refuse(*arguments: object, **options: object) -> None:
        raise AssertionError(f"a fast test starts a process: {arguments[1:]}")

    monkeypatch.setattr(subprocess.Popen, "__init__", refuse)
    yield
    assert "tvm" not in sys.modules, "a fast test imports TVM"


@pytest.fixture(scope="session")
def wheel(tmp_path_factory) -> Path:
    build = pytest.importorskip("scikit_build_core.build")
    out = tmp_path_factory.mktemp("wheel")
    here = os.getcwd()
    try:
        os.chdir(REPOSITORY)
        return out / build.build_wheel(str(out))
    finally:
        os.chdir(here)


@pytest.fixture(scope="session")
def installed(wheel, tmp_path_factory) -> dict[str, str]:
    """Environment variables of a process that imports the package from the wheel and nothing from the checkout."""
    site = tmp_path_factory.mktemp("site")
    zipfile.ZipFile(wheel).extractall(site)
    ours = {"PYTHONPATH": str(site), "PYTHONSAFEPATH": "1", "OMP_NUM_THREADS": "1"}
    return {**{k: v for k, v in os.environ.items() if k != "CDMPP_DATA"}, **ours}
