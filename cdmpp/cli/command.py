"""The ``cdmpp`` command: imports the file of one verb alone, so that ``cdmpp devices`` needs no torch."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from cdmpp.cli.output import say
from cdmpp.cli.parser import Parser
from cdmpp.errors import CdmppError
from cdmpp.version import __version__

VERBS = {
    "devices": "list the devices, with the data and the models that are here for each",
    "probe": "time what no document states of this machine's core: clock, caches, latencies",
    "calibrate": "scale a model to this machine's CPU in three minutes: its own numbers and a dozen kernels",
    "models": "list the trained models that are here, with the figures of their cards",
    "predict": "predict latencies",
    "network": "predict the time of a whole network",
    "step": "predict the time of a training step: forward, backward, update, with memory",
    "compare": "predict the time of a whole network on several devices",
    "collective": "predict what an all-reduce, or another exchange between devices, takes",
    "trace": "read the traces of a training job on several ranks: replay it, ask what if, say why it is slow",
    "tune": "choose the programs of a network, by prediction alone or measured here; a MetaSchedule database",
    "data": "what data is here; or, `data codes`: compile its programs for code vectors",
}
# Their arguments are key=value settings, or --help.
CONFIGURED = {
    "train": "train a model on the records of a device",
    "evaluate": "models and baselines on the named splits",
    "evaluate-networks": "run whole networks on this machine, beside their predictions",
    "import": "bring a tuning database into the record format",
    "measure": "measure tensor programs on this machine",
    "finetune": "bring a model to a new device with few measured tasks",
}
_FILES = {"import": "import_data", "evaluate-networks": "evaluate_networks"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code: 0 done, 2 wrong input (one line on stderr), 130 stopped by Ctrl-C."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if given and given[0] in CONFIGURED:
            sys.argv = [f"cdmpp {given[0]}", *given[1:]]
            importlib.import_module(f"cdmpp.cli.{_FILES.get(given[0], given[0])}").main()
            return 0
        options = _parser(given[0] if given else "").parse_args(given)
        options.run(options)
        return 0
    except CdmppError as error:
        say(str(error))
        return 2
    except KeyboardInterrupt:
        say("stopped. What was derived so far is kept: the same command goes on from there")
        return 130
    except BrokenPipeError:  # the reader of a pipe, head for one, has seen enough
        sys.stderr.close()
        return 0


def _parser(asked: str) -> argparse.ArgumentParser:
    """With the arguments of the verb that is ``asked`` for; of the others only the names."""
    parser = Parser(prog="cdmpp", description="Predict how long a tensor program runs on a device.")
    parser.add_argument("--version", action="version", version=f"cdmpp {__version__}")
    verbs = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, text in VERBS.items():
        verb = verbs.add_parser(name, help=text, description=text)
        if name == asked:
            module = importlib.import_module(f"cdmpp.cli.{name}")
            module.add_arguments(verb)
            verb.set_defaults(run=module.run)
    for name, text in CONFIGURED.items():
        verbs.add_parser(name, help=f"{text}; key=value settings, --help lists them", add_help=False)
    return parser
