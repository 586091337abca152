"""Breakages: what can be wrong with a file before its content is looked at, and each value of JSON of another type."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

BOMB_BYTES = 210 * 10**6
_OTHER_TYPES = (None, True, -1, 3, 1e308, float("nan"), "x", "", [], [None], {}, {"x": 1})


def _rewrite(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    """Change the content of a file, within the gzip that it may be."""

    def apply(path: Path) -> None:
        content = path.read_bytes()
        packed = content[:2] == b"\x1f\x8b"
        content = change(gzip.decompress(content) if packed else content)
        path.write_bytes(gzip.compress(content, 1) if packed else content)

    return apply


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _doubled(content: bytes) -> bytes:
    """The first key of the first object, or mapping, once more."""
    if content.lstrip()[:1] in b"{[":
        start = content.find(b"{")
        if start < 0:  # nothing in it has keys
            return b"{" + content
        value = json.JSONDecoder().raw_decode(content[start:].decode())[0]
        key = next(iter(value))
        return content[: start + 1] + f"{json.dumps(key)}: null, ".encode() + content[start + 1 :]
    first = next(line for line in content.splitlines() if line[:1].isalpha())
    return content + b"\n" + first + b"\n"


def bomb(path: Path) -> None:
    """A gzip file of some 0.2 MB that unpacks to 210 MB of blanks, and the content."""
    content = path.read_bytes()
    content = gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
    with gzip.open(path, "wb", 9) as file:
        for _ in range(BOMB_BYTES // 10**7):
            file.write(b" " * 10**7)
        file.write(content)


def endless_rows(path: Path) -> None:
    """Parquet that announces 10^8 rows in some kilobytes."""
    table = pa.table({"device": pa.nulls(10**6, pa.int8())})
    with pq.ParquetWriter(path, table.schema, compression="zstd") as writer:
        for _ in range(100):
            writer.write_table(table)


OF_BYTES: dict[str, Callable[[Path], None]] = {
    "empty": lambda path: path.write_bytes(b"") and None,
    "truncated": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]) and None,
    "a folder": _folder,
    "zeros": lambda path: path.write_bytes(bytes(1000)) and None,
    "a picture": lambda path: path.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 8) and None,
}
OF_TEXT: dict[str, Callable[[Path], None]] = {
    "utf-16": _rewrite(lambda content: content.decode().encode("utf-16")),
    "not utf-8": _rewrite(lambda content: content.replace(b'"', b'"\xff\xfe', 1) + b"\xff"),
    "nested deep": _rewrite(lambda content: b"[" * 100_000),
    "a number": _rewrite(lambda content: b"3"),
    "null": _rewrite(lambda content: b"null"),
    "a list": _rewrite(lambda content: b"[1, 2]"),
    "an empty object": _rewrite(lambda content: b"{}"),
    "a text": _rewrite(lambda content: b'"text"'),
    "a table": _rewrite(lambda content: b"a,b\n1,2\n"),
}
DOUBLED = _rewrite(_doubled)


def other_types(value: Any, depth: int = 3) -> Iterator[tuple[str, Any]]:
    """(what was changed, the whole value) with each place of it, down to ``depth``, of every other type, or gone."""
    if depth == 0 or not isinstance(value, dict | list) or not value:
        return
    keys = list(value) if isinstance(value, dict) else list(range(min(2, len(value))))
    for key in keys:
        old = value[key]
        for new in _OTHER_TYPES:
            value[key] = new
            yield f"{key} = {json.dumps(new)}", value
        value[key] = old
        for what, _ in other_types(old, depth - 1):
            yield f"{key}.{what}", value
        if isinstance(value, dict):
            del value[key]
            yield f"without {key}", value
            value[key] = old
