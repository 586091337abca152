"""Kept answer: the report on what was asked for before: the same question needs neither torch nor TVM."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from cdmpp import devices
from cdmpp.errors import CdmppError
from cdmpp.network.network_key import device_key, digest, name_key, surroundings, version_of
from cdmpp.platform.cache import cached_json, keep_text
from cdmpp.platform.paths import cache_root, conf_folder
from cdmpp.predict.catalogue import models, state_of
from cdmpp.report.report import Column, Report, Table, Total
from cdmpp.version import __version__

_SHOWN_ONLY = ("run", "words", "executor", "json", "rows", "csv", "parquet", "plot", "verbose", "quiet")
"""Options that change how an answer is shown or where it is worked out, and not the answer."""
_WHOLE = ("html", "timeline", "measure", "sweep")
"""Options of which the answer needs more than is kept."""


@dataclass(frozen=True)
class KeptAnswer:
    """The answer to one question, in the cache: known by all that it follows from."""

    path: Path

    @classmethod
    def of(cls, options: argparse.Namespace) -> KeptAnswer | None:
        """Return the place of an answer; None for a network or schedules that a name does not say, and for more parts.

        It follows from the options, the files that they name, the device, the models that are here, the versions of
        what reads networks, and the files of this package.
        """
        network, schedule = name_key(options.network), getattr(options, "schedule", None) or ""
        if network is None or schedule.startswith("database"):
            return None
        return cls._of(options, [network, surroundings(options.network)])

    @classmethod
    def of_operators(cls, options: argparse.Namespace) -> KeptAnswer | None:
        """Return the place of an answer on framework operators, which options name; None and the rest as of ``of``."""
        return cls._of(options, ["operators", [version_of(name) for name in ("torch", "numpy")]])

    @classmethod
    def _of(cls, options: argparse.Namespace, asked: list[Any]) -> KeptAnswer | None:
        if any(getattr(options, name, None) for name in _WHOLE):
            return None
        own = {name: repr(value) for name, value in vars(options).items() if name not in _SHOWN_ONLY}
        known = [[str(one.folder.absolute()), repr(state_of(one.folder))] for one in models()]
        if options.model is not None and Path(options.model).is_dir():
            known.append([str(Path(options.model).absolute()), repr(state_of(Path(options.model)))])
        key = digest([*asked, own, device_key(devices.get(options.device)), known, __version__, _files()])
        return cls(cache_root() / "answers" / f"{key}.json")

    def read(self) -> Report | None:
        """Return the report without charts and timeline; None where there is none, or the file is damaged."""
        with suppress(CdmppError, KeyError, TypeError, ValueError):
            return _restored(cached_json(self.path))
        return None

    def write(self, report: Report) -> None:
        """Keep a report, if JSON takes all of it."""
        own = replace(report, timeline=None, charts=())
        with suppress(TypeError):
            text = json.dumps({**asdict(own), "tables": [_plain(one) for one in own.tables]})
            if _restored(json.loads(text)) == own:
                keep_text(self.path, text)


def _files() -> list[list[Any]]:
    """Return name, size and time of change of each file of the package and of what it is configured by."""
    package = Path(__file__).resolve().parents[1]
    every = [one for root in (package, conf_folder()) for one in _inside(root)]
    return [
        [one.path, (state := one.stat()).st_size, state.st_mtime_ns] for one in sorted(every, key=lambda it: it.path)
    ]


def _inside(folder: Path | str) -> Iterator[os.DirEntry[str]]:
    """Files of these kinds in a folder and in those below it; ``Path.rglob`` takes three times as long."""
    for one in os.scandir(folder):
        if one.is_dir(follow_symlinks=False):
            yield from _inside(one.path)
        elif one.name.endswith(_SUFFIXES):
            yield one


_SUFFIXES = (".py", ".so", ".dylib", ".json", ".yaml", ".csv")


def _plain(table: Table) -> dict[str, Any]:
    return {**asdict(replace(table, rows=())), "rows": [dict(row) for row in table.rows]}


def _restored(stored: Mapping[str, Any]) -> Report:
    """Return the report that JSON holds, with tuples where it has them."""
    tables = (
        Table(**{**one, "columns": tuple(Column(**column) for column in one["columns"])}) for one in stored["tables"]
    )
    return Report(
        **{
            **stored, "totals": tuple(map(_total, stored["totals"])), "tables": tuple(tables), "charts": (),
            "warnings": tuple(stored["warnings"]), "code": tuple(stored["code"]),
        }
    )  # fmt: skip


def _total(stored: Mapping[str, Any]) -> Total:
    interval = stored["interval"]
    parts = tuple(map(_total, stored["parts"]))
    return Total(**{**stored, "interval": None if interval is None else tuple(interval), "parts": parts})
