"""Import a MetaSchedule tuning database: ``import_data.py path=DIR device=a100 network=resnet34``."""

from __future__ import annotations

import sys
from pathlib import Path

import hydra
from omegaconf import DictConfig

from cdmpp.data.importers import import_database
from cdmpp.errors import CdmppError


@hydra.main(version_base="1.3", config_path="../conf", config_name="import_data")
def main(config: DictConfig) -> None:
    try:
        report = import_database(
            Path(config.path), Path(config.out), config.device.name, config.network, config.source, config.on_bad
        )
    except CdmppError as error:
        sys.exit(f"error: {error}")
    print(f"{config.out}: {report}")


if __name__ == "__main__":
    main()
