"""Combinations: the strategies that a plan has at the same time, by words such as ``data+filter``."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cdmpp.devices.sheet import nearest
from cdmpp.errors import UsageError
from cdmpp.plans.plan import Plan
from cdmpp.plans.strategies import DEFAULT_STRATEGY, STRATEGIES
from cdmpp.plans.strategies.parameter_server import ParameterServer
from cdmpp.steps.registry import to_dict
from cdmpp.steps.strategy import OperatorStrategy, Strategy

_WORDS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "data": ("ddp", {}),
    "zero1": ("zero", {"stage": 1}),
    "zero2": ("zero", {"stage": 2}),
    "zero3": ("fsdp", {}),
    "dp": ("ddp", {}),
    "pp": ("pipeline", {}),
    "tp": ("tensor", {}),
    "sp": ("tensor", {"sequence_parallel": True}),
    "cp": ("context", {}),
    "ep": ("expert", {}),
}
"""Word -> strategy and settings, next to the names of the strategies themselves."""
_REPLICAS = ("data", "zero1", "zero2", "fsdp", "hsdp")
_OF_CONVOLUTIONS = ("spatial", "filter", "channel")
_OF_TRANSFORMERS = {"tensor": "tp", "sp": "tp", "context": "cp", "expert": "ep"}
"""Word -> its degree."""
_DIVIDING = ("sp",)
"""Words of strategies that divide the model, and that are more than a name."""
_DEGREES = ("dp", "pp", "tp", "cp", "ep")
"""Words that name a degree."""


@dataclass(frozen=True)
class Combination:
    """Strategies that share one job. Each of their degrees exceeds 1."""

    name: str
    """Words joined by ``+``."""
    strategy: Strategy
    """How replicas keep their parameters alike."""
    model_parallel: tuple[Strategy, ...] = ()
    """Strategies that divide the model."""
    degrees: tuple[str, ...] = ("dp_replicate",)
    """Degrees that exceed 1."""

    @property
    def operators(self) -> tuple[OperatorStrategy, ...]:
        """Return the strategies that divide operators."""
        return tuple(one for one in self.model_parallel if isinstance(one, OperatorStrategy))

    @property
    def replicating(self) -> tuple[str, ...]:
        """Return the degrees along which ranks share parameters."""
        made = (self.strategy, *self.model_parallel)
        return tuple(name for one in made if one.replicates for name in one.degrees)


def combination(name: str) -> Combination:
    """Read ``data+filter``; ``UsageError`` for an unknown word, or words that exclude each other."""
    made = [_strategy(word, name) for word in name.split("+")]
    if any(isinstance(one, ParameterServer) for one in made):
        raise UsageError(
            f"--strategies {name}: parameter servers have no closed form, by which plans are ranked: leave out ps, "
            "and ask `cdmpp step --strategy ps`"
        )
    replicas = [one for one in made if not one.divides_model]
    dividing = tuple(one for one in made if one.divides_model)
    if len(replicas) > 1:
        raise UsageError(
            f"--strategies {name}: {' and '.join(one.name for one in replicas)} both say how replicas keep parameters "
            "alike: name one of them (hsdp shards in groups and replicates the groups)"
        )
    owners = [degree for one in made for degree in one.degrees]
    if len(set(owners)) < len(owners):
        raise UsageError(f"--strategies {name} names a strategy twice: each once")
    return Combination(name, replicas[0] if replicas else STRATEGIES[DEFAULT_STRATEGY](), dividing, tuple(owners))


def asked(given: str) -> tuple[str, ...]:
    """Read ``--strategies``: alternatives joined by commas, hybrids by ``*``.

    ``fsdp*tp`` is ``fsdp``, ``tp`` and ``fsdp+tp``. Where words stand by themselves and one of them is that of a
    degree, as in ``ep,tp,pp,fsdp``, they are those that may be used: all their hybrids are meant.

    Returns:
        Names for ``combinations``. ``UsageError`` as of ``combination``.
    """
    names = [one for one in given.replace(" ", "").split(",") if one]
    if len(names) > 1 and any(one in _DEGREES for one in names) and not any({*one} & {*"+*"} for one in names):
        names = ["*".join(names)]
    return tuple(dict.fromkeys(one for name in names for one in _hybrids(name)))


def _hybrids(name: str) -> Iterator[str]:
    """Yield all choices of words joined by ``*``, in their order, but those that exclude each other."""
    parts = name.split("*")
    made = {part: [_strategy(word, name) for word in part.split("+")] for part in parts}
    for count in range(1, len(parts) + 1):
        for chosen in itertools.combinations(parts, count):
            own = [one for part in chosen for one in made[part]]
            degrees = [degree for one in own for degree in one.degrees]
            goes = sum(not one.divides_model for one in own) < 2 and len({*degrees}) == len(degrees)
            if goes or len(parts) == 1:
                yield "+".join(chosen)


def combinations(names: Sequence[str]) -> tuple[Combination, ...]:
    """Read several; one that is named twice, such as ``data`` and ``ddp``, is kept once, by its first name."""
    found = dict[tuple[Strategy, frozenset[Strategy], frozenset[str]], Combination]()
    for one in map(combination, names):
        found.setdefault((one.strategy, frozenset(one.model_parallel), frozenset(one.degrees)), one)
    return tuple(found.values())


def combination_of(plan: Plan) -> str:
    """Return the words of a plan's strategies, such as ``data+filter``."""
    is_told = plan.degrees.size(*plan.strategy.degrees) > 1 or not plan.model_parallel
    words = [_word(plan.strategy, _REPLICAS)] if is_told else []
    return "+".join([*words, *(_word(one, _DIVIDING) for one in plan.model_parallel)])


