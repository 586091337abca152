"""The ``cdmpp`` command: imports the file of the one verb that runs, so that ``cdmpp devices`` needs no torch."""

from __future__ import annotations

import argparse
import gc
import importlib
import platform
import shlex
import sys
from collections.abc import Sequence

from cdmpp.cli import old_names
from cdmpp.cli.absent_tvm import absent_tvm_named
from cdmpp.cli.logs import log, logs_to_stderr, set_level
from cdmpp.cli.parser import Parser
from cdmpp.cli.verbs import GROUPS, PURPOSES, VERBS, Verb
from cdmpp.errors import CdmppError
from cdmpp.execute.executor import LOCAL, executing
from cdmpp.platform.extension import extension
from cdmpp.version import __version__


def main(arguments: Sequence[str] | None = None, script: str | None = None) -> int:
    """Run one command.

    Args:
        arguments: words behind ``cdmpp``; None: those of this process.
        script: path of the script that the words were given to, which messages then name in place of the verb.

    Returns:
        The exit code: 0 done, 2 wrong input (one line on standard error), 130 stopped by Ctrl-C.
    """
    gc.set_threshold(50_000, 20, 100)  # imports make objects by the hundred thousand and hardly a cycle
    with logs_to_stderr():
        try:
            words = list(sys.argv[1:] if arguments is None else arguments)
            verb, options = options_of(words, script)
            set_level(options.verbose, options.quiet)
            log.debug("cdmpp %s, Python %s: %s", __version__, platform.python_version(), " ".join(words))
            for library in VERBS[verb].libraries:  # or it would be missed only when all is read
                extension(library)
            with executing(getattr(options, "executor", LOCAL)), absent_tvm_named():
                options.run(options)
            return 0
        except CdmppError as error:
            log.error("%s", error)
            log.debug("it was raised here", exc_info=True)
            return 2
        except KeyboardInterrupt:
            log.error("stopped. What was derived so far is kept: the same command goes on from there")
            return 130
        except BrokenPipeError:  # the reader of a pipe, head for one, has seen enough
            sys.stderr.close()
            return 0


def options_of(words: Sequence[str], script: str | None = None) -> tuple[str, argparse.Namespace]:
    """Parse the words behind ``cdmpp``: the verb and its options, among them ``words`` themselves."""
    words = old_names.verb_of(list(words))
    options = _parser(verb := _verb_of(words), script).parse_args(words)
    options.words = list(words)
    return verb, options


def _verb_of(words: Sequence[str]) -> str:
    """The verb that ``words`` name; empty where they name none."""
    named = [word for word in words if not word.startswith("-")]
    return next((name for n in (2, 1) if (name := " ".join(named[:n])) in VERBS), "")


def _parser(asked: str, script: str | None = None) -> Parser:
    """The parser with the options of the verb that is ``asked`` for; of the other verbs it knows only the names."""
    parser = Parser(
        prog="cdmpp",
        usage="cdmpp COMMAND ...",
        description="Predict how long tensor programs, networks and training steps run on a device.",
        epilog=_overview(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"cdmpp {__version__}")
    _add_verbosity(parser, False)
    places = {"": parser.add_subparsers(prog="cdmpp", required=True, metavar="COMMAND", help=argparse.SUPPRESS)}
    for group, text in GROUPS.items():
        place = places[""].add_parser(group, description=text)
        places[group] = place.add_subparsers(required=True, metavar="COMMAND", title="commands")
    for verb in VERBS.values():
        group, _, name = verb.name.rpartition(" ")
        added = places[group].add_parser(name, help=verb.text, description=f"{verb.text[0].upper()}{verb.text[1:]}.")
        _add_verbosity(added, argparse.SUPPRESS)
        if verb.name == asked:
            _declare(verb, added, script)
    return parser


def _declare(verb: Verb, parser: Parser, script: str | None) -> None:
    module = importlib.import_module(verb.module)
    if verb.has_settings:
        parser.prog = f"python {shlex.quote(script)}" if script else parser.prog
        parser.entry = module.main
        parser.set_defaults(run=lambda options: module.main.run(options.settings, parser.prog))
    else:
        module.add_arguments(parser)
        parser.set_defaults(run=module.run)


def _add_verbosity(parser: argparse.ArgumentParser, default: bool | str) -> None:
    """Declare them before and behind the verb: ``default`` of the latter must not hide the former."""
    which = parser.add_mutually_exclusive_group()
    tell = "log more, with the place where an error was raised"
    which.add_argument("-v", "--verbose", action="store_true", default=default, help=tell)
    which.add_argument("-q", "--quiet", action="store_true", default=default, help="log errors only, no warnings")


def _overview() -> str:
    """The verbs by purpose."""
    lines = []
    for purpose, verbs in PURPOSES.items():
        lines += [f"{purpose}:", *(f"  {verb.name:<25}{verb.text}" for verb in verbs), ""]
    form = "An option is written --key value or key=value; `cdmpp COMMAND --help` lists those of a command."
    return "\n".join([*lines, form])
