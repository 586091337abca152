"""Every error a user can meet: says what was given, what is allowed and what to do."""

from __future__ import annotations

from collections.abc import Sequence


class CdmppError(ValueError):
    """Every error that this package raises on purpose is one of these."""


class UsageError(CdmppError):
    """An argument or a flag cannot be, alone or together with the others: the question must change."""


class UnknownDeviceError(UsageError):
    """No ``conf/device/*.yaml`` describes a device of this name."""


class UnsupportedNetworkError(CdmppError):
    """A network cannot be read, exported, copied or lowered; operator and place are named where they are known."""


class UnsupportedProgramError(CdmppError):
    """A tensor program cannot be turned into a compact AST."""


class DataError(CdmppError):
    """Records, tables or databases cannot be read, or hold impossible values."""


class NoRecordsError(DataError):
    """No labelled program of the device that was asked for is within reach."""


class MissingToolError(CdmppError):
    """A compiler or disassembler is not at hand."""


class RemoteError(CdmppError):
    """A server cannot be reached, has no time, or is of another version."""


class InfeasiblePlanError(CdmppError):
    """No plan for this training step fits into memory."""


class ModelFormatError(CdmppError):
    """This version cannot load the model folder."""


def some(texts: Sequence[str], separator: str = "; ", most: int = 10) -> str:
    """Name the first of ``texts`` for a message, and how many more there are."""
    more = [f"and {len(texts) - most} more"] if len(texts) > most else []
    return separator.join([*texts[:most], *more])
