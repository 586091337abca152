"""Messages of Chakra's schema, and the file that holds one after the other.

Source: Sridharan et al., *Chakra: Advancing Performance Benchmarking and Co-design using Standardized Execution
Traces*, 2023; MLCommons, ``et_def.proto``. Protocol Buffers' own library is imported where a trace is read or written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from cdmpp.errors import CdmppError, DataError

NODE_TYPES = (
    "INVALID_NODE",
    "METADATA_NODE",
    "MEM_LOAD_NODE",
    "MEM_STORE_NODE",
    "COMP_NODE",
    "COMM_SEND_NODE",
    "COMM_RECV_NODE",
    "COMM_COLL_NODE",
    "STORAGE_NODE",
    "BATCH_NODE",
    "CHECKPOINT_NODE",
)
"""By number."""
COLLECTIVES = (
    "ALL_REDUCE",
    "REDUCE",
    "ALL_GATHER",
    "GATHER",
    "SCATTER",
    "BROADCAST",
    "ALL_TO_ALL",
    "REDUCE_SCATTER",
    "REDUCE_SCATTER_BLOCK",
    "BARRIER",
)
"""By number."""
_VALUES = {
    "double_val": (3, "DOUBLE"), "float_val": (5, "FLOAT"), "int32_val": (7, "INT32"), "int64_val": (9, "INT64"),
    "uint32_val": (11, "UINT32"), "uint64_val": (13, "UINT64"), "sint32_val": (15, "SINT32"),
    "sint64_val": (17, "SINT64"), "fixed32_val": (19, "FIXED32"), "fixed64_val": (21, "FIXED64"),
    "sfixed32_val": (23, "SFIXED32"), "sfixed64_val": (25, "SFIXED64"), "bool_val": (27, "BOOL"),
    "string_val": (29, "STRING"), "bool_list": (28, "BoolList"),
}  # fmt: skip
"""Field of the value of an attribute -> its number and type. Other lists, and bytes, are not read."""
_FIELDS = {
    "BoolList": {"values": (1, "BOOL")},
    "AttributeProto": {"name": (1, "STRING"), **_VALUES},
    "GlobalMetadata": {"version": (1, "STRING"), "attr": (2, "AttributeProto")},
    "Node": {
        "id": (1, "UINT64"), "name": (2, "STRING"), "type": (3, "INT32"), "ctrl_deps": (4, "UINT64"),
        "data_deps": (5, "UINT64"), "start_time_micros": (6, "UINT64"), "duration_micros": (7, "UINT64"),
        "attr": (10, "AttributeProto"),
    },
}  # fmt: skip
_REPEATED = ("attr", "values", "ctrl_deps", "data_deps")
MOST_NODES = 2_000_000
"""Most nodes of one rank."""


class Schema(NamedTuple):
    """These are the classes of the messages."""

    metadata: Any
    node: Any
    attribute: Any


@cache
def schema() -> Schema:
    """Return the classes of the messages; ``CdmppError`` where the library of Protocol Buffers is missing."""
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    except ImportError as error:
        raise CdmppError("Chakra traces need protobuf: pip install 'cdmpp[chakra]'") from error
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="cdmpp/chakra.proto", package="ChakraProtoMsg", syntax="proto3")
    for message, fields in _FIELDS.items():
        made = file.message_type.add(name=message)
        for name, (number, kind) in fields.items():
            label = kinds.LABEL_REPEATED if name in _REPEATED else kinds.LABEL_OPTIONAL
            one = made.field.add(name=name, number=number, label=label)
            if kind in _FIELDS:
                one.type, one.type_name = kinds.TYPE_MESSAGE, f".ChakraProtoMsg.{kind}"
            else:
                one.type = getattr(kinds, f"TYPE_{kind}")
            if name in _VALUES:
                one.oneof_index = 0
        if message == "AttributeProto":
            made.oneof_decl.add(name="value")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = [
        message_factory.GetMessageClass(pool.FindMessageTypeByName(f"ChakraProtoMsg.{name}"))
        for name in ("GlobalMetadata", "Node", "AttributeProto")
    ]
    return Schema(*found)


def file_of(metadata: Any, nodes: Iterable[Any]) -> bytes:
    """Return the content of a file: each message behind its length, the metadata first."""
    found = bytearray()
    for message in (metadata, *nodes):
        content = message.SerializeToString(deterministic=True)
        size = len(content)
        while size > 0x7F:
            found.append(size & 0x7F | 0x80)
            size >>= 7
        found.append(size)
        found += content
    return bytes(found)


def messages_of(content: bytes, path: Path) -> tuple[Any, list[Any]]:
    """Return the metadata and the nodes of a file.

    Raises:
        DataError: a length or message that is cut or broken, too many nodes, or no metadata.
    """
    from google.protobuf.message import DecodeError

    classes, found = schema(), list[Any]()
    for number, part in enumerate(_parts(content, path)):
        if number > MOST_NODES:
            raise DataError(f"{path} has more than {MOST_NODES:,} nodes, the most that is read")
        message = classes.node() if number else classes.metadata()
        try:
            message.ParseFromString(part)
        except (DecodeError, UnicodeDecodeError, ValueError) as error:
            what = f"node {number}" if number else "the metadata"
            raise DataError(f"{path}: {what} is no message of Chakra's schema: {error}") from error
        found.append(message)
    if not found:
        raise DataError(f"{path} is empty: expected a Chakra trace, its metadata and then its nodes")
    return found[0], found[1:]


def _parts(content: bytes, path: Path) -> Iterator[bytes]:
    place = 0
    while place < len(content):
        size = shift = 0
        while True:
            if place == len(content) or shift > 28:
                raise DataError(f"{path} breaks off in the length of a message at byte {place:,}: no Chakra trace")
            byte = content[place]
            size |= (byte & 0x7F) << shift
            place, shift = place + 1, shift + 7
            if byte < 0x80:
                break
        if size > len(content) - place:
            raise DataError(f"{path} announces a message of {size:,} bytes at byte {place:,} and ends before it")
        yield content[place : place + size]
        place += size
