"""Every error a user can meet: says what was given, what is allowed and what to do."""

from __future__ import annotations

from collections.abc import Sequence


class CdmppError(ValueError):
    """Base of all errors raised on purpose by this package."""


class UsageError(CdmppError):
    """An argument or a flag that cannot be, alone or together with the others: the question must change."""


class UnknownDeviceError(UsageError):
    """A device name that no ``conf/device/*.yaml`` describes."""


class UnsupportedNetworkError(CdmppError):
    """A network that cannot be read, exported, copied or lowered; operator and place are named where they are known."""


class UnsupportedProgramError(CdmppError):
    """A tensor program that cannot be turned into a compact AST."""


class DataError(CdmppError):
    """Records, tables or databases that cannot be read, or hold impossible values."""


class NoRecordsError(DataError):
    """No labelled program of the device that was asked for is within reach."""


class MissingToolError(CdmppError):
    """A compiler or disassembler that is not at hand."""


class InfeasiblePlanError(CdmppError):
    """A training step for which no plan fits into memory."""


class ModelFormatError(CdmppError):
    """A model folder that this version cannot load."""


def some(texts: Sequence[str], separator: str = "; ", most: int = 10) -> str:
    """The first of ``texts`` for a message, and how many more there are."""
    more = [f"and {len(texts) - most} more"] if len(texts) > most else []
    return separator.join([*texts[:most], *more])
