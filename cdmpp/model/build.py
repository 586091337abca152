"""Models by name. Each is a module with ``config``, ``fit_statistics(programs, rows)`` and ``forward(Batch)``."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cdmpp.ast.table import TARGET_KINDS
from cdmpp.data.batching import ProgramTensors
from cdmpp.errors import CdmppError
from cdmpp.model.config import CdmppConfig, EagerConfig, ModelConfig, ReferenceConfig
from cdmpp.model.eager import EagerModel
from cdmpp.model.reference import ReferenceModel, config_for
from cdmpp.model.regressor import CdmppModel

Model = CdmppModel | ReferenceModel | EagerModel


def build_model(config: ModelConfig, leaf_width: int, kernel_width: int, device_width: int) -> Model:
    """Build an untrained model of that configuration for these input widths."""
    if isinstance(config, CdmppConfig):
        return CdmppModel(config, leaf_width, kernel_width, device_width)
    if isinstance(config, EagerConfig):
        return EagerModel(config, device_width)
    return ReferenceModel(config, leaf_width, device_width)


def build_for(config: ModelConfig, programs: ProgramTensors, rows: np.ndarray) -> Model:
    """Build a model sized for the data, with its statistics fitted on the training ``rows`` (n,)."""
    if isinstance(config, ReferenceConfig):
        config = config_for(config, programs, rows)
    elif isinstance(config, CdmppConfig) and config.code:
        kinds = programs.coded_kinds(np.asarray(rows))
        if len(kinds) > 1:
            raise CdmppError(
                "CPU and GPU programs with code vectors in one training: train a model of each, or set model.code=false"
            )
        # Where there is nothing to learn from the inputs are left out.
        config = replace(config, code=bool(kinds), code_kind=TARGET_KINDS[kinds[0]] if kinds else config.code_kind)
    tables = programs.leaf_features, programs.kernel_features, programs.device_vectors
    model = build_model(config, *(table.shape[1] for table in tables)).to(programs.kinds.device)
    model.fit_statistics(programs, rows)
    return model
