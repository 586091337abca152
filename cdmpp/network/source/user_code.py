"""A model that a user's own Python file makes. Reading one runs the file."""

from __future__ import annotations

import ast
import contextlib
import difflib
import importlib.util
import inspect
import re
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from cdmpp.errors import CdmppError
from cdmpp.platform.torch_pair import torchvision_fault
from cdmpp.programs.refusal import first_line, place_of

_MAKERS_OF_NAMES = frozenset(
    {"__dict__", "__getattr__", "eval", "exec", "globals", "locals", "modules", "setattr", "vars"}
)
"""Words of a file that may give it functions whose names do not stand in it; so may ``from x import *``."""

MAKES_MODEL = ("makes the model", "returns a torch.nn.Module")
"""What ``function_of`` and ``check_written`` say of a network's function."""


def run_function(path: Path, name: str, batch: int | None = None, sequence: int | None = None) -> Any:
    """Return what the function ``name`` of the file returns.

    It gets ``batch`` and ``sequence`` where they are given and it has parameters of these names.

    Raises:
        CdmppError: no such file or function, or an error in it, with its file and line.
    """
    function = function_of(path, name, *MAKES_MODEL)
    parameters, given = inspect.signature(function).parameters, {"batch": batch, "sequence": sequence}
    own = {key: value for key, value in given.items() if value is not None and key in parameters}
    if sequence is not None and "sequence" not in own:
        raise CdmppError(
            f"{path}:{name} has no parameter sequence, so {sequence} tokens cannot be asked for: give it one"
        )
    try:
        inspect.signature(function).bind(**own)
    except TypeError as error:
        raise CdmppError(f"{path}:{name} is called without arguments, but: {error}; give them defaults") from error
    with _own_folder(path), _telling(path, name):
        return function(**own)


def function_of(path: Path, name: str, does: str, that: str) -> Any:
    """Return a function of a file, which is run.

    Args:
        path: of the file.
        name: of the function.
        does: what the function is for, for messages: "makes the model".
        that: what it must do: "returns a torch.nn.Module".

    Raises:
        CdmppError: no such file or function, or an error in it, with its file and line.
    """
    check_written(path, name, does, that)
    module = ModuleType("")
    with _own_folder(path), _telling(path, name):
        spec = importlib.util.spec_from_file_location(f"_given_{path.stem}", path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # dataclasses and torch look classes up by it
        spec.loader.exec_module(module)
    return _function(module, path, name, does)


def check_written(path: Path, name: str, does: str, that: str) -> None:
    """Raise ``CdmppError`` where there is no such file, or its text holds no such name; nothing is run.

    A file that may make names as it runs, or that cannot be parsed, is left to ``function_of``. Arguments are those of
    ``function_of``.
    """
    if not path.is_file():
        raise CdmppError(f"there is no file {path}: give file.py:FUNCTION, a function that {that}")
    try:
        content = path.read_bytes()
        own = [one.name for one in ast.parse(content).body if isinstance(one, ast.FunctionDef)]
    except (OSError, SyntaxError, ValueError):
        return
    words = set(re.findall(r"\w+", content.decode(errors="replace")))
    if name not in words and not words & _MAKERS_OF_NAMES and not re.search(rb"import\s*\*", content):
        raise _no_function(path, name, does, own)


def may_take(path: Path, name: str, parameter: str) -> bool:
    """Return False if the text of the file says that its function ``name`` has no such parameter; nothing is run."""
    try:
        body = ast.parse(path.read_bytes()).body
    except (OSError, SyntaxError, ValueError):  # reading it by running it says what is wrong
        return True
    for one in reversed(body):
        if isinstance(one, ast.FunctionDef) and one.name == name and not one.decorator_list:
            given = (*one.args.posonlyargs, *one.args.args, *one.args.kwonlyargs)
            return parameter in {argument.arg for argument in given}
        if not isinstance(one, ast.FunctionDef | ast.ClassDef | ast.Import | ast.ImportFrom):
            return True  # it may give the name to something else
    return True


def _function(module: ModuleType, path: Path, name: str, does: str) -> Any:
    found = getattr(module, name, None)
    if callable(found):
        return found
    own = [k for k, one in vars(module).items() if inspect.isfunction(one) and one.__module__ == module.__name__]
    raise _no_function(path, name, does, own)


def _no_function(path: Path, name: str, does: str, own: list[str]) -> CdmppError:
    near = difflib.get_close_matches(name, own, n=1)
    asked = f"there is no function {name} in {path}." if name else f"which function of {path} {does}?"
    return CdmppError(
        f"{asked} It has: {', '.join(own) or 'none'}. Give {path.name}:{(near or own or ['FUNCTION'])[0]}"
    )


@contextlib.contextmanager
def _own_folder(path: Path) -> Iterator[None]:
    """Imports of the file's neighbours work, as when it is run as a script."""
    folder = str(path.resolve().parent)
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(folder)


@contextlib.contextmanager
def _telling(path: Path, name: str) -> Iterator[None]:
    try:
        yield
    except (Exception, SystemExit) as error:
        frames = [f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename).resolve() == path.resolve()]
        place = f"{path}:{frames[-1].lineno}, `{frames[-1].line}`" if frames else place_of(error) or str(path)
        if isinstance(error, SyntaxError):
            place = f"{error.filename}:{error.lineno}, `{(error.text or '').strip()}`"
        kind = "" if isinstance(error, KeyError | AttributeError) else f"{type(error).__name__}: "
        fault = torchvision_fault() if isinstance(error, ImportError | RuntimeError | OSError) else ""
        why = f"{kind}{first_line(error)}" + (f". Perhaps because {fault}" if fault else "")
        raise CdmppError(f"{path.name}:{name} failed at {place}: {why}") from error
