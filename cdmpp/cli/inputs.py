"""Which files a command reads: those that its options name, and those that these name in turn."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from cdmpp.errors import CdmppError
from cdmpp.platform.paths import conf_folder

_NEVER_READ = frozenset({".csv", ".html", ".png"})
"""Endings of reports, which no folder is read for."""


def is_read(output: Path, options: argparse.Namespace, reads: Sequence[str | Path] = ()) -> bool:
    """Return True where ``output`` is there already and the command reads it.

    Args:
        output: a file that it would write.
        options: of the command; one that is ``output`` itself is no input.
        reads: files that it reads besides.
    """
    if not output.is_file():
        return False
    place = output.resolve()
    if place.parent.parent in (Path("conf").resolve(), conf_folder().resolve()):
        return True  # devices, links, clusters and models are described there
    for one in (*_named(options, output), *map(Path, reads)):
        if os.path.isdir(one):
            if place.suffix not in _NEVER_READ and place.is_relative_to(one.resolve()):
                return True
        elif os.path.isfile(one) and any(output.samefile(file) for file in (one, *_named_inside(one))):
            return True
    return False


def named_files(options: argparse.Namespace) -> list[Path]:
    """Return the files that are named and there, with those of folders that hold a model, and what these name."""
    found = list[Path]()
    for one in _named(options, Path()):
        if os.path.isfile(one):
            found += [one, *_named_inside(one)]
        elif os.path.isdir(one) and (one / "config.json").is_file():
            found += [path for path in one.iterdir() if path.is_file()]
    return found


def _named(options: argparse.Namespace, output: Path) -> Iterator[Path]:
    """All texts and paths that are given, with the files of lists, of ``FILE.py:FUNCTION`` and of ``hf:FOLDER``."""
    for name, value in vars(options).items():
        if name == "words":
            continue
        for one in value if isinstance(value, list | tuple) else [value]:
            if isinstance(one, Path) and one is not output:
                yield one
            elif isinstance(one, str):
                for part in (one, *(part.strip() for part in one.split(","))):
                    file, _, function = part.rpartition(":")
                    texts = [part, file if file.endswith(".py") else "", function if file == "hf" else ""]
                    yield from (Path(text).expanduser() for text in texts if text and "\0" not in text)


def _named_inside(file: Path) -> list[Path]:
    """The files that exist of those that an input names: the link of a worker, the weights of an ONNX file."""
    try:
        if file.suffix in (".yaml", ".yml"):
            from cdmpp.synchrony.worker_file import link_file

            found = link_file(file)
            named = [] if found is None else [found]
        elif file.suffix == ".onnx":
            from cdmpp.network.source.onnx_file import weight_files

            named = weight_files(file)
        else:
            named = []
    except CdmppError:
        return []  # whoever reads it says what is wrong
    return [one for one in named if one.is_file()]
