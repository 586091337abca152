"""Events of a Chrome trace, read in one pass: about a megabyte at a time, whatever the size of the file."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from cdmpp.errors import DataError
from cdmpp.platform.content import MOST_BYTES, chunks_of
from cdmpp.platform.limits import shown as short
from cdmpp.platform.progress import shown

_PIECE = 1 << 20
"""Bytes that are parsed at a time: what is made of them stays in the processor's cache."""
_OPENS = re.compile(rb'"traceEvents"\s*:\s*\[')
_NEXT = re.compile(r'\}\s*,\s*(?=\{\s*"(?:ph|cat|name|pid|tid|ts|args|id|s)")')
_NO_TEXT = re.compile("[\\udc80-\\udcff]")
"""Bytes that are no UTF-8, as ``surrogateescape`` decodes them."""
_TRIES = 20
_JSON = json.JSONDecoder(strict=False)


class EventFile:
    """A trace is JSON or gzipped JSON: an object with ``traceEvents``, or a list of events."""

    def __init__(self, path: Path, progress: bool = False) -> None:
        self.path, self.progress = path, progress
        self.keys: dict[str, Any] = {}
        """What the file says next to its events. Complete when all batches were read."""
        self._rest, self._closing = b"", b""

    def batches(self) -> Iterator[list[Any]]:
        """Yield lists of events, in the order of the file; None in place of one that is no JSON.

        Raises:
            DataError: a file that is no trace, or that ends in the middle of one.
        """
        total = max(self.path.stat().st_size >> 20, 1) if self.path.exists() else 1
        chunks = shown((chunk for chunk in chunks_of(self.path)), f"Reading {self.path.name}", total, self.progress)
        self._open(chunks)
        wanted = _PIECE
        for chunk in chunks:
            self._rest += chunk
            if len(self._rest) >= wanted:
                events = self._piece()
                wanted = _PIECE if events else 2 * len(self._rest)
                if events:
                    yield events
        yield self._last()

    def _open(self, chunks: Iterator[bytes]) -> None:
        """Read up to the first event."""
        head, seen = bytearray(), 0
        for chunk in chunks:
            head += chunk
            if head.lstrip()[:1] == b"[":
                self._rest, self._closing = bytes(head.lstrip()[1:]), b""
                return
            for found in _OPENS.finditer(head, seen):
                keys = _parsed(bytes(head[: found.end()]) + b"]}")
                if isinstance(keys, dict):
                    self.keys = {key: value for key, value in keys.items() if key != "traceEvents"}
                    self._rest, self._closing = bytes(head[found.end() :]), b'{"traceEvents":'
                    return
            seen = max(len(head) - 64, 0)
            if len(head) > MOST_BYTES:
                break
        if not isinstance(_parsed(bytes(head)), dict):
            raise DataError(f"cannot read {self.path} as a trace: it is no JSON, or ends early")
        raise DataError(f"{self.path} is no trace: it has no traceEvents")

    def _piece(self) -> list[Any]:
        """Events of the bytes at hand, up to a comma between two of them. A wrong comma does not parse."""
        rest, end = self._rest, len(self._rest)
        for _ in range(_TRIES):
            end = rest.rfind(b"{", 0, end)
            before = rest[max(end - 256, 0) : end].rstrip() if end > 0 else b""
            if not before.endswith(b",") or not before[:-1].rstrip().endswith(b"}"):
                if end <= 0:
                    break
                continue
            comma = max(end - 256, 0) + len(before) - 1
            try:
                events = orjson.loads(b"[" + rest[:comma] + b"]")
            except orjson.JSONDecodeError:
                continue
            self._rest = rest[comma + 1 :]
            return events
        events, at, is_closed = _one_by_one(rest.decode("utf-8", "surrogateescape"))
        if is_closed:  # what follows the events is read at the end
            return []
        self._rest = rest.decode("utf-8", "surrogateescape")[at:].encode("utf-8", "surrogateescape")
        return events

    def _last(self) -> list[Any]:
        whole = _parsed(self._closing + b"[" + self._rest) if self._rest.strip() else None
        if isinstance(whole, list):
            return whole
        if isinstance(whole, dict):
            self.keys |= {key: value for key, value in whole.items() if key != "traceEvents"}
            return whole["traceEvents"]
        text = self._rest.decode("utf-8", "surrogateescape")
        events, at, is_closed = _one_by_one(text)
        if not is_closed:
            raise DataError(
                f"cannot read {self.path} as a trace: it ends early, after {short(text[:at][-60:] or 'its head')}"
            )
        rest = _parsed(self._closing + b"[" + text[at:].encode("utf-8", "surrogateescape"))
        if not isinstance(rest, list | dict):
            raise DataError(f"cannot read {self.path} as a trace: what follows its events is no JSON")
        if isinstance(rest, dict):
            self.keys |= {key: value for key, value in rest.items() if key != "traceEvents"}
        return events


def _parsed(text: bytes) -> Any:
    """A JSON value, with NaN and keys that come twice as PyTorch writes them; None where it is none."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        pass
    try:
        return json.loads(text.decode("utf-8"), strict=False)
    except (ValueError, RecursionError):
        return None


def _one_by_one(text: str) -> tuple[list[Any], int, bool]:
    """Events of a list, None for each that is no JSON; the place behind the last one, and whether the list ends."""
    found: list[Any] = []
    at = 0
    while True:
        while at < len(text) and text[at] in " \t\r\n,":
            at += 1
        if at >= len(text) or text[at] == "]":
            return found, at, at < len(text)
        try:
            value, end = _JSON.raw_decode(text, at)
            found.append(None if _NO_TEXT.search(text, at, end) else value)
            at = end
        except (ValueError, RecursionError):
            following = _NEXT.search(text, at)
            if following is None:
                return found, at, False
            found.append(None)
            at = following.end()
