"""``cdmpp serve``: predictions over HTTP."""

from __future__ import annotations

import argparse
import os
from dataclasses import fields

from cdmpp.cli.output import say
from cdmpp.platform.limits import path, text
from cdmpp.serve.settings import ServeSettings
from cdmpp.serve.token import VARIABLE, token_of

_MEANINGS = {
    "host": "IP address to listen on, or localhost; 0.0.0.0 is every address of this machine",
    "port": "port; 0: a free one, which is said",
    "processes": "processes that answer programs, networks and steps of --runtime torch",
    "plan_processes": "processes that answer what takes long: plans, and runtimes that compile",
    "body_mb": "most MB (1e6 bytes) of a request, else status 413",
    "body_s": "most seconds in which a request arrives, else 408",
    "time_s": "most seconds of a request, waiting included, else 504",
    "plan_time_s": "the same of what takes long",
    "waiting": "most requests at a time, else 503",
    "memory_gb": "most memory (1e9 bytes) that a process takes beside that of its libraries",
    "kept_mb": "MB of answers that are kept for the same question",
    "drain_s": "seconds that running requests have to end after SIGTERM",
}
_OF_FILES = {
    "ssl_certfile": "PEM file of certificates, the server's own first: connections are TLS",
    "ssl_keyfile": "PEM file of its private key, without a passphrase (default: it stands in --ssl-certfile)",
}


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """Declare the settings of a server."""
    for one in fields(ServeSettings):
        if one.name in _OF_FILES or one.name == "token":
            continue
        limits = ServeSettings.LIMITS.get(one.name, text)
        told = f"{_MEANINGS[one.name]} (default {one.default:g})" if one.name != "host" else _MEANINGS["host"]
        verb.add_argument(f"--{one.name.replace('_', '-')}", type=limits, default=one.default, help=told)
    token = f"the line of this file is asked of everybody (default: the variable {VARIABLE}; without both nothing is)"
    verb.add_argument("--token-file", type=path, metavar="FILE", help=token)
    for name, told in _OF_FILES.items():
        verb.add_argument(f"--{name.replace('_', '-')}", type=path, metavar="FILE", help=told)
    verb.epilog = (
        "Without a token everybody who reaches the address may ask, and without TLS all on the way can read it. No "
        "path and no code is taken from a client. The working folder's conf/ and models/ are read when it starts."
    )


def run(options: argparse.Namespace) -> None:
    """Serve until a signal ends it."""
    given = {one.name: getattr(options, one.name) for one in fields(ServeSettings) if one.name != "token"}
    settings = ServeSettings(**given, token=token_of(options.token_file))
    os.environ.pop(VARIABLE, None)  # processes that answer need not know it
    from cdmpp.serve.server import serve

    serve(settings, say)
