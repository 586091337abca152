"""Measure tensor programs on this machine: ``python scripts/profile.py device=xeon-icelake out=datasets/mine``."""

from __future__ import annotations

from pathlib import Path

import hydra
from omegaconf import DictConfig, OmegaConf
from rich import print_json

from cdmpp.measure.collector import Collector, CollectSettings


@hydra.main(version_base="1.3", config_path="../conf", config_name="profile")
def main(config: DictConfig) -> None:
    zoo = OmegaConf.to_container(config.zoo, resolve=True)
    names = config.networks or list(zoo)
    settings = CollectSettings(
        device=config.device.name,
        target=OmegaConf.to_container(config.device.target, resolve=True),
        zoo={name: zoo[name] for name in names},
        schedules_per_task=config.schedules_per_task,
        budget=config.budget,
        time_limit_s=config.time_limit_min and 60.0 * config.time_limit_min,
        batch=config.batch,
        seed=config.seed,
        phase_file=config.phase_file and Path(config.phase_file),
    )
    print_json(data=Collector(settings, Path(config.out)).run())


if __name__ == "__main__":
    main()
