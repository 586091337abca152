"""Fine-tune to a new device: ``cdmpp model finetune device=my-cpu budget=30``. All settings: ``conf/finetune.yaml``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cdmpp.cli.hydra_entry import entry
from cdmpp.recipes.finetune_settings import FinetuneSettings
from cdmpp.recipes.finetuning import finetune
from cdmpp.report.metric_table import metric_table
from cdmpp.report.report import Report, Table, Total
from cdmpp.report.text import print_report


@entry("finetune")
def main(values: dict[str, Any]) -> None:
    """Get labels, fine-tune, judge."""
    settings = FinetuneSettings.from_dict(values)
    figures = finetune(settings)
    if figures is not None:
        _print_figures(settings, figures)


def _print_figures(settings: FinetuneSettings, figures: Mapping[str, Any]) -> None:
    """Show the error before and after, on the new device and on the sources."""
    name, tables, notes = settings.device.name, list[Table](), list[Total]()
    moments = {"before": "before", "after": f"after {figures['budget']} tasks"}
    if "test" in figures["after"]:
        test = figures["after"]["test"]
        rows = {label: figures[key]["test"]["metrics"] for key, label in moments.items()}
        networks = figures["test_networks"]
        which = f"of {', '.join(networks)}, held out" if networks else "that were not chosen"
        title = f"{name}: test, {test['n_programs']:,} programs of {test['n_tasks']} tasks {which}"
        tables.append(metric_table(title, rows, moments["after"]))
    else:
        notes.append(Total("test", "no task was kept for a test (measure.test_tasks), so the error is not known"))
    for source in figures["after"]["sources"]:
        rows = {label: figures[key]["sources"][source] for key, label in moments.items()}
        tables.append(metric_table(f"{source}: validation, to see what was forgotten", rows, moments["after"]))
    if isinstance(figures["test_tasks_seen_on_sources"], str):
        notes.append(Total("start", "its model may have seen the test tasks on other devices"))
    folder = settings.run.out / "model"
    notes.append(Total("model", f"{folder}   (cdmpp predict PROGRAMS --device {name} --model {folder})"))
    print_report(Report(f"Fine-tuned to {name}", figures, tuple(notes), tuple(tables)))
