"""The common part of verbs with settings: their configuration as plain Python, and errors and Ctrl-C as one line."""

from __future__ import annotations

import errno
import io
import os
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hydra
from omegaconf import DictConfig

from cdmpp.cli.absent_tvm import absent_tvm_named
from cdmpp.cli.logs import log
from cdmpp.cli.old_names import setting_of
from cdmpp.cli.settings_help import settings_help
from cdmpp.errors import CdmppError
from cdmpp.execute.executor import LOCAL, executing
from cdmpp.platform.paths import conf_folder
from cdmpp.recipes.compose import CONFIG_ERRORS, explained, search_path, values_of
from cdmpp.training.processes import Terminated, is_rank_zero

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG)
"""A full disk arrives as it is where no file of ours is written: a log of Lightning's, a picture."""


@dataclass(frozen=True)
class Entry:
    """``conf/<config>.yaml`` configures this verb."""

    config: str
    act: Callable[[dict[str, Any]], None]
    """The work that is done with the composed settings."""

    def run(self, settings: Sequence[str], program: str) -> None:
        """Compose the configuration with ``settings``, words ``key=value``, and act.

        ``program`` is what messages call the command. Ends the process with status 2 where a setting is wrong, 130
        where Ctrl-C stops it, and 143 where SIGTERM stops a training.
        """

        @hydra.main(version_base="1.3", config_path=str(conf_folder()), config_name=self.config)
        def composed(config: DictConfig) -> None:
            values = values_of(config)
            _ended_well(lambda: self._act(values), values)  # here, since Hydra would add words of its own

        if isinstance(sys.stdout, io.TextIOWrapper):  # a log then shows what happened at once
            sys.stdout.reconfigure(line_buffering=True)
        settings = [setting_of(word) for word in settings]
        if self.config == "evaluate":  # Hydra takes ``split`` for a group
            settings = [re.sub("^split=", "splits=", word) for word in settings]
        sys.argv = [program, *settings, *search_path()]
        os.environ["HYDRA_FULL_ERROR"] = "1"  # its errors are raised, not printed
        _ended_well(composed, {})

    def _act(self, values: dict[str, Any]) -> None:
        with executing(str(values.get("executor", LOCAL))), absent_tvm_named():
            self.act(values)

    def help(self, program: str) -> str:
        """Return the usage, and every setting with its default and meaning."""
        return settings_help(program, self.config)


def entry(config: str) -> Callable[[Callable[[dict[str, Any]], None]], Entry]:
    """Decorate ``main(settings)``: it becomes the ``Entry`` that ``conf/<config>.yaml`` configures."""
    return lambda act: Entry(config, act)


def _ended_well(action: Callable[[], Any], values: Mapping[str, Any]) -> None:
    """Run ``action``; exit with status 2 where the input is wrong, 130 where Ctrl-C and 143 where SIGTERM stops it."""
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
    except Terminated:
        reason, status = f"stopped by SIGTERM. {_how_to_go_on(values)}", Terminated.status
    if status == 2 or is_rank_zero():  # one of several processes says it for all
        log.error("%s", reason)
    sys.exit(status)


def _how_to_go_on(values: Mapping[str, Any]) -> str:
    out = values.get("resume") or values.get("out")
    if "resume" in values and (Path(str(out)) / "settings.json").is_file():
        return f"To go on: {sys.argv[0]} {shlex.quote(f'resume={out}')}"
    return "To go on, run the same command again" + (f" with {shlex.quote(f'out={out}')}" if out else "")
