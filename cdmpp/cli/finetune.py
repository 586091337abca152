"""Fine-tune to a new device: ``cdmpp finetune device=my-cpu budget=30``. All settings: ``conf/finetune.yaml``."""

from __future__ import annotations

from typing import Any

from cdmpp.cli.finetune_report import print_figures
from cdmpp.cli.hydra_entry import entry
from cdmpp.recipes.finetune_settings import FinetuneSettings
from cdmpp.recipes.finetuning import finetune
from cdmpp.training.processes import one_writer


@entry("finetune")
def main(values: dict[str, Any]) -> None:
    """Get labels, fine-tune, judge."""
    settings = FinetuneSettings.from_dict(values)
    with one_writer(settings.run.out):
        figures = finetune(settings)
        if figures is not None:
            print_figures(settings, figures)
