"""Parts of a command's answer, worked out by others: they are given the words of the command, and parse them again.

So nothing but texts is sent, and a part is worked out by the code that works it out here. Files that the words name
must be the same on all machines; a machine where they differ refuses.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from cdmpp.cli.inputs import named_files
from cdmpp.errors import CdmppError
from cdmpp.execute.executor import in_order, replies_of
from cdmpp.execute.work import FOREVER_S, Work
from cdmpp.platform.cores import cores
from cdmpp.platform.progress import shown

COMMAND = ("-m", "cdmpp.cli.part_worker")


def parts_of(options: argparse.Namespace, parts: Sequence[Any], title: str, progress: bool) -> list[Any]:
    """Return the answer to each part, in order, from the executor of this process.

    Args:
        options: of the command, whose verb has a function ``part(options, part)``.
        parts: what the parts are called, as JSON takes it.
        title: of the progress bar.
        progress: whether a bar is shown on standard error.

    Raises:
        CdmppError: of the first part without an answer.
    """
    from cdmpp.serve.wire import from_wire

    asked = {"op": "part", "words": options.words, "directory": os.getcwd(), "reads": read_digest(options)}
    requests = ({**asked, "part": part} for part in parts)
    found = []
    replies = in_order(replies_of(Work(COMMAND, FOREVER_S, cores()), requests, len(parts)))
    with closing(replies), closing(shown(replies, title, len(parts), progress)) as bar:
        for reply in bar:
            if "cause" in reply:
                raise CdmppError(str(reply.get("message", reply["cause"])))
            found.append(from_wire(reply["found"]))
    return found


def read_digest(options: argparse.Namespace) -> str:
    """Compute a digest of the files that options name, and of the models that are here."""
    from cdmpp.predict.catalogue import models

    digest = hashlib.sha256()
    folders = [one.folder for one in models()]
    for path in sorted({*named_files(options), *(file for folder in folders for file in folder.glob("*.json"))}):
        digest.update(json.dumps([str(path), hashlib.sha256(path.read_bytes()).hexdigest()]).encode())
    return digest.hexdigest()[:16]


def check_reads(options: argparse.Namespace, reads: str) -> None:
    """Raise ``CdmppError`` where ``read_digest`` of this machine is another one."""
    if read_digest(options) != reads:
        raise CdmppError(
            f"{os.uname().nodename}: the files that the command names, or the models in {Path.cwd()}, are not those of "
            "the machine that asks: work in a folder that all machines share"
        )
