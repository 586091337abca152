"""Configs of small models of transformers as folders, which ``hf:`` names take."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def write_configs(root: Path, configs: Mapping[str, Mapping[str, Any]]) -> Path:
    """Write each config into a folder of its name below ``root``, which is returned."""
    for name, config in configs.items():
        (root / name).mkdir()
        (root / name / "config.json").write_text(json.dumps(config))
    return root
