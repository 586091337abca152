"""What the Hydra scripts share: configuration in as plain Python, our own errors out as one line."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

# A script's own folder comes first on the module path, and there scripts/profile.py would hide Python's `profile`.
if Path(sys.path[0] or ".").resolve() == Path(__file__).resolve().parents[1] / "scripts":
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import hydra
from omegaconf import DictConfig, OmegaConf

from cdmpp import devices
from cdmpp.errors import CdmppError


def conf_folder() -> Path:
    """``conf``: inside the package once installed, beside it in a source checkout."""
    package = Path(__file__).resolve().parent
    inside = package / "conf"
    return inside if inside.is_dir() else package.parent / "conf"


def entry(config_name: str) -> Callable[[Callable[[dict[str, Any]], None]], Callable[[], None]]:
    """Decorator: ``main(settings)`` becomes a command that composes ``conf/<config_name>.yaml`` with its arguments."""

    def decorate(main: Callable[[dict[str, Any]], None]) -> Callable[[], None]:
        @hydra.main(version_base="1.3", config_path=str(conf_folder()), config_name=config_name)
        def composed(config: DictConfig) -> None:
            _in_one_line(lambda: main(OmegaConf.to_container(config, resolve=True)))  # type: ignore[arg-type]

        def command() -> None:
            if isinstance(sys.stdout, io.TextIOWrapper):  # a log then shows what happened at once
                sys.stdout.reconfigure(line_buffering=True)
            # Hydra would only list every file of the group: an unknown device deserves the nearest names.
            chosen = [word.split("=", 1)[1] for word in sys.argv[1:] if word.startswith("device=")]
            _in_one_line(lambda: [devices.get(name) for value in chosen for name in value.split(",")])
            composed()

        return command

    return decorate


def _in_one_line(action: Callable[[], Any]) -> None:
    try:
        action()
    except CdmppError as error:
        sys.exit(f"error: {error}")
