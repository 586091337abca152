"""Old verbs, options, settings and values of the command line: each is understood for one version, with a warning.

A renamed option needs one line here and nothing else: ``Parser`` reads it and ``--help`` does not show it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from cdmpp.cli.logs import log

VERBS: Mapping[str, str] = {
    "calibrate": "model calibrate",
    "evaluate": "model evaluate",
    "evaluate-networks": "model evaluate-networks",
    "finetune": "model finetune",
    "import": "data import",
    "measure": "data measure",
    "models": "model list",
    "probe": "data probe",
    "train": "model train",
}
"""Old verb -> verb."""
SEARCHES = ("--optimise", "--optimize")
"""Options that made of ``cdmpp step`` what is ``cdmpp plan``."""
OPTIONS: Mapping[str, str] = {
    "chunks": "ring-steps",
    "micro-steps": "accumulate-steps",
    "optimise": "optimize",
    "scheme": "strategy",
    "slow": "straggler",
    "strict": "no-fallback",
    "trace": "timeline",
}
"""Old name of an option -> its name, both without dashes. It counts for a verb that has the new one and not the old."""
VALUES: Mapping[tuple[str, str], str] = {
    ("loss", "own"): "model",
}
"""Option and old value -> value."""

SETTINGS: Mapping[str, str] = {"model.anchor": "model.prior"}
"""Old setting of a configuration -> setting."""


def setting_of(word: str) -> str:
    """Return ``key=value`` with the setting's name of today."""
    key, equals, value = word.partition("=")
    if (new := SETTINGS.get(key)) is None:
        return word
    _warn(key, new)
    return f"{new}{equals}{value}"


def verb_of(words: Sequence[str]) -> list[str]:
    """Return ``words`` with today's name of the verb that they name."""
    place = next((place for place, word in enumerate(words) if not word.startswith("-")), len(words))
    verb, rest = " ".join(words[place : place + 1]), list(words[place + 1 :])
    new = VERBS.get(verb)
    if verb == "data" and (not rest or rest[0].startswith("-") and rest[0] not in ("-h", "--help")):
        new = "data summary"
    if verb == "step" and (searches := [word for word in rest if word in SEARCHES]):
        verb, new = f"step {searches[0]}", "plan"
        rest = [word for word in rest if word not in SEARCHES]
    if new is None:
        return list(words)
    _warn(f"cdmpp {verb}", f"cdmpp {new}")
    return [*words[:place], *new.split(), *rest]


def option_of(given: str, known: Collection[str]) -> str:
    """Return the name among ``known`` of an option given as ``given``; ``given`` itself where it is no old name."""
    new = OPTIONS.get(given)
    if given in known or new not in known or new is None:
        return given
    _warn(f"--{given}", f"--{new}")
    return new


def value_of(option: str, given: str) -> str:
    """Return the value of ``option`` that is given as ``given``; ``given`` itself where it is no old value."""
    if (new := VALUES.get((option, given))) is None:
        return given
    _warn(f"--{option} {given}", f"--{option} {new}")
    return new


def _warn(old: str, new: str) -> None:
    log.warning("%s is now called %s; the old name goes with the next version", old, new)
