"""``cdmpp cache``: what is kept for later questions, how large it is, and how it is emptied."""

from __future__ import annotations

import argparse

from cdmpp.cli.output import add_output_arguments, check_output, show
from cdmpp.errors import UsageError
from cdmpp.platform.cache import KINDS, LIMIT
from cdmpp.platform.shipped import KNOWN

_ALL = "all"


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """Declare the options of this verb."""
    verb.add_argument("--size", action="store_true", help="print the bytes of all of it, and nothing else")
    kinds = (_ALL, *KINDS, "other")
    told = f"delete all, or one kind: {', '.join(kinds[1:])}. Everything is made again when it is missed"
    verb.add_argument("--clear", nargs="?", const=_ALL, choices=kinds, metavar="KIND", help=told)
    add_output_arguments(verb, "csv", "html")
    verb.epilog = (
        f"${LIMIT} is its limit, such as 500MB (default 10GB): what was not used for longest goes first. "
        f"${KNOWN} set to nothing: no shipped network is used."
    )


def run(options: argparse.Namespace) -> None:
    """Show the cache, or empty it."""
    check_output(options)
    if options.size and options.clear:
        raise UsageError("--size shows and --clear deletes: give one of them")
    from cdmpp.platform.cache import clear, entries, limit_bytes
    from cdmpp.platform.shipped import shipped_networks
    from cdmpp.report.cache import cache_report, cleared_report

    if options.clear:
        show({"": cleared_report(options.clear, *clear(None if options.clear == _ALL else options.clear))}, options)
    elif options.size and not options.json:
        print(sum(one.bytes for one in entries()))
    else:
        show({"": cache_report(entries(), limit_bytes(), shipped_networks())}, options)
