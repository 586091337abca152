"""The wheel, built once, and unpacked as an installed package would lie."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent


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
