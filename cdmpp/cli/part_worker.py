"""Child process of verbs whose answers have parts: parses the words of the command, and answers one part a request."""

from __future__ import annotations

import os
from pathlib import Path

from cdmpp.cli.command import options_of
from cdmpp.cli.parts import check_reads
from cdmpp.cli.verbs import VERBS
from cdmpp.errors import CdmppError
from cdmpp.platform.workers import Reply, Request, serve


def part(request: Request) -> Reply:
    """Answer a ``part`` of the command ``words``."""
    import importlib

    from cdmpp.serve.wire import to_wire

    directory = Path(request["directory"])
    if not directory.is_dir():
        raise CdmppError(f"{os.uname().nodename} does not see {directory}: work in a folder that all machines share")
    os.chdir(directory)
    verb, options = options_of(request["words"])
    check_reads(options, request["reads"])
    return {"found": to_wire(importlib.import_module(VERBS[verb].module).part(options, request["part"]))}


if __name__ == "__main__":
    serve({"ready": lambda _: {}, "part": part})
