"""Import a database, programs, operators or feature files: ``import_data.py path=DIR device=a100 network=resnet34``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cdmpp import devices
from cdmpp.cli.hydra_entry import entry
from cdmpp.data.importers.ansor_features import import_features
from cdmpp.errors import CdmppError
from cdmpp.execute.executor import LOCAL, executor_address
from cdmpp.model.config import check_keys
from cdmpp.platform.limits import Limits, check_choice, check_fields, fitting_values, hints_of

SOURCES = ("metaschedule", "tvmscript", "ansor_features", "neusight")

_MAPPED = ("tvmscript", "neusight")
"""Sources whose programs are restored one by one, which takes them longer than their way to a worker and back."""


@dataclass(frozen=True)
class ImportSettings:
    """``conf/import_data.yaml`` explains the fields; a value that cannot be raises ``CdmppError``."""

    LIMITS = dict[str, Limits]()

    source: str
    path: Path
    device: str | None = None
    network: str | None = None
    out: Path | None = None
    on_bad: str = "error"
    executor: str = LOCAL

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> ImportSettings:
        """Read the composed configuration."""
        check_keys(values, hints_of(ImportSettings))
        device = values.get("device")
        told = {**values, "device": None if device is None else devices.named(device)}
        return ImportSettings(**fitting_values(told, hints_of(ImportSettings), {}))

    def __post_init__(self) -> None:
        check_fields(self)
        check_choice("source", self.source, SOURCES)
        check_choice("on_bad", self.on_bad, ("error", "skip"))
        if executor_address(self.executor) != LOCAL and self.source not in _MAPPED:
            raise CdmppError(
                f"executor={self.executor}: a line of source={self.source} is read in about 0.1 ms, as long as sending "
                "it to a worker takes, so a cluster gains nothing: leave executor out. It restores programs of "
                f"source={' and source='.join(_MAPPED)}"
            )
        if self.source == "neusight" and self.device is not None:
            raise CdmppError(f"device={self.device}: rows of NeuSight say their device, leave it out")
        if self.source != "neusight":
            if self.device is None:
                raise CdmppError("device=NAME is missing: what the records were measured on, see `cdmpp devices`")
            devices.get(self.device)

    @property
    def folder(self) -> Path:
        """Return the folder that the data set is written to."""
        names = {
            "neusight": "neusight",
            "ansor_features": f"ansor_{self.device}",
            "metaschedule": f"{self.network or 'programs'}_{self.device}",
            "tvmscript": f"{self.network or 'programs'}_{self.device}",
        }
        return self.out or Path("datasets") / names[self.source]


@entry("import_data")
def main(values: dict[str, Any]) -> None:
    """Import into a data set folder and print what was met and written."""
    settings = ImportSettings.from_dict(values)
    path, out, device = settings.path, settings.folder, settings.device or ""
    network: Any = settings.network
    on_bad: Any = settings.on_bad
    report: Any
    if settings.source == "neusight":
        from cdmpp.data.importers.neusight import import_neusight

        report = import_neusight(path, out)
    elif settings.source == "ansor_features":
        report = import_features(path, out, device, on_bad)
    elif settings.source == "metaschedule":
        from cdmpp.data.importers.databases import import_database  # needs TVM

        report = import_database(path, out, device, network, on_bad)
    else:
        from cdmpp.data.importers.programs import import_programs  # needs TVM

        report = import_programs(path, out, device, network, on_bad)
    print(f"{out}: {report}")
