"""``cdmpp model train --help`` and its like: every setting of the verb with its default and meaning, and its groups."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf

from cdmpp.errors import CdmppError
from cdmpp.platform.paths import conf_folder

_FIELD = re.compile(r'^    (\w+): [^\n]*\n(?:    """(.*?)"""\n)?', re.MULTILINE | re.DOTALL)
"""Name and docstring of a field in the source of a dataclass."""


def settings_help(command: str, config: str) -> str:
    """Return the usage, the settings file ``conf/<config>.yaml``, and the dataclasses and groups that it builds on."""
    path = conf_folder() / f"{config}.yaml"
    try:
        settings = path.read_text(encoding="utf-8")
    except OSError as error:
        raise CdmppError(f"cannot read the settings of {command}: {error}. The installation is incomplete") from error
    lines = re.sub(r"^hydra:\n(?:[ \n].*\n?)*", "", settings, flags=re.MULTILINE).splitlines()
    shown = "\n".join(line for line in lines if "override hydra/" not in line and "_self_" not in line)
    parts = [part for entry in yaml.safe_load(settings)["defaults"] for part in _parts(path.parent, entry)]
    return f"""usage: {command} [KEY=VALUE ...]

A key of a group is written GROUP.KEY=VALUE, a list KEY=[A,B]; --KEY VALUE means the same;
--cfg job shows the settings that a command would use, -v logs more, -q errors only.

{shown.strip()}

{"".join(parts).rstrip()}"""


def _parts(conf: Path, entry: str | dict[str, str | None]) -> Iterator[str]:
    """The settings that an entry of a defaults list brings: the choices of a group, the keys of a dataclass."""
    if isinstance(entry, str):
        yield from _fields(f"{entry}.yaml", "")
        return
    for name, option in entry.items():
        if name.startswith("override "):
            continue
        if (group := name.partition("@")[0]) == "device":
            yield "device=NAME: a device of `cdmpp devices`\n\n"
            continue
        files = {str(path.relative_to(conf / group).with_suffix("")) for path in (conf / group).rglob("*.yaml")}
        offered = {str(name).removesuffix(".yaml") for name in ConfigStore.instance().repo.get(group, {})}
        yield _wrapped(f"{group}={'|'.join(sorted(files | offered))}", "") + "\n"
        yield from _fields(f"{group}/{option}.yaml", f"{group}.")


def _fields(config: str, prefix: str) -> Iterator[str]:
    """Key, default and meaning of the dataclass that Hydra was offered under that name; nothing where it was not."""
    group, _, name = config.rpartition("/")
    repo = ConfigStore.instance().repo
    if (stored := (repo.get(group, {}) if group else repo).get(name)) is None:
        return
    kind: Any = OmegaConf.get_type(stored.node)
    values: Any = OmegaConf.to_container(stored.node)
    for key, meaning in re.findall(_FIELD, inspect.getsource(kind)):
        default = "null" if values[key] is None else str(values[key])
        yield f"  {prefix}{key}={default}\n" + _wrapped(meaning, "      ")
    yield "\n"


def _wrapped(text: str, indent: str) -> str:
    lines = textwrap.fill(" ".join(text.split()), 120, initial_indent=indent, subsequent_indent=indent)
    return f"{lines}\n" if text else ""
