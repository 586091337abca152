"""ModuleSpan: parameters that FSDP gathers together, how it divides each, and which ops need them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from cdmpp.errors import CdmppError, DataError
from cdmpp.platform.limits import Limits, fitting, shown

Rows = tuple[int, int, int]
"""They are of a parameter: length of its first dimension, 0 of a number, which has none; bytes of one row; and length
of the second dimension of experts that are apart, 0 of all others."""

_COUNT = Limits(0, 2**53)


@dataclass(frozen=True)
class ModuleSpan:
    """Parameters of an FSDP module are gathered together, such as those of a transformer block."""

    name: str
    bytes: int
    """Bytes of all its parameters, not sharded, also of those that are not trained."""
    forward: tuple[int, int]
    """Places of the first and the last op of the forward pass that use it."""
    backward: tuple[int, int]
    """The same of the backward pass: parameters must be there before the first, gradients are after the last."""
    is_kept: bool = False
    """True if it stays gathered from the forward to the backward pass, as the root of FSDP2 does."""
    rows: tuple[Rows, ...] = ()
    """How each parameter can be divided. Empty: unknown."""
    trained_rows: tuple[Rows, ...] | None = None
    """The same of the gradients of the parameters that are trained; None: all are. Empty: no gradient is scattered."""
    in_backward: bool = True
    """False if no gradient goes through it, since neither it nor what comes before is trained; ``backward`` is then the
    last op of the backward pass."""
    apart: tuple[str, ...] = ()
    """Degrees along which ranks have other experts, as ``Gradient.apart`` says; empty: it has none."""

    def __post_init__(self) -> None:
        if not (isinstance(self.name, str) and {type(self.is_kept), type(self.in_backward)} == {bool}):
            raise DataError(f"a module is {shown(self)}: expected a name, and whether it is kept")
        if type(self.apart) is not tuple or not all([type(name) is str for name in self.apart]):
            raise DataError(f"module {self.name!r} is apart along {shown(self.apart)}: expected names of degrees")
        for rows in (self.rows, () if self.trained_rows is None else self.trained_rows):
            if not _are_rows(rows):
                fitting(f"rows of module {self.name!r}", rows, tuple[Rows, ...], _COUNT)

    def padded_bytes(self, ranks: int) -> int:
        """Count its bytes as ``fully_shard`` divides them: first dimensions are padded to multiples of ``ranks``.

        Experts of which a rank has fewer than ``ranks`` are divided along their second dimension, as torchtitan's
        ``shard_placement_fn`` does. ``bytes`` where the dimensions are unknown.

        Raises:
            CdmppError: a second dimension that ``ranks`` do not divide evenly, which FSDP2 refuses.
        """
        return _padded_bytes(self.rows, ranks) or self.bytes

    def scattered_bytes(self, ranks: int) -> int:
        """Count the bytes of its gradients, padded as ``padded_bytes``, whose errors it raises."""
        return self.padded_bytes(ranks) if self.trained_rows is None else _padded_bytes(self.trained_rows, ranks)

    def turned_bytes(self, ranks: int) -> int:
        """Count the bytes of its parameters that are divided along their second dimension among ``ranks``."""
        return sum(rows * row_bytes for rows, row_bytes, columns in self.rows if is_turned(rows, columns, ranks))


def is_turned(rows: int, columns: int, ranks: int) -> bool:
    """Return True if FSDP divides a parameter along its second dimension: fewer experts than ``ranks`` (torchtitan)."""
    return columns > 0 and ranks > rows


def _are_rows(rows: Any) -> bool:
    """Tell quickly whether they are triples of numbers, since steps of many batches have many modules."""
    triples = type(rows) is tuple and all(type(row) is tuple and len(row) == 3 for row in rows)
    return triples and all(type(number) is int and number in _COUNT for row in rows for number in row)


@lru_cache(maxsize=2**16)
def _padded_bytes(each: Iterable[Rows], ranks: int) -> int:
    return sum(_divided_bytes(*one, ranks) for one in each)


def _divided_bytes(rows: int, row_bytes: int, columns: int, ranks: int) -> int:
    if not is_turned(rows, columns, ranks):
        return -(-rows // ranks) * ranks * row_bytes
    if columns % ranks:
        raise CdmppError(
            f"{rows} experts of a rank are fewer than the {ranks} ranks that shard them, so that their second "
            f"dimension of {columns} is divided: FSDP2 divides it evenly or not at all; expected {ranks} to divide "
            f"{columns}, or at most {rows} ranks that shard experts"
        )
    return rows * row_bytes
