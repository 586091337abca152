"""Settings that decide the shape of a model, as frozen dataclasses: the one place of the defaults. No torch here."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, TypeVar

from cdmpp.ast.layout import EAGER_FEATURES
from cdmpp.errors import CdmppError
from cdmpp.model.old_names import current_names
from cdmpp.platform.limits import Limits, check_choice, check_fields, fitting, fitting_values, hints_of, numbers

_Config = TypeVar("_Config")
LABEL_TRANSFORMS = ("log", "box-cox", "yeo-johnson")
CODE_KINDS = ("cpu", "gpu")
_WIDTHS = ("width", "heads", "feedforward", "hidden", "input_layer", "embedding")
_STACKS = ("embedded_layers", "device_layers", "regression_layers")
_LIMITS: dict[str, Limits] = {
    **dict.fromkeys((*_WIDTHS, *_STACKS), Limits(1, 8192)),
    "layers": Limits(0, 64),
    "dropout": numbers(0.0, 0.99),
    "clip": numbers(1e-3, 1e6),
    "bins": Limits(0, 256),
    "code_dropout": numbers(0.0, 1.0),
    "device_costs": Limits(1, 1024),
    "min_programs": Limits(1, 10**9),
    "leaf_counts": Limits(1, 10**5),
}
"""Far above anything trained, low enough that a slip of the finger cannot ask for a terabyte."""
_MAX_LEAF_COUNTS = 1024


@dataclass(frozen=True)
class CdmppConfig:
    """This is the default model: tokens of kernels and stores, transformer encoder, a time for each kernel."""

    LIMITS = _LIMITS
    name: str = "cdmpp"
    width: int = 128
    """Width of a token; even, and divisible by ``heads``."""
    layers: int = 2
    """Encoder blocks (pre-norm)."""
    heads: int = 4
    feedforward: int = 256
    """Hidden width inside a block."""
    dropout: float = 0.0
    """On residual branches and in the regressor."""
    hidden: int = 256
    """Width of the regressor."""
    label: str = "log"
    """Transform of the latency for the label terms of the loss: log, box-cox or yeo-johnson."""
    prior: bool = True
    """Predict the difference to the analytic time of the kernels instead of the latency itself."""
    clip: float = 6.0
    """Standardised features are cut at +-clip, so that an unseen size cannot run away."""
    bins: int = 8
    """Quantile bins that every number of a kernel is also given as, see ``QuantileBins``; 0: none."""
    code: bool = True
    """Read code vectors (``cdmpp.machine_code``) where programs have them, and start from the time they tell."""
    code_dropout: float = 0.2
    """Share of programs whose code vector is hidden while training: the model must do without, too."""
    code_kind: str = "cpu"
    """Kind of devices that the code vectors are of, ``cpu`` or ``gpu``; filled in from the training data."""
    device_costs: int = 16
    """Devices at most that have costs of their own in the code prior, next to the shared ones."""

    def __post_init__(self) -> None:
        _check_ranges(self)
        check_choice("model.code_kind", self.code_kind, CODE_KINDS)
        if self.width % self.heads or self.width % 2:
            raise CdmppError(f"model.width={self.width} must be even and divisible by model.heads={self.heads}")


@dataclass(frozen=True)
class ReferenceConfig:
    """This is the published architecture as found in trial 1575 of its public code."""

    LIMITS = _LIMITS
    name: str = "reference"
    layers: int = 11
    heads: int = 4
    feedforward: int = 2048
    dropout: float = 0.1
    input_layer: int = 716
    """First layer of the network of each leaf count."""
    embedded_layers: tuple[int, ...] = (985, 985, 985)
    embedding: int = 69
    """Program and device embeddings are added."""
    device_layers: tuple[int, ...] = (128, 128, 128)
    regression_layers: tuple[int, ...] = (930, 930, 930)
    label: str = "box-cox"
    min_programs: int = 32
    """Leaf counts with fewer training programs share the nearest count's network."""
    leaf_counts: tuple[int, ...] = ()
    """Filled in from the training data."""
    use_device: bool = False
    """Filled in: True with two or more training devices."""

    def __post_init__(self) -> None:
        _check_ranges(self)
        if self.layers < 1:
            raise CdmppError(f"model.layers is {self.layers}; the reference model needs one")
        if not all(getattr(self, name) for name in _STACKS):
            raise CdmppError(f"model.{', '.join(_STACKS)} need an entry each")
        if len(self.leaf_counts) > _MAX_LEAF_COUNTS or list(self.leaf_counts) != sorted(set(self.leaf_counts)):
            raise CdmppError(f"model.leaf_counts must be at most {_MAX_LEAF_COUNTS} rising numbers")


@dataclass(frozen=True)
class EagerConfig:
    """This is the model of framework operators: a perceptron on top of a fitted roofline."""

    LIMITS = _LIMITS
    name: str = EAGER_FEATURES
    layers: int = 3
    hidden: int = 256
    dropout: float = 0.0
    bins: int = 16
    """Quantile bins that every number is also given as."""
    clip: float = 6.0
    label: str = "log"
    device_costs: int = 32
    """Devices at most that have a roofline of their own in the prior, next to the shared one."""

    def __post_init__(self) -> None:
        _check_ranges(self)
        if self.layers < 1:
            raise CdmppError(f"model.layers is {self.layers}; the model of framework operators needs one")


ModelConfig = CdmppConfig | ReferenceConfig | EagerConfig
MODELS: dict[str, type[CdmppConfig] | type[ReferenceConfig] | type[EagerConfig]] = {
    "cdmpp": CdmppConfig,
    "reference": ReferenceConfig,
    EAGER_FEATURES: EagerConfig,
}


def model_config(values: Mapping[str, Any]) -> ModelConfig:
    """Read plain settings; ``name`` chooses among ``MODELS``. Errors as ``config_from_dict``."""
    name = fitting("model", values, dict).get("name", "cdmpp")
    if not isinstance(name, str) or name not in MODELS:
        raise CdmppError(f"unknown model {name!r}; one of {', '.join(MODELS)}")
    return config_from_dict(MODELS[name], current_names(values), "model")


def config_from_dict(kind: type[_Config], values: Mapping[str, Any], group: str) -> _Config:
    """Make a frozen dataclass of plain values of the ``group``; ``CdmppError``: an unknown or missing key, a type."""
    hints = hints_of(kind)
    fitting(group, values, dict)
    check_keys(values, hints, f"{group}.")
    every = fields(kind)  # type: ignore[arg-type]
    needed = (one.name for one in every if one.default is MISSING and one.default_factory is MISSING)
    if missing := [name for name in needed if name not in values]:
        raise CdmppError(f"{group}.{missing[0]} is missing: give it a value")
    return kind(**fitting_values(values, hints, kind.LIMITS, f"{group}."))  # type: ignore[attr-defined]


def check_keys(values: Mapping[str, Any], allowed: Collection[str], prefix: str = "") -> None:
    """Raise a ``CdmppError`` for the first key that nothing reads; ``prefix`` is put before it."""
    for key in values:
        if key not in allowed:
            near = difflib.get_close_matches(str(key), allowed, n=2)
            hint = f"did you mean {' or '.join(near)}?" if near else f"allowed: {', '.join(sorted(allowed))}"
            raise CdmppError(f"unknown setting {prefix}{key}; {hint}")


def _check_ranges(config: ModelConfig) -> None:
    """Checked before a tensor is allocated: each number, or entry of a tuple, and the label."""
    check_fields(config, "model.")
    check_choice("model.label", config.label, LABEL_TRANSFORMS)
