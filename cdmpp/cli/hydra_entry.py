"""What the verbs with settings share: configuration in as plain Python, our own errors and Ctrl-C out as a message."""

from __future__ import annotations

import errno
import io
import os
import re
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import hydra
from omegaconf import DictConfig

from cdmpp.cli.settings_help import settings_help
from cdmpp.errors import CdmppError
from cdmpp.platform.paths import conf_folder
from cdmpp.recipes.compose import CONFIG_ERRORS, explained, search_path, values_of

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG)
"""Where no file of ours is written, a log of Lightning's or a picture, a full disk arrives as it is."""


def entry(config_name: str) -> Callable[[Callable[[dict[str, Any]], None]], Callable[[], None]]:
    """Decorator: ``main(settings)`` becomes a command that composes ``conf/<config_name>.yaml`` with its arguments."""

    def decorate(main: Callable[[dict[str, Any]], None]) -> Callable[[], None]:
        @hydra.main(version_base="1.3", config_path=str(conf_folder()), config_name=config_name)
        def composed(config: DictConfig) -> None:
            values = values_of(config)
            _ended_well(lambda: main(values), values)  # here, since Hydra would add words of its own

        def command() -> None:
            if isinstance(sys.stdout, io.TextIOWrapper):  # a log then shows what happened at once
                sys.stdout.reconfigure(line_buffering=True)
            if config_name == "evaluate":  # Hydra takes ``split`` for a group
                sys.argv = [re.sub("^split=", "splits=", word) for word in sys.argv]
            if {"-h", "--help"} & set(sys.argv[1:]):
                print(settings_help(_command(), config_name))
                return
            sys.argv += search_path()
            os.environ["HYDRA_FULL_ERROR"] = "1"  # its errors are raised, not printed
            _ended_well(composed, {})

        return command

    return decorate


def _ended_well(action: Callable[[], Any], values: Mapping[str, Any]) -> None:
    """Run ``action``; exit with status 2 where the input is wrong and with the shell's, 130, where Ctrl-C stops it."""
    try:
        action()
        return
    except CdmppError as error:
        reason, status = str(error), 2
    except CONFIG_ERRORS as error:
        reason, status = str(explained(error)), 2
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        what = f"cannot write {error.filename or 'a file'}: {error.strerror}"
        reason, status = f"{what}. Free some space. {_how_to_go_on(values)}", 2
    except KeyboardInterrupt:
        reason, status = f"stopped. {_how_to_go_on(values)}", 130
    print(f"cdmpp: {reason}", file=sys.stderr)
    sys.exit(status)


def _how_to_go_on(values: Mapping[str, Any]) -> str:
    out = values.get("resume") or values.get("out")
    if "resume" in values and (Path(str(out)) / "settings.json").is_file():
        return f"To go on: {_command()} {shlex.quote(f'resume={out}')}"
    return "To go on, run the same command again" + (f" with {shlex.quote(f'out={out}')}" if out else "")


def _command() -> str:
    return f"python {shlex.quote(sys.argv[0])}" if sys.argv[0].endswith(".py") else sys.argv[0]
