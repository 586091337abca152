"""Writing: an expression as text, as LaTeX and as Python."""

from __future__ import annotations

import keyword
import re
import unicodedata
from collections.abc import Sequence
from typing import Protocol

from cdmpp.expression.factor import Factor
from cdmpp.expression.term import Product, Term

_SHAPES = {"log2": "log2({n})", "share": "({n} - 1) / {n}", "any": "[{n} > 1]", "others": "({n} - 1)"}
_LATEX = {
    "log2": r"\log_2 {n}", "share": r"\frac{{{n} - 1}}{{{n}}}", "any": r"[{n} > 1]", "others": "({n} - 1)",
}  # fmt: skip
_PYTHON = {
    "log2": "math.log2({n})", "share": "({n} - 1) / {n}", "any": "({n} > 1)", "others": "({n} - 1)",
}  # fmt: skip


_LATEX_MARKS = {
    **{mark: f"\\{mark}" for mark in "#$%&_{} "}, "\\": r"\backslash ", "^": r"\wedge ", "~": r"\sim ",
}  # fmt: skip
_RESERVED = ("math", "max", "group", "constants_s", "CONSTANTS_S", "__debug__")
"""Names that the written module needs for itself, and one that Python keeps."""


class Written(Protocol):
    """An expression, as far as it is written."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that a run is described by."""

    @property
    def factors(self) -> tuple[Factor, ...]:
        """Factors of the columns."""

    @property
    def terms(self) -> tuple[Term, ...]:
        """Terms without their constants."""

    @property
    def constants(self) -> tuple[tuple[float, ...], ...]:
        """Seconds for each group, for each term."""

    @property
    def groups(self) -> tuple[str, ...]:
        """Names of the groups."""

    @property
    def time_name(self) -> str:
        """Name of the time."""


def text_of(expression: Written) -> str:
    """Write ``step_s = 0.12 s + 3.4 ms * batch / gpus``; for several groups a line of constants each."""
    named = {one.name: one.text for one in expression.factors}
    terms = [_term(term, named, _SHAPES, _power, " * ", "max({0}, {1:.4g} * {2})") for term in expression.terms]
    if len(expression.groups) == 1:
        constants = [f"{value:.4g} s" for value in expression.constants[0]]
        return f"{expression.time_name} = {_sum(constants, terms, ' * ', expression.constants[0])}"
    names = [f"a{place}" for place in range(1, len(terms) + 1)]
    head = f"{expression.time_name} = {_sum(names, terms, ' * ', (1.0,) * len(names))}"
    lines = [
        f"  {group}: " + ", ".join(f"{name} = {value:.4g} s" for name, value in zip(names, own, strict=True))
        for group, own in zip(expression.groups, expression.constants, strict=True)
    ]
    return "\n".join([f"{head}, with", *lines])


def latex_of(expression: Written) -> str:
    """Write the formula; constants of several groups are named a_1 and so on."""
    named = {one.name: _latex_factor(one) for one in expression.factors}
    form = r"\max\left({0}, {1:.4g} \cdot {2}\right)"
    terms = [_term(term, named, _LATEX, _latex_power, r" \cdot ", form) for term in expression.terms]
    if len(expression.groups) == 1:
        own = expression.constants[0]
        constants = [_latex_number(value) for value in own]
    else:
        own, constants = (1.0,) * len(terms), [f"a_{{{place}}}" for place in range(1, len(terms) + 1)]
    return f"{_roman(expression.time_name)} = " + _sum(constants, terms, r" \cdot ", own)


