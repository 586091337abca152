"""C++ and Python name the same fields, kinds, features and operations in the same order."""

from __future__ import annotations

import re
from enum import IntEnum
from pathlib import Path

import pytest

from cdmpp.machine_code.cpu.native import TOTALS
from cdmpp.machine_code.cpu.operation import OPERATIONS
from cdmpp.machine_code.gpu.sass_fields import FIELDS, Kind, Pipe, Source, Space

FOLDER = Path(__file__).parents[2] / "cdmpp" / "machine_code"


def listed(header: str, start: str) -> list[str]:
    """Names between the braces that follow ``start`` in a header."""
    text = (FOLDER / header).read_text()
    found = re.search(re.escape(start) + r"[^{]*\{([^}]*)\}", text)
    assert found is not None, start
    return [name.strip() for name in found[1].split(",")]


def test_fields_of_a_row_are_those_of_c():
    assert listed("gpu/native/rows.h", "enum Field") == [*map(str.upper, FIELDS), "FIELD_COUNT"]


@pytest.mark.parametrize(("kind", "prefix"), [(Kind, ""), (Space, "SPACE_"), (Pipe, "PIPE_"), (Source, "SOURCE_")])
def test_numbers_in_a_row_are_those_of_c(kind: type[IntEnum], prefix: str):
    assert listed("gpu/native/rows.h", f"enum {kind.__name__} ") == [prefix + one.name for one in kind]
    assert [one.value for one in kind] == list(range(len(kind)))


def test_features_and_operations_are_those_of_c():
    assert listed("cpu/native/tables.h", "namespace feature {\nenum : int ") == [*TOTALS, "N"]
    assert listed("cpu/native/tables.h", "namespace op {\nenum : int ") == [f"op_{name}" for name in OPERATIONS]
    kinds = listed("cpu/native/tables.h", "KIND_OF[] = ")
    assert kinds == [f"feature::machine_is_{kind}" for kind in OPERATIONS.values()]
