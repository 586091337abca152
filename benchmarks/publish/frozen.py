"""Shipped models as they were in an earlier commit, to ask them about data that came later.

``python -m benchmarks.publish.frozen commit=COMMIT model=cpus to=outputs/frozen`` leaves the model's folder there.
"""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

from benchmarks.publish.command_line import run
from cdmpp.errors import DataError

_PLACE = "cdmpp/predict/pretrained"


def frozen(commit: str, model: str, folder: Path) -> Path:
    """Write the model that shipped in ``commit`` into ``folder/model``, and return that place.

    Raises:
        DataError: no such commit, or no such model in it.
    """
    packed = subprocess.run(["git", "archive", commit, f"{_PLACE}/{model}"], capture_output=True)
    if packed.returncode:
        raise DataError(f"no model {model} in commit {commit}: {packed.stderr.decode().strip()}")
    target = folder / model
    target.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        for member in archive:
            if (content := archive.extractfile(member)) is not None:
                (target / Path(member.name).name).write_bytes(content.read())
    return target


def main(commit: str, model: str, to: str) -> None:
    """Write it, and print where."""
    print(frozen(commit, model, Path(to)))


if __name__ == "__main__":
    run(main, commit="???", model="cpus", to="outputs/frozen")
