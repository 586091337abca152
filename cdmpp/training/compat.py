"""Refuses a torchvision that cannot be imported, before Lightning imports it and ends in a traceback."""

from __future__ import annotations

from cdmpp.errors import CdmppError
from cdmpp.platform.torch_pair import torchvision_fault

if fault := torchvision_fault():
    raise CdmppError(fault)
