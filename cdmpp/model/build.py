"""Models by name. Each is a module with ``config``, ``fit_statistics(programs, rows)`` and ``forward(Batch)``."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np

from cdmpp.data.batching import ProgramTensors
from cdmpp.errors import CdmppError
from cdmpp.model.reference import ReferenceConfig, ReferenceModel
from cdmpp.model.regressor import CdmppConfig, CdmppModel

ModelConfig = CdmppConfig | ReferenceConfig
Model = CdmppModel | ReferenceModel
CONFIGS: dict[str, type] = {"cdmpp": CdmppConfig, "reference": ReferenceConfig}


def config_from_dict(values: Mapping[str, Any], kind: type | None = None, where: str = "model") -> Any:
    """A frozen dataclass from plain values; lists become tuples.

    Args:
        values: plain settings; without ``kind``, ``values["name"]`` chooses among ``CONFIGS``.

    Raises:
        CdmppError: unknown model, a key that nothing reads, or a value of another type.
    """
    if kind is None:
        name = values.get("name", "cdmpp")
        if not isinstance(name, str) or name not in CONFIGS:
            raise CdmppError(f"unknown model {name!r}; one of {', '.join(CONFIGS)}")
        kind = CONFIGS[name]
    defaults = {field.name: field for field in fields(kind)}
    clean = {}
    for key, value in values.items():
        if key not in defaults:
            near = difflib.get_close_matches(key, defaults, n=2) or sorted(defaults)
            raise CdmppError(f"unknown setting {where}.{key}; did you mean {' or '.join(near)}?")
        clean[key] = _converted(f"{where}.{key}", value, defaults[key].default)
    return kind(**clean)


def _converted(name: str, value: Any, default: Any) -> Any:
    if isinstance(default, tuple):
        if not isinstance(value, list | tuple) or not all(type(item) is int for item in value):
            raise CdmppError(f"{name} must be a list of whole numbers, not {value!r}")
        return tuple(value)
    if isinstance(default, float) and type(value) is int and abs(value) < 2**53:
        return float(value)
    if isinstance(default, bool | int | float | str) and type(value) is not type(default):
        raise CdmppError(f"{name} must be a {type(default).__name__}, not {value!r}")
    return value


def build_model(config: ModelConfig, leaf_width: int, kernel_width: int, device_width: int) -> Model:
    """An untrained model of that configuration for these input widths."""
    kind = CdmppModel if isinstance(config, CdmppConfig) else ReferenceModel
    return kind(config, leaf_width, kernel_width, device_width)  # type: ignore[arg-type]


def build_for(config: ModelConfig, programs: ProgramTensors, rows: np.ndarray) -> Model:
    """A model sized for the data, with its statistics fitted on the training ``rows`` (n,)."""
    if isinstance(config, ReferenceConfig):
        config = config.for_data(programs, rows)
    elif config.code and not programs.any_codes(np.asarray(rows)):
        config = replace(config, code=False)  # nothing to learn from: leave the inputs out
    model = build_model(
        config, programs.leaf_features.shape[1], programs.kernel_features.shape[1], programs.device_vectors.shape[1]
    ).to(programs.kinds.device)
    model.fit_statistics(programs, rows)
    return model
