"""Random damage: to bytes, to text, to JSON values, to tables. All from one ``random.Random``."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

ODD_CHARACTERS = "\x00\x0c\x1c\x85\u2028\ufeff'\"\\#(){}[]:;@\t\n `$%\u202e\U0001f600"
NUMBERS = ("0", "-1", "1e400", "2147483648", "9223372036854775808", "1" * 400, "3.5", "nan", "True", "None", "'8'")


def damaged_bytes(content: bytes, rng: random.Random) -> bytes:
    """Flipped bits, a cut, a hole, zeros, something inserted, or nothing left."""
    data, at = bytearray(content), rng.randrange(max(1, len(content)))
    size = rng.choice([1, 4, 64, 1024])
    match rng.randrange(7):
        case 0:
            for _ in range(rng.choice([1, 3, 30])):
                place = rng.randrange(max(1, len(data)))
                data[place : place + 1] = bytes([rng.randrange(256)])
        case 1:
            del data[at:]
        case 2:
            del data[at : at + size]
        case 3:
            data[at : at + size] = bytes(min(size, len(data) - at))
        case 4:
            data[at:at] = rng.randbytes(size)
        case 5:
            data = bytearray(data[at:] + data[:at])
        case _:
            data = bytearray()
    return bytes(data)


def damaged_text(text: str, rng: random.Random) -> str:
    """Odd characters, other numbers, words and lines moved about."""
    for _ in range(rng.choice([1, 1, 2, 5])):
        at, lines = rng.randrange(max(1, len(text))), text.split("\n")
        line = rng.randrange(len(lines))
        match rng.randrange(7):
            case 0:
                text = text[:at] + rng.choice(ODD_CHARACTERS) * rng.choice([1, 1, 3]) + text[at:]
            case 1:
                text = text[:at] + text[at + rng.choice([1, 2, 8, 40]) :]
            case 2:
                digits = [i for i, c in enumerate(text) if c.isdigit()]
                if digits:
                    place = rng.choice(digits)
                    text = text[:place] + rng.choice(NUMBERS) + text[place + 1 :]
            case 3:
                text = "\n".join([*lines[:line], *lines[line + 1 :]])
            case 4:
                text = "\n".join([*lines[:line], lines[line], *lines[line:]])
            case 5:
                other = rng.randrange(len(lines))
                lines[line], lines[other] = lines[other], lines[line]
                text = "\n".join(lines)
            case _:
                words = text.split(" ")
                i, j = rng.randrange(len(words)), rng.randrange(len(words))
                words[i], words[j] = words[j], words[i]
                text = " ".join(words)
    return text


def junk(rng: random.Random, attacks: list[str]) -> Any:
    """A JSON value that hardly anybody expects."""
    deep: Any = rng.choice([1, "x"])
    for _ in range(rng.choice([3, 200])):
        deep = [deep]
    return rng.choice(
        [None, True, -1, 0, 1, 2**31, 2**63, 10**300, 10**400, -(10**18), 0.5, float("nan"), float("inf"), 1e308,
         "", "x", "\x00", "../../../../x", "nan", "deep", "\ud83d", [], {}, [[]], {"a": 1}, [1, "x", None], deep,
         *attacks[:3]]
    )  # fmt: skip


def damaged_json(value: Any, rng: random.Random, attacks: list[str]) -> Any:
    """One to four places of it replaced, removed, doubled, or renamed."""
    value = copy.deepcopy(value)
    for _ in range(rng.choice([1, 1, 2, 4])):
        places = list(_places(value))
        if not places:
            return junk(rng, attacks)
        holder, key = rng.choice(places)
        match rng.randrange(6):
            case 0:
                del holder[key]
            case 1 if isinstance(holder, list):
                holder.insert(key, copy.deepcopy(holder[key]))
            case 2 if isinstance(holder, dict):
                holder[rng.choice(["", "x", "__class__", *attacks[:1]])] = holder.pop(key)
            case 3:
                other, there = rng.choice(places)
                try:
                    holder[key] = copy.deepcopy(other[there])
                except (KeyError, IndexError):
                    holder[key] = None
            case _:
                holder[key] = junk(rng, attacks)
    return value


def _places(value: Any, depth: int = 0):
    if depth > 40:
        return
    keys = range(len(value)) if isinstance(value, list) else list(value) if isinstance(value, dict) else ()
    for key in keys:
        yield value, key
        yield from _places(value[key], depth + 1)


def to_json(value: Any) -> str:
    """With ``"deep"`` in it nested far deeper than any reader may recurse."""
    return json.dumps(value, default=str).replace('"deep"', "[" * 5000 + "]" * 5000)


def damage_parquet(path: Path, rng: random.Random, attacks: list[str]) -> None:
    """Bytes, or a column, a cell, a row, the metadata of a valid file."""
    if rng.random() < 0.25:
        path.write_bytes(damaged_bytes(path.read_bytes(), rng))
        return
    table = pq.read_table(path)
    for _ in range(rng.choice([1, 1, 2])):
        table = _damaged_table(table, rng, attacks)
    pq.write_table(table, path)


def _damaged_table(table: pa.Table, rng: random.Random, attacks: list[str]) -> pa.Table:
    if not table.num_columns:
        return table
    place = rng.randrange(table.num_columns)
    name, column, metadata = table.column_names[place], table.column(place), dict(table.schema.metadata or {})
    match rng.randrange(9):
        case 0:
            return table.drop_columns([name])
        case 1:
            return table.rename_columns([n if i != place else n + "_" for i, n in enumerate(table.column_names)])
        case 2:
            return table.slice(rng.randrange(table.num_rows + 1))
        case 3:
            return pa.concat_tables([table, table.slice(0, 1)])
        case 4:
            key = rng.choice([*metadata, b"extractor_version"])
            return table.replace_schema_metadata({**metadata, key: rng.choice([b"", b"0", b"999", b"\xff", b"x"])})
        case 5:
            return table.set_column(place, name, pa.array([rng.choice(["", "x", "0"])] * table.num_rows))
        case 6:
            return table.set_column(place, name, pa.nulls(table.num_rows, column.type))
        case _:
            return table.set_column(place, name, _with_odd_cell(column, rng, attacks))


def _with_odd_cell(column: pa.ChunkedArray, rng: random.Random, attacks: list[str]) -> pa.Array:
    values = column.to_pylist()
    for _ in range(rng.choice([1, 3])):
        if values:
            row = rng.randrange(len(values))
            values[row] = _odd_cell(values[row], rng, attacks)
    try:
        return pa.array(values, column.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        try:
            return pa.array(values)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            return pa.array([to_json(value)[:1000].encode("utf-8", "replace").decode() for value in values])


def _odd_cell(value: Any, rng: random.Random, attacks: list[str]) -> Any:
    if isinstance(value, list) and value and rng.random() < 0.8:
        odd, place = list(value), rng.randrange(len(value))
        changes: list[Callable[[], Any]] = [
            lambda: odd.__setitem__(place, rng.choice([-1, 0, 10**6, 2**31 - 1])),
            lambda: odd.__setitem__(place, rng.choice([float("nan"), float("inf"), -1e30, 1e30, None])),
            lambda: odd.__delitem__(place),
            lambda: odd.insert(place, odd[place]),
            lambda: odd.clear(),
        ]
        rng.choice(changes)()
        return odd
    if isinstance(value, str) and rng.random() < 0.7:
        return rng.choice([damaged_text(value, rng), *attacks])
    return junk(rng, attacks)