def python_of(expression: Written) -> str:
    """Write a module with one function, whose arguments are the columns; of several groups the first is the group."""
    names = identifiers(expression.columns)
    named = {one.name: one.written(names, "math.ceil") for one in expression.factors}
    terms = [_term(term, named, _PYTHON, _python_power, " * ", "max({0}, {1!r} * {2})") for term in expression.terms]
    several = len(expression.groups) > 1
    own = (1.0,) * len(terms) if several else expression.constants[0]
    constants = [f"constants_s[{place}]" for place in range(len(terms))] if several else [repr(value) for value in own]
    arguments = ", ".join((["group"] if several else []) + list(names.values()))
    lines = ["import math", "", ""]
    if several:
        lines += ["CONSTANTS_S = {"]
        lines += [
            f"    {group!r}: {own_!r}," for group, own_ in zip(expression.groups, expression.constants, strict=True)
        ]
        lines += ["}", "", ""]
    lines += [f"# {own} is the column {ascii(name)}" for name, own in names.items() if own != name]
    lines += [f"def {_identifier(expression.time_name)}({arguments}):", '    """Seconds of a run."""']
    lines += ["    constants_s = CONSTANTS_S[group]"] if several else []
    body = " + ".join(
        constant if text == "1" else f"{constant} * {text}"
        for constant, text, value in zip(constants, terms, own, strict=True)
        if value
    )
    return "\n".join([*lines, f"    return {body or '0.0'}", ""])


def term_text(expression: Written, term: Term) -> str:
    """Write one term without its constant; ``1`` for a constant one."""
    named = {one.name: one.text for one in expression.factors}
    return _term(term, named, _SHAPES, _power, " * ", "max({0}, {1:.4g} * {2})")


def _term(term: Term, named: dict[str, str], shapes: dict[str, str], power, times: str, larger: str) -> str:  # type: ignore[no-untyped-def]
    first = _product(term.product, named, shapes, power, times)
    if term.rival is None:
        return first
    text = larger.replace("{0}", "\0").replace("{2}", "\1")
    number = re.search(r"\{1[^}]*\}", text)
    assert number is not None
    text = text.replace(number[0], number[0].replace("{1", "{").format(term.ratio))
    return text.replace("\0", first).replace("\1", _product(term.rival, named, shapes, power, times))


def _product(product: Product, named: dict[str, str], shapes: dict[str, str], power, times: str) -> str:  # type: ignore[no-untyped-def]
    parts = [power(named[name], exponent) for name, exponent in product.powers.items()]
    if product.shape is not None:
        parts.append(shapes[product.shape[0]].format(n=named[product.shape[1]]))
    return times.join(parts) or "1"


def _sum(constants: list[str], terms: list[str], times: str, values: tuple[float, ...]) -> str:
    parts = [
        constant if text == "1" else f"{constant}{times}{text}"
        for constant, text, value in zip(constants, terms, values, strict=True)
        if value
    ]
    return " + ".join(parts) or "0 s"


def _power(name: str, exponent: float) -> str:
    return name if exponent == 1 else f"{name}^{exponent:.3g}" if exponent > 0 else f"{name}^({exponent:.3g})"


def _python_power(name: str, exponent: float) -> str:
    return name if exponent == 1 else f"{name} ** {exponent!r}"


def _latex_power(name: str, exponent: float) -> str:
    return name if exponent == 1 else f"{name}^{{{exponent:.3g}}}"


def _latex_factor(factor: Factor) -> str:
    return factor.written({column: _roman(column) for column in factor.columns}, "\\mathrm{{ceil}}", r"\cdot")


def _latex_number(value: float) -> str:
    digits = f"{value:.4g}"
    if "e" in digits:
        mantissa, exponent = digits.split("e")
        digits = rf"{mantissa} \cdot 10^{{{int(exponent)}}}"
    return rf"{digits}\,\mathrm{{s}}"


def _roman(name: str) -> str:
    return rf"\mathrm{{{''.join(_LATEX_MARKS.get(mark, mark) for mark in name)}}}"


def identifiers(names: Sequence[str]) -> dict[str, str]:
    """Return for each name one that Python takes as an argument of the written function, no two of them the same.

    Names that are such already are kept. Others get ``_`` for what Python does not take, and ``_`` at the end.
    """
    safe = {name: _identifier(name) for name in names}
    taken = {name for name, own in safe.items() if own == name}
    for name, own in safe.items():
        while own != name and own in taken:
            own += "_"
        safe[name] = own
        taken.add(own)
    return safe


def _identifier(name: str) -> str:
    normal = unicodedata.normalize("NFKC", name)
    plain = "".join(mark if f"a{mark}".isidentifier() else "_" for mark in normal)
    plain = plain if plain.isidentifier() else f"_{plain}"
    return f"{plain}_" if keyword.iskeyword(plain) or plain in _RESERVED else plain
