"""Fine-tune to a new device: ``python scripts/finetune.py device=my-cpu budget=30``. See ``conf/finetune.yaml``."""

from __future__ import annotations

from typing import Any

from benchmarks.publish.sampling_curve import sampling_curve
from cdmpp.cli.hydra_entry import entry
from cdmpp.recipes.finetune_settings import FinetuneSettings
from cdmpp.recipes.finetuning import finetune
from cdmpp.training.processes import one_writer


@entry("finetune")
def main(values: dict[str, Any]) -> None:
    settings = FinetuneSettings.from_dict(values)
    with one_writer(settings.out):
        if settings.curve:
            sampling_curve(settings)
        else:
            finetune(settings)
