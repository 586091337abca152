"""Fine-tune to a new device: ``python scripts/finetune.py device=my-cpu budget=30``. See ``conf/finetune.yaml``."""

from __future__ import annotations

from typing import Any

from cdmpp.entry import entry  # isort: skip  (first: it puts the module path right)
from cdmpp.evaluation.finetune_settings import FinetuneSettings
from cdmpp.evaluation.finetuning import finetune
from cdmpp.evaluation.sampling_curve import sampling_curve
from cdmpp.training.processes import one_writer


@entry("finetune")
def main(values: dict[str, Any]) -> None:
    settings = FinetuneSettings.from_dict(values)
    with one_writer(settings.out):
        if settings.curve:
            sampling_curve(settings)
        else:
            finetune(settings)


if __name__ == "__main__":
    main()
