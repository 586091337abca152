"""Settings of models that are trained, by name: the same configs as those of ``cdmpp model train``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cdmpp.errors import DataError
from cdmpp.evaluation.baselines import BASELINES
from cdmpp.platform.paths import conf_folder
from cdmpp.recipes.compose import GROUPS, compose
from cdmpp.training.config import TrainConfig


def train_config(
    model: str, overrides: Sequence[str] = (), variants: Mapping[str, Sequence[str]] | None = None
) -> TrainConfig:
    """Compose settings for ``cdmpp``, a variant or a file of ``conf/experiment``; ``NAME:override``: one model's."""
    choices: dict[str, Sequence[str]] = {
        **{name: [f"model={name}"] for name in GROUPS["model"]},
        **{path.stem: [f"experiment={path.stem}"] for path in (conf_folder() / "experiment").glob("*.yaml")},
        **(variants or {}),
        "cdmpp": [],
    }
    if model not in choices:
        raise DataError(f"unknown model {model!r}; known: {', '.join((*BASELINES, *sorted(choices)))}")
    chosen = list(choices[model])
    for override in overrides:
        owner, _, rest = override.partition(":")
        if not rest or "=" in owner:
            chosen.append(override)
        elif owner == model:
            chosen.append(rest)
    composed = compose("config", chosen)
    return TrainConfig.from_dict({group: composed[group] for group in ("model", "loss", "trainer")})
