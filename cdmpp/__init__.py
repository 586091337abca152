"""cdmpp: predict how long a tensor program runs on a device before anyone runs it there."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from cdmpp.predict.predictor import Predictor

__version__ = "0.1.0"


def load(path_or_name: str | Path) -> Predictor:
    """A trained model: a folder made by training, or a shipped one by name. Needs no TVM."""
    from cdmpp.predict.model_folder import load as load_predictor

    return load_predictor(path_or_name)
