"""Old verbs, options and values of the command line: each is understood for one version, with a warning.

A renamed option needs one line here and nothing else: ``Parser`` reads it and ``--help`` does not show it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from cdmpp.cli.output import say

OPTIONS: Mapping[str, str] = {
    "chunks": "ring-steps",
    "micro-steps": "accumulate-steps",
    "optimise": "optimize",
    "scheme": "strategy",
    "slow": "straggler",
    "strict": "no-fallback",
}
"""Old name of an option -> its name, both without dashes. It counts for a verb that has the new one and not the old."""
VALUES: Mapping[tuple[str, str], str] = {
    ("loss", "own"): "model",
}
"""Option and old value -> value."""


def option_of(given: str, known: Collection[str]) -> str:
    """The name among ``known`` of an option that is given as ``given``; ``given`` itself where it is no old name."""
    new = OPTIONS.get(given)
    if given in known or new not in known or new is None:
        return given
    _warn(f"--{given}", f"--{new}")
    return new


def value_of(option: str, given: str) -> str:
    """The value of ``option`` that is given as ``given``; ``given`` itself where it is no old value."""
    if (new := VALUES.get((option, given))) is None:
        return given
    _warn(f"--{option} {given}", f"--{option} {new}")
    return new


def _warn(old: str, new: str) -> None:
    say(f"{old} is now called {new}; the old name goes with the next version")
