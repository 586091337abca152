"""Content of files that others may have made: unpacked, parsed and held in memory within limits that errors name."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from cdmpp.errors import DataError

if TYPE_CHECKING:  # it takes longer to import than most commands take otherwise
    import pyarrow as pa

MOST_BYTES = 512 * 10**6
"""Most bytes, unpacked, of a file that is parsed as a whole: its values take up to ten times as much memory."""
MOST_LINE_BYTES = 64 * 10**6
"""Most bytes of a line, in a file that is read line by line."""
MOST_TIMES = 250
"""A gzip file may unpack to so many times its size, or to ``FREE_BYTES``. Traces and tuning databases unpack to 10 to
30 times; what holds nothing unpacks to 1,000."""
FREE_BYTES = 10**7
MOST_ROWS = 2 * 10**7
"""Most rows of a Parquet file."""
MOST_TABLE_BYTES = 4 * 10**9
"""Most bytes of the values of a Parquet file in memory."""
_BATCH = 4096
_MAGIC, _CHUNK = b"\x1f\x8b", 1 << 20


def chunks_of(path: Path) -> Iterator[bytes]:
    """Yield the bytes of a file, unpacked where it is gzipped, a megabyte at a time.

    ``DataError``: it cannot be read, it ends early, or it unpacks to more than ``MOST_TIMES`` its size.
    """
    count = 0
    try:
        with path.open("rb") as file:
            most = max(FREE_BYTES, MOST_TIMES * path.stat().st_size)
            gzipped = file.read(2) == _MAGIC
            file.seek(0)
            stream: Any = gzip.GzipFile(fileobj=file) if gzipped else file
            while chunk := stream.read1(_CHUNK):  # what comes before a cut is given
                count += len(chunk)
                if gzipped and count > most:
                    raise DataError(
                        f"{path} of {path.stat().st_size:,} bytes unpacks to more than {most:,}: at most {MOST_TIMES} "
                        f"times its size, or {FREE_BYTES:,} bytes, are read. Unpack it yourself if you trust it"
                    )
                yield chunk
    except FileNotFoundError as error:
        raise DataError(f"no such file: {path}") from error
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"cannot read {path}, it ends early or is not readable: {error}") from error


def content_of(path: Path, most: int = MOST_BYTES) -> bytes:
    """Return the whole content as ``chunks_of`` gives it; ``DataError`` where it is of more than ``most`` bytes."""
    found, count = [], 0
    for chunk in chunks_of(path):
        count += len(chunk)
        if count > most:
            raise DataError(f"{path} holds more than {most:,} bytes, which is the most that is read of such a file")
        found.append(chunk)
    return b"".join(found)


def lines_of(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield number and bytes of each line that is not blank; ``DataError`` as ``chunks_of``, and for endless lines."""
    number, rest = 0, b""
    try:
        for chunk in chunks_of(path):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                number += 1
                if line.strip():
                    yield number, line
            if len(rest) > MOST_LINE_BYTES:
                raise DataError(
                    f"{path} line {number + 1}: longer than {MOST_LINE_BYTES:,} bytes, the most that is read"
                )
    except DataError as error:
        where = f" (after line {number})" if number else ""
        raise DataError(f"{error}{where}") from error
    if rest.strip():
        yield number + 1, rest


def parse_json(text: bytes | str, constant: Callable[[str], Any] | None = None) -> Any:
    """Parse a JSON value; ``ValueError``: it is none, is nested too deep, or has a key twice in one object.

    ``constant``: what becomes of ``NaN`` and infinity, which the standard does not have; None: they are numbers.
    """
    try:
        text = text.decode("utf-8") if isinstance(text, bytes) else text
        return json.loads(text, object_pairs_hook=_once, parse_constant=constant)
    except RecursionError:
        raise ValueError("nested too deep") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start} is not UTF-8") from None


def read_parquet(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """Read a Parquet file as a table, batch by batch so that ``MOST_TABLE_BYTES`` are never passed by much.

    ``DataError`` names a file that is corrupt, or of more than ``MOST_ROWS`` rows.
    """
    import pyarrow as pa

    batches = list(parquet_batches(path, columns))
    return pa.Table.from_batches(batches[1:], batches[0].schema)


def parquet_batches(path: Path, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    """Yield an empty batch with the schema of a Parquet file, and its rows; errors as ``read_parquet``."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            if file.metadata.num_rows > MOST_ROWS:
                raise DataError(f"{path} announces {file.metadata.num_rows:,} rows: at most {MOST_ROWS:,} are read")
            schema, held = file.schema_arrow, 0
            if columns is not None:
                schema = pa.schema([schema.field(name) for name in columns], schema.metadata)
            yield pa.RecordBatch.from_pylist([], schema)
            for batch in file.iter_batches(_BATCH, columns=columns):
                held += batch.nbytes
                if held > MOST_TABLE_BYTES:
                    raise DataError(
                        f"{path} holds more than {MOST_TABLE_BYTES:,} bytes of values, the most that is read"
                    )
                yield batch.replace_schema_metadata(schema.metadata)
    except FileNotFoundError as error:
        raise DataError(f"no such file: {path}") from error
    except (OSError, KeyError, pa.ArrowException) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise DataError(f"cannot read {path}: the Parquet file is corrupt or truncated ({reason})") from error


def read_yaml(path: Path) -> Any:
    """Read plain values of a YAML file; ``DataError`` names it where it cannot be read, or has a key twice."""
    try:
        return yaml.load(content_of(path, FREE_BYTES).decode("utf-8"), Loader=_Loader)
    except (UnicodeDecodeError, yaml.YAMLError, RecursionError, ValueError) as error:
        raise DataError(f"{path}: cannot be read as YAML: {' '.join(str(error).split())}") from error


class _Loader(yaml.SafeLoader):
    """Numbers such as ``2e-3`` are floats, as in YAML 1.2; to PyYAML they are text."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=deep) for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"]
        if twice := _twice(map(str, keys)):
            raise yaml.constructor.ConstructorError(
                None, None, f"the key {twice!r} stands there twice", node.start_mark
            )
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError(f"the key {_twice(key for key, _ in pairs)!r} stands there twice")
    return found


def _twice(names: Iterable[str]) -> str | None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None
