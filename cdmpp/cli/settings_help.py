"""``cdmpp train --help`` and its like: the settings file of the verb, which explains itself, and its groups."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import yaml

from cdmpp.errors import CdmppError
from cdmpp.paths import conf_folder

_CONFIGS = {"train": "config"}


def settings_help(verb: str, text: str, file: str) -> str:
    """Usage, every setting with its default and meaning, and what each group can be set to."""
    path = conf_folder() / f"{_CONFIGS.get(verb, file)}.yaml"
    try:
        settings = path.read_text(encoding="utf-8")
    except OSError as error:
        raise CdmppError(
            f"cannot read the settings of cdmpp {verb}: {error}. The installation is incomplete"
        ) from error
    lines = re.sub(r"^hydra:\n(?:[ \n].*\n?)*", "", settings, flags=re.MULTILINE).splitlines()
    shown = "\n".join(line for line in lines if "override hydra/" not in line and "_self_" not in line)
    groups = [name for entry in yaml.safe_load(settings)["defaults"] if isinstance(entry, dict) for name in entry]
    choices = [_choices(path.parent, name.partition("@")[0]) for name in groups if not name.startswith("override ")]
    return f"""usage: cdmpp {verb} [KEY=VALUE ...]

{text[0].upper()}{text[1:]}. A key of a group is written GROUP.KEY=VALUE, a list KEY=[A,B];
--cfg job shows the settings that a command would use.

{shown.strip()}

# What the groups can be set to:
{"".join(choices).rstrip()}"""


def _choices(folder: Path, group: str) -> str:
    names = sorted(str(path.relative_to(folder / group).with_suffix("")) for path in (folder / group).rglob("*.yaml"))
    line = f"{group}: {'see `cdmpp devices`' if group == 'device' else ' | '.join(names)}"
    return textwrap.fill(line, 120, initial_indent="#   ", subsequent_indent="#     ") + "\n"
