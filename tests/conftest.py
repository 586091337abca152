"""What ``--fast`` leaves out and refuses; and the wheel, built once, as an installed package would lie."""

from __future__ import annotations

import gc
import os
import re
import runpy
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from filelock import FileLock

REPOSITORY = Path(__file__).resolve().parent.parent
os.environ["CDMPP_KNOWN_NETWORKS"] = ""
"""What is tested is computed, but for the tests of what is shipped."""
SLOW_TO_START = re.compile(r"\b(tvm|subprocess|multiprocessing|cdmpp\.programs|torchvision|transformers|forked_jobs)\b")
PROCESSES = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.exec", "os.system"}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fast", action="store_true", help="leave out files that name TVM; no test may start a process")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With ``--fast`` leave out a test file that speaks of TVM or of processes; None lets pytest decide."""
    if not config.getoption("--fast") or not collection_path.name.startswith("test_"):
        return None
    return True if SLOW_TO_START.search(collection_path.read_text()) else None


@pytest.fixture(scope="module", autouse=True)
def tidy() -> Iterator[None]:
    """What a file leaves in circles, processes that compile for one, ends with it; the rest is not looked at again."""
    yield
    gc.collect()
    gc.freeze()


STARTED: list[str] = []
"""With ``--fast``: what was started since the last test ended, though whoever asked may have caught the refusal."""


def refuse(event: str, arguments: tuple[Any, ...]) -> None:
    """Audit hook: no process starts and TVM is not imported."""
    if event in PROCESSES or event == "import" and arguments[0].partition(".")[0] == "tvm":
        STARTED.append(f"{event} {arguments[:1]}")
        raise AssertionError(f"a fast test starts {STARTED[-1]}")


LONGEST = """
plans/script/test_torch_script network/compiled/test_training_gradients docs/test_examples test_fuzz
cli/test_installed data/test_importers tuning/test_plug_in network/eager/test_recomputation
plans/sources/test_few_blocks network/compiled/test_runtime recipes/test_finetuning cli/test_option_sweep
network/eager/test_swept network/eager/test_repeated measure/test_kit predict/test_folder network/eager/test_saved
recipes/test_calibrate recipes/test_adapted training/test_interrupted data/test_import_programs measure/test_remote
measure/fleet/test_real_servers
""".split()
"""Files that take longest, none of which may come last, where it would keep one worker busy and the others not."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The files that take longest come first; ``--no-loadscope-reorder`` keeps them there."""
    first = {REPOSITORY / "tests" / f"{name}.py": place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: first.get(item.path, len(first)))


def pytest_collection_finish() -> None:
    """What was imported stays, and torch and TVM make many short-lived objects: looked through less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def pytest_collectstart(collector: pytest.Collector) -> None:
    """With ``--fast`` watch the process that collects: not the one that starts the workers. An audit hook stays."""
    if isinstance(collector, pytest.Session) and collector.config.getoption("--fast"):
        sys.addaudithook(refuse)


@pytest.fixture(autouse=True)
def only_fast(request: pytest.FixtureRequest) -> Iterator[None]:
    """With ``--fast`` a test fails that starts a process or imports TVM, be it on another thread or caught."""
    yield
    started, STARTED[:] = STARTED[:], []
    assert not started, f"a fast test starts {', '.join(started)}"
    assert not request.config.getoption("--fast") or "tvm" not in sys.modules, "a fast test imports TVM"


@pytest.fixture
def run_script(monkeypatch, capfd) -> Callable[..., CompletedProcess[str]]:
    """Run a script of the checkout as a process of its own would, but import torch and Hydra once for all tests."""

    def run(script: str, *words: str) -> CompletedProcess[str]:
        monkeypatch.setattr(sys, "argv", [str(REPOSITORY / script), *words])
        capfd.readouterr()
        with pytest.raises(SystemExit) as end:
            runpy.run_path(sys.argv[0], run_name="__main__")
        return CompletedProcess(sys.argv, end.value.code, *capfd.readouterr())

    return run


@pytest.fixture(scope="session")
def native_database() -> Path:
    """Workloads and tuning lines of a real database, as MetaSchedule writes it."""
    return REPOSITORY / "tests" / "fixtures" / "resnet34_a100"


@pytest.fixture(scope="session")
def legacy_database() -> Path:
    """The same of an older version."""
    return REPOSITORY / "tests" / "fixtures" / "legacy_resnet34"


@pytest.fixture(scope="session")
def wheel(pytestconfig, tmp_path_factory) -> Path:
    """Made of what the checkout or the last one was compiled into: nothing is compiled twice, by no worker either."""
    build = pytest.importorskip("scikit_build_core.build")
    out, kept = tmp_path_factory.mktemp("wheel"), pytestconfig.cache.mkdir("wheel")
    here, launcher = os.getcwd(), [sys.executable, "-I", str(REPOSITORY / "tests" / "compiled_before.py")]
    launched = ";".join([*launcher, str(REPOSITORY / "cdmpp" / "lib")])
    settings = {"build-dir": str(kept / "build"), "cmake.define.CMAKE_CXX_COMPILER_LAUNCHER": launched}
    with FileLock(kept / "lock"):
        try:
            os.chdir(REPOSITORY)
            return out / build.build_wheel(str(out), settings)
        finally:
            os.chdir(here)


@pytest.fixture(scope="session")
def installed(wheel, tmp_path_factory) -> dict[str, str]:
    """Environment variables of a process that imports the package from the wheel and nothing from the checkout."""
    site = tmp_path_factory.mktemp("site")
    zipfile.ZipFile(wheel).extractall(site)
    ours = {"PYTHONPATH": str(site), "PYTHONSAFEPATH": "1", "OMP_NUM_THREADS": "1"}
    return {**{k: v for k, v in os.environ.items() if k != "CDMPP_DATA"}, **ours}
