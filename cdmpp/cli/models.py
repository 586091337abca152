"""``cdmpp models``: the trained models that are here, with the figures of their cards."""

from __future__ import annotations

import argparse

from cdmpp.cli.output import console, print_json

_CAPTION = """MAPE and median error in %. "80 % is": what can be promised of intervals of that level,
"holds": how many test programs lay inside. The card.json in a model's folder says more"""
_FIGURES = {"mape": ".1f", "median_ape": ".1f", "spearman_within_task": ".3f", "top1_regret": ".3f"}


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """Declare the options of this verb."""
    verb.add_argument("--json", action="store_true", help="machine-readable")


def run(options: argparse.Namespace) -> int:
    """Print the table or the JSON."""
    from rich.table import Table

    from cdmpp.predict.catalogue import models

    rows = [entry.summary() for entry in models()]
    if options.json:
        print_json(rows)
        return 0
    table = Table(title="Models", caption=_CAPTION)
    table.add_column("model", overflow="fold", no_wrap=all(len(row["name"]) <= 24 for row in rows))
    table.add_column("figures of", overflow="fold")
    for heading in ("MAPE", "median", "Spearman", "top-1", "80 % is", "holds"):
        table.add_column(heading, justify="right", overflow="fold")
    table.add_column("made", overflow="fold")
    for row in rows:
        numbers = ["-" if row[key] is None else format(row[key], form) for key, form in _FIGURES.items()]
        promise, holds = row["interval_promised"].get("0.8"), row["interval_coverage"].get("0.8")
        numbers += ["-" if promise is None else f"{100 * promise:.0f}", "-" if holds is None else f"{holds:.1f}"]
        made = row["created"][:10] if row["usable"] else row["state"]
        others = [f"  {device}" for device in row["devices"] if device != row["name"]]
        table.add_row("\n".join([row["name"], *others]), row["figures_of"], *numbers, made)
    console().print(table)
    for row in rows:
        if row["state"] == "damaged":
            console().print(f"{row['name']} is damaged: {row['problem']}", markup=False, soft_wrap=True)
    return 0
