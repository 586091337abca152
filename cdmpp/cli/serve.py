"""``cdmpp serve``: predictions over HTTP."""

from __future__ import annotations

import argparse
from dataclasses import fields

from cdmpp.cli.output import say
from cdmpp.platform.limits import text
from cdmpp.serve.settings import ServeSettings

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


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """Declare the settings of a server."""
    for one in fields(ServeSettings):
        limits = ServeSettings.LIMITS.get(one.name, text)
        told = f"{_MEANINGS[one.name]} (default {one.default:g})" if one.name != "host" else _MEANINGS["host"]
        verb.add_argument(f"--{one.name.replace('_', '-')}", type=limits, default=one.default, help=told)
    verb.epilog = (
        "There is no password: listen on an address that others reach only behind a proxy that has one. No path and no "
        "code is taken from a client. The working folder's conf/ and models/ are read when it starts."
    )


def run(options: argparse.Namespace) -> None:
    """Serve until a signal ends it."""
    settings = ServeSettings(**{one.name: getattr(options, one.name) for one in fields(ServeSettings)})
    from cdmpp.serve.server import serve

    serve(settings, say)
