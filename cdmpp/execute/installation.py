"""Installation: what must be equal on two machines so that both give the same answer to the bit."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

from cdmpp.platform.paths import conf_folder
from cdmpp.version import __version__

_LIBRARIES = ("apache-tvm", "distributed", "numpy", "scikit-learn", "scipy", "torch", "torchvision", "transformers",
              "xgboost")  # fmt: skip
"""Libraries whose version may change a number or a program, or the messages between machines."""
_READ = (".py", ".json", ".yaml", ".sha256", ".c")


@dataclass(frozen=True)
class Installation:
    """This runs on a machine."""

    cdmpp: str
    source: str
    """Digest of the package and of ``conf/``."""
    python: str
    """Major and minor version."""
    machine: str
    """Kind of processor, such as ``x86_64``."""
    libraries: Mapping[str, str]
    """Library -> its version; empty where it is not installed."""
    own_conf: str
    """Digest of the devices and cores that ``conf/`` of the working folder describes; empty for none."""

    @staticmethod
    def here() -> Installation:
        """Describe this process."""
        return Installation(__version__, _source(), ".".join(platform.python_version_tuple()[:2]), platform.machine(),
                            _libraries(), _own_conf())  # fmt: skip

    @property
    def digest(self) -> str:
        """Return a digest of all of it."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:16]

    def to_json(self) -> str:
        """Write it as JSON."""
        return json.dumps(asdict(self), sort_keys=True)

    @staticmethod
    def from_json(text: str) -> Installation:
        """Read what ``to_json`` wrote."""
        return Installation(**json.loads(text))

    def differences(self, other: Installation) -> tuple[str, ...]:
        """Say in what ``other`` differs, a phrase each; the ``other`` comes first in it."""
        found = []
        for name in ("cdmpp", "python", "machine"):
            own, others = getattr(self, name), getattr(other, name)
            if own != others:
                found.append(f"{name} {others}, here {own}")
        if self.source != other.source and self.cdmpp == other.cdmpp:
            found.append(f"another source of cdmpp {other.cdmpp} (digest {other.source}, here {self.source})")
        for name, own in self.libraries.items():
            if (others := other.libraries.get(name, "")) != own:
                found.append(f"{name} {others or 'is not installed'}, here {own or 'not installed'}")
        if self.own_conf != other.own_conf:
            found.append("its working folder has other devices or cores in conf/ than the one here")
        return tuple(found)


@cache
def _source() -> str:
    package = Path(__file__).resolve().parents[1]
    return _digest((package, conf_folder()))


def _own_conf() -> str:
    own = Path("conf")
    return _digest([own]) if own.is_dir() and not own.samefile(conf_folder()) else ""


def _digest(folders: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for folder in folders:
        for path in sorted(one for one in folder.rglob("*") if one.suffix in _READ and one.is_file()):
            digest.update(f"{path.relative_to(folder)}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:12]


@cache
def _libraries() -> Mapping[str, str]:
    found = {}
    for name in _LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = ""
    return found