def _word(strategy: Strategy, among: Sequence[str]) -> str:
    """Return the first word that means a strategy with its settings, else its name."""
    given = to_dict(strategy)
    known = {word: _WORDS.get(word, (word, {})) for word in among}
    return next(
        (word for word, (name, own) in known.items() if {"name": name, **own}.items() <= given.items()), strategy.name
    )


def usual(limits: Mapping[str, int]) -> tuple[str, ...]:
    """List what suits a network: splits of convolutions, layers, attention and experts where it has some, a pipeline.

    ``limits``: degree -> the largest one that the network allows, as ``StepSource.limits`` says.
    """
    can = {*words()}
    divided = [name for name in _OF_CONVOLUTIONS if name in can and limits.get(name, 1) > 1]
    piped = ["pipeline"] if "pipeline" in can and limits.get("pp", 1) > 1 else []
    replicas = [name for name in _REPLICAS if name in can]
    own = [name for name, degree in _OF_TRANSFORMERS.items() if name in can and limits.get(degree, 1) > 1]
    return tuple(
        [*replicas, *piped, *(f"{one}+{pipe}" for one in replicas for pipe in piped if one != "zero2")]
        + [*divided, *(f"data+{one}" for one in divided)]
        + [f"{one}+{name}" for name in own for one in ("data", "fsdp")]
        + [f"fsdp+{name}+{pipe}" for name in own for pipe in piped]
    )


def words() -> Iterator[str]:
    """List all words that a combination may have."""
    names = {kind.name for kind in STRATEGIES}
    yield from (word for word, (name, _) in _WORDS.items() if name in names)
    yield from (kind.name for kind in STRATEGIES)


def _strategy(word: str, asked: str) -> Strategy:
    known: Collection[str] = tuple(words())
    if word not in known:
        where = "" if word == asked else f" in {asked}"
        raise UsageError(f"unknown strategy {word!r}{where}; {nearest(word, known)}")
    name, settings = _WORDS.get(word, (word, {}))
    return STRATEGIES[name](**settings)
