"""torchvision with the torch that it was built for: imported, or refused with the command that installs the pair."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
from typing import Any

from cdmpp.errors import CdmppError


def import_torchvision() -> Any:
    """Import torchvision; ``CdmppError`` where it is not installed, or does not load with the installed torch."""
    if fault := torchvision_fault():
        raise CdmppError(fault)
    if importlib.util.find_spec("torchvision") is None:
        raise CdmppError(f"torchvision is not installed: {_remedy(False)}")
    return importlib.import_module("torchvision")


def torchvision_fault() -> str:
    """Say why torchvision cannot be imported, and what to do; empty where it can, or where none is installed.

    transformers and Lightning import it where it is installed, and fail with it in words that do not say so.
    """
    if importlib.util.find_spec("torchvision") is None:
        return ""
    try:
        importlib.import_module("torchvision")
    except (
        Exception
    ) as error:  # torch raises RuntimeError for missing operators, the loader OSError, others ImportError
        reason = " ".join(str(error).split())[:200]
        return (
            f"the installed torchvision cannot be imported ({reason}): it was built for another torch than "
            f"{_version()}, which is installed. {_remedy(True)}; or `pip uninstall torchvision` where you need none"
        )
    return ""


def _remedy(again: bool) -> str:
    """The command that leaves torch as it is and takes the torchvision of the same index, ``again`` where one is."""
    version = _version()
    _, _, build = version.partition("+")
    index = f" --extra-index-url https://download.pytorch.org/whl/{build}" if build else ""
    return (
        f"`pip install {'--force-reinstall ' if again else ''}torchvision torch=={version}{index}` installs what fits"
    )


def _version() -> str:
    return importlib.metadata.version("torch")
