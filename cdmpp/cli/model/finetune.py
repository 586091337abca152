"""Fine-tune to a new device: ``cdmpp model finetune device=my-cpu budget=30``. All settings: ``conf/finetune.yaml``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console

from cdmpp.cli.hydra_entry import entry
from cdmpp.evaluation.metric_table import metric_table
from cdmpp.recipes.finetune_settings import FinetuneSettings
from cdmpp.recipes.finetuning import finetune


@entry("finetune")
def main(values: dict[str, Any]) -> None:
    """Get labels, fine-tune, judge."""
    settings = FinetuneSettings.from_dict(values)
    figures = finetune(settings)
    if figures is not None:
        _print_figures(settings, figures)


def _print_figures(settings: FinetuneSettings, figures: Mapping[str, Any]) -> None:
    """The error before and after, on the new device and on the sources."""
    console, name = Console(soft_wrap=True), settings.device.name
    moments = {"before": "before", "after": f"after {figures['budget']} tasks"}
    if "test" in figures["after"]:
        test = figures["after"]["test"]
        rows = {label: figures[key]["test"]["metrics"] for key, label in moments.items()}
        networks = figures["test_networks"]
        which = f"of {', '.join(networks)}, held out" if networks else "that were not chosen"
        title = f"{name}: test, {test['n_programs']:,} programs of {test['n_tasks']} tasks {which}"
        console.print(metric_table(title, rows, moments["after"]))
    else:
        console.print(f"{name}: no task was kept for a test (measure.test_tasks), so its error is not known")
    for source in figures["after"]["sources"]:
        rows = {label: figures[key]["sources"][source] for key, label in moments.items()}
        console.print(metric_table(f"{source}: validation, to see what was forgotten", rows, moments["after"]))
    if isinstance(figures["test_tasks_seen_on_sources"], str):
        console.print("the model started from may have seen the test tasks on other devices")
    folder = settings.run.out / "model"
    console.print(f"model: [bold]{folder}[/]   (cdmpp predict PROGRAMS --device {name} --model {folder})")
