"""A table of measured layers in place of a network: ``layers.csv`` for ``cdmpp step`` and ``cdmpp plan``."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cdmpp.errors import UsageError

if TYPE_CHECKING:
    from cdmpp.plans.sources.table import TableSource

_STATES = {"sgd": 1.0, "adam": 2.0, "adamw": 2.0, "none": 0.0}
"""Optimizer -> bytes of its states for each byte of parameters."""

_OF_NETWORKS: Mapping[str, Any] = {
    "input": [], "model": None, "seq": None, "decoder_seq": None, "past": None, "boxes": None, "moe_imbalance": 1.0,
    "attention": "auto", "recompute": "none", "loss": "cross_entropy", "schedule": None, "no_fallback": False,
}  # fmt: skip
"""Options that say how a network is read -> what they are where nobody gave them."""


def is_table(options: argparse.Namespace) -> bool:
    """Return True if the network is a table of layers."""
    return str(options.network).endswith(".csv")


def table_source(options: argparse.Namespace) -> TableSource:
    """Read the table, of ``--device`` where it has several; ``UsageError`` for options that say what it says itself."""
    found = table_sources(options)
    if len(found) == 1 and "" in found:
        return found[""]
    name = getattr(options, "device", None)
    if name not in found:
        raise UsageError(
            f"{options.network} has layers on {', '.join(one or 'a device without a name' for one in found)}: name one "
            f"of them by --device, or several by --devices; given {name}"
        )
    return found[name]


def table_sources(options: argparse.Namespace) -> dict[str, TableSource]:
    """Read the table: name of each device -> its layers; one without a name where the table has no such column.

    ``UsageError`` for options that say what it says itself.
    """
    from cdmpp.plans.sources.table import TableSource
    from cdmpp.steps.from_layers import read_layers

    if given := [name for name, none in _OF_NETWORKS.items() if getattr(options, name, None) not in (None, none)]:
        option = given[0].replace("_", "-")
        raise UsageError(f"--{option} does not go with {options.network}: layers were measured, leave it out")
    if options.optimizer not in _STATES or options.clip_norm is not None or options.ema:
        raise UsageError(
            f"--optimizer {options.optimizer} with {options.network}: layers were measured, so only the states of "
            f"{', '.join(_STATES)} are known, without --clip-norm and --ema"
        )
    layers = read_layers(options.network)
    on = dict.fromkeys(one.device for one in layers)
    states = _STATES[options.optimizer]
    return {name: TableSource([one for one in layers if one.device == name], states) for name in on}


def batch_of(source: TableSource, options: argparse.Namespace) -> int | None:
    """Return ``--batch``, or the one number of examples at which layers were measured; None with ``--global-batch``."""
    if options.batch is not None or options.global_batch is not None:
        return None if options.batch is None else int(options.batch)
    if len(source.tables) > 1:
        known = ", ".join(map(str, source.tables))
        raise UsageError(f"--batch or --global-batch is missing: {options.network} has layers at {known} examples")
    return next(iter(source.tables))
