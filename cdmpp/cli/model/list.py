"""``cdmpp model list``: the trained models that are here, with the figures of their cards."""

from __future__ import annotations

import argparse

from cdmpp.cli.output import console, print_json, print_table

_CAPTION = """MAPE and median error in %. "80 % is": what can be promised of intervals of that level,
"holds": how many test programs lay inside. The card.json in a model's folder says more"""
_NUMBERS = ("MAPE", "median", "Spearman", "top-1", "80 % is", "holds")
_FIGURES = {"mape": ".1f", "median_ape": ".1f", "spearman_within_task": ".3f", "top1_regret": ".3f"}


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """Declare the options of this verb."""
    verb.add_argument("--json", action="store_true", help="machine-readable")


def run(options: argparse.Namespace) -> None:
    """Print the table or the JSON."""
    from cdmpp.predict.catalogue import models

    rows = [entry.summary() for entry in models()]
    if options.json:
        print_json(rows)
        return
    shown = []
    for row in rows:
        numbers = ["-" if row[key] is None else format(row[key], form) for key, form in _FIGURES.items()]
        promise, holds = row["interval_promised"].get("0.8"), row["interval_coverage"].get("0.8")
        numbers += ["-" if promise is None else f"{100 * promise:.0f}", "-" if holds is None else f"{holds:.1f}"]
        others = [f"  {device}" for device in row["devices"] if device != row["name"]]
        made = row["created"][:10] if row["usable"] else row["state"]
        shown.append(("\n".join([row["name"], *others]), row["figures_of"], *numbers, made))
    print_table("Models", ("model", "figures of", *_NUMBERS, "made"), shown, right=_NUMBERS, caption=_CAPTION)
    for row in rows:
        if row["state"] == "damaged":
            console().print(f"{row['name']} is damaged: {row['problem']}", markup=False, soft_wrap=True)
