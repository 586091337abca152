"""The compiled extension: libraries of C++ that were built when the package was installed, in ``cdmpp/lib``."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

from cdmpp.errors import MissingToolError

_PACKAGE = Path(__file__).resolve().parents[1]
_SOURCES = {
    "extract": "ast/native", "action_lists": "steps/native", "engine": "simulate/native",
    "cpu_code": "machine_code/cpu/native", "gpu_code": "machine_code/gpu/native", "network": "model/native",
}  # fmt: skip
"""Library -> where a checkout has its sources."""


def extension(name: str) -> Path:
    """Return the path of a library by its name: ``extract``, ``action_lists``, ``engine``, ``cpu_code`` and so on.

    Raises:
        MissingToolError: it was not built; or, in a checkout, it is of other sources than lie there.
    """
    path, sources = _PACKAGE / "lib" / f"{name}.so", _PACKAGE / _SOURCES[name]
    if not path.is_file():
        remedy = "run `make native`" if sources.is_dir() else "install cdmpp again: pip install --force-reinstall cdmpp"
        raise MissingToolError(f"the compiled extension {path} is missing: {remedy}")
    if sources.is_dir() and path.with_suffix(".sha256").read_text() != digest_of(sources):
        raise MissingToolError(f"the compiled extension {path} is older than {sources}: run `make native`")
    return path


def digest_of(sources: Path) -> str:
    """Compute a digest of all files of a folder, as ``CMakeLists.txt`` makes it."""
    digests = (sha256(path.read_bytes()).hexdigest() for path in sorted(sources.iterdir()))
    return sha256("".join(digests).encode()).hexdigest()
