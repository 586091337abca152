"""The parser of every verb: options as ``--key value`` or ``key=value``, whole names only, errors in one line."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from cdmpp.cli import old_names
from cdmpp.errors import UsageError

if TYPE_CHECKING:
    from cdmpp.cli.hydra_entry import Entry

_KEY = re.compile(r"([A-Za-z][\w-]*)=(.*)", re.DOTALL)
_SETTING = re.compile(r"[A-Za-z][\w./@-]*=")
_HYDRA = {"--cfg": 1, "-c": 1, "--package": 1, "-p": 1, "--config-dir": 1, "-cd": 1, "--resolve": 0, "--multirun": 0}
_HYDRA |= {"-m": 0, "--info": 0, "-i": 0, "--hydra-help": 0}
"""Options of Hydra -> how many words follow them."""
_YES, _NO = ("true", "yes", "1"), ("false", "no", "0")


class Parser(argparse.ArgumentParser):
    """This ``ArgumentParser`` reads ``key=value`` as ``--key value`` and knows old names; it raises ``UsageError``."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **{"allow_abbrev": False, **options})

    entry: Entry | None = None
    """The function of a verb that has settings, whose keys are its options."""

    def error(self, message: str) -> NoReturn:
        """Raise ``message`` with the name of the verb and where help is."""
        end = "" if message.endswith("?") else "."
        raise UsageError(f"{self._verb()} {message}{end} `{self.prog} --help` says more".strip())

    def format_help(self) -> str:
        """Format the help as ``ArgumentParser`` does, or every setting with its meaning."""
        return super().format_help() if self.entry is None else self.entry.help(self.prog) + "\n"

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as ``ArgumentParser`` does, with the words in its own form. Words for Hydra become ``settings``."""
        given = list(args or ())
        if self.entry is None:
            return super().parse_known_args(list(self._words(given)), namespace)
        found, _ = super().parse_known_args([word for word in given if word in self._option_string_actions], namespace)
        found.settings = list(self._settings([word for word in given if word not in self._option_string_actions]))
        return found, []

    def _settings(self, given: Sequence[str]) -> Iterator[str]:
        """Each of ``given`` as ``key=value``; what Hydra itself knows stays."""
        rest, seen = list(given), set[str]()
        while rest:
            word = rest.pop(0)
            if word in _HYDRA:
                yield from (word, *rest[: _HYDRA[word]])
                del rest[: _HYDRA[word]]
                continue
            key, equals, value = word.removeprefix("--").partition("=")
            if word.startswith("--"):
                key = key.replace("-", "_")
                if not equals and (not rest or rest[0].startswith("--") or _SETTING.match(rest[0])):
                    self.error(f"{word} has no value: write {key}=VALUE or {word} VALUE")
                value = value if equals else rest.pop(0)
            elif not equals and not word.startswith("~"):
                self.error(f"{word} is no setting: write KEY=VALUE or --KEY VALUE, such as device=a100")
            if key in seen:
                self.error(f"{key} is given twice: say it once")
            seen.add(key)
            yield word if word.startswith("~") else f"{key}={old_names.value_of(key, value)}"

    def _words(self, given: Sequence[str]) -> Iterator[str]:
        """Each of ``given`` in the form that argparse reads, under its name of today."""
        options = {text[2:]: action for text, action in self._option_string_actions.items() if text.startswith("--")}
        is_group = any(isinstance(action, argparse._SubParsersAction) for action in self._actions)
        rest, values, seen = list(given), 0.0, set[str]()  # how many of the next words are values of the option before
        while rest:
            word = rest.pop(0)
            if word == "--" or is_group and not word.startswith("-"):  # what follows belongs to the verb
                yield from (word, *rest)
                return
            if word.startswith("--"):
                name, equals, value = word[2:].partition("=")
                name = old_names.option_of(name, options)
                action = self._known(name, options)
                self._check_once(name, action, seen)
                values = 0.0 if equals else _takes(action)
                if equals and not value or values == 1 and not (rest and rest[0]):
                    self.error(f"--{name} has no value: write {name}=VALUE or --{name} VALUE")
                if values == 1:
                    rest[0] = old_names.value_of(name, rest[0])
                yield f"--{name}={old_names.value_of(name, value)}" if equals else f"--{name}"
            elif values or not (pair := _KEY.fullmatch(word)):
                values = max(0.0, values - 1)
                yield word
            else:
                yield from self._of_pair(word, pair[1], pair[2], options, seen)

    def _of_pair(
        self, word: str, key: str, value: str, options: Mapping[str, argparse.Action], seen: set[str]
    ) -> Iterator[str]:
        """``key=value`` as an option; ``word`` as it is where ``key`` is not close to one."""
        name = old_names.option_of(key.replace("_", "-"), options)
        if name not in options:
            if near := difflib.get_close_matches(name, options, n=1, cutoff=0.8):
                self.error(f"has no option {key}: did you mean {near[0]}={value}?")
            yield word
        elif options[name].nargs != 0:
            self._check_once(name, options[name], seen)
            if not value:
                self.error(f"{key} has no value: write {key}=VALUE or --{name} VALUE")
            yield f"--{name}={old_names.value_of(name, value)}"
        elif value.lower() in _YES:
            yield f"--{name}"
        elif value.lower() not in _NO:
            self.error(f"{word}: expected {key}=true or {key}=false")

    def _check_once(self, name: str, action: argparse.Action, seen: set[str]) -> None:
        """Argparse takes the last of several values, and says nothing."""
        if name in seen and action.nargs != 0 and not isinstance(action, argparse._AppendAction):
            self.error(f"--{name} is given twice: say it once")
        seen.add(name)

    def _known(self, name: str, options: Mapping[str, argparse.Action]) -> argparse.Action:
        if name in options:
            return options[name]
        near = difflib.get_close_matches(name, options, n=1)
        self.error(f"has no option --{name}" + (f": did you mean --{near[0]}?" if near else ""))

    def _verb(self) -> str:
        return self.prog.removeprefix("cdmpp").strip()


def _takes(action: argparse.Action) -> float:
    """The largest number of words that ``action`` takes as its values."""
    if isinstance(action.nargs, int):
        return action.nargs
    return 1.0 if action.nargs in (None, "?") else float("inf")
