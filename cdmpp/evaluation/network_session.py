"""A session of network evaluations: cells that are not there yet are measured, then all are printed as tables."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from cdmpp import devices
from cdmpp.devices import Device
from cdmpp.errors import CdmppError, DataError
from cdmpp.evaluation.network_fit import fit_launch_overheads
from cdmpp.evaluation.network_row import ERRORS, NetworkRow, network_errors, summary
from cdmpp.evaluation.networks import (
    NetworkCell,
    cell_path,
    measure_cell,
    predicted_again,
    read_cell,
    read_cells,
)
from cdmpp.network.compiled.measured import check_is_here
from cdmpp.network.compiled.rule import ScheduleRule
from cdmpp.platform.files import write_json
from cdmpp.platform.limits import Limits, check_fields, fitting
from cdmpp.programs.task import network_family
from cdmpp.programs.zoo import expand_zoo, network_of

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class NetworkSettings:
    """These are the settings of a session. ``conf/evaluate_networks.yaml`` takes its defaults from here."""

    LIMITS = {"batches": Limits(1, 10**6, "examples"), "visits": Limits(1, 1000)}

    device: Any
    """The one that this machine is."""
    zoo: Mapping[str, Any]
    networks: Sequence[str]
    """Names of the zoo; further shapes of one as ``resnet50@r160``."""
    held_out: Sequence[str]
    """Networks of which the model knows no task: they give the error, the others fit what a run adds to its kernels."""
    batches: Sequence[int] = (1, 4)
    schedules: Sequence[str] = ("best_of:16", "untuned")
    chooser: str | None = None
    """Chooses the programs that are run, and predicts them."""
    others: Sequence[str] = ()
    """Models that predict the same programs as well."""
    out: Path = field(default_factory=lambda: Path("outputs/networks"))
    visits: int = 2
    """Visits to each network, with all others between: other guests slow a host for minutes, and the least counts."""

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> NetworkSettings:
        """Read the composed configuration; ``DataError`` for a key that nothing reads."""
        names = {entry.name for entry in fields(NetworkSettings)}
        if unknown := sorted(set(values) - names):
            raise DataError(f"unknown settings {', '.join(unknown)}; known: {', '.join(sorted(names))}")
        return NetworkSettings(
            **{**values, "device": devices.named(values["device"]), "out": fitting("out", values["out"], Path)}
        )

    def __post_init__(self) -> None:
        device = devices.get(self.device)
        check_fields(self)
        for schedule in self.schedules:
            ScheduleRule.parse(schedule)
        check_is_here(device)
        for name in (*self.networks, *self.held_out):
            network_of(expand_zoo(self.zoo), name)


def run_networks(settings: NetworkSettings) -> list[NetworkCell]:
    """Measure what is missing; a network that cannot be run is logged and left out. Returns all cells."""
    device = devices.get(settings.device)
    for visit in range(settings.visits):
        for schedule, batch, network in _cells(settings):
            path = cell_path(settings.out, device.name, schedule, network, batch)
            held_out = network_family(network) in {network_family(name) for name in settings.held_out}
            try:
                cell = read_cell(path) if path.exists() else None
                if cell is None or cell.visits <= visit:
                    new = measure_cell(network, batch, device, schedule, settings.chooser, held_out)
                    cell = new if cell is None else cell.with_visit(new)
                    _keep(path, cell, device)
                for model in settings.others:
                    other = cell_path(settings.out, device.name, schedule, network, batch, Path(model).name)
                    if not other.exists() or read_cell(other).visits < cell.visits:
                        _keep(other, predicted_again(cell, device, model), device)
            except CdmppError as error:
                log.warning("%s, batch %d, %s: %s", network, batch, schedule, error)
    return read_cells(settings.out)


def _keep(path: Path, cell: NetworkCell, device: Device) -> None:
    write_json(path, asdict(cell))
    log.info("%s", _line(cell, device))


def _cells(settings: NetworkSettings) -> Iterator[tuple[str, int, str]]:
    for schedule in settings.schedules:
        for batch in settings.batches:
            for network in dict.fromkeys((*settings.held_out, *settings.networks)):
                yield schedule, batch, network


def _line(cell: NetworkCell, device: Device) -> str:
    errors = cell.errors(device)
    told = ", ".join(f"{name} {errors[name]:+.1%}" for name in ERRORS)
    eager = f", eager PyTorch {1e3 * cell.eager_s:.4g} ms" if cell.eager_s else ""
    what = f"{cell.network} batch {cell.batch} {cell.schedule} {cell.model}"
    return f"{what}: {1e3 * cell.measured_s:.4g} ms measured{eager}; {told}"


def fitted(cells: Sequence[NetworkCell]) -> dict[str, Device]:
    """Give each device what a run adds to its kernels, by networks not held out; as it is where they are few."""
    found = {}
    for name in sorted({cell.device for cell in cells}):
        sheet = devices.get(name)
        known = [cell for cell in cells if cell.device == name and not cell.held_out]
        try:
            found[name] = replace(sheet, launch_overheads=fit_launch_overheads(known, sheet))
        except CdmppError as error:
            log.warning("%s; what the file of %s says stands", error, name)
            found[name] = sheet
    return found


def rows_of(cells: Sequence[NetworkCell], sheets: Mapping[str, Device]) -> list[NetworkRow]:
    """Make a row of each cell, by the sheet of its device."""
    return [NetworkRow.of(cell, sheets[cell.device]) for cell in cells]


def write_figures(rows: Sequence[NetworkRow], sheets: Mapping[str, Device], out: Path) -> None:
    """Write ``networks.json`` under ``out``: rows, engines, and the errors that intervals are made of."""
    content = {
        "rows": summary(rows),
        "engines": {name: asdict(sheet.launch_overheads) for name, sheet in sheets.items()},
        "errors": network_errors(row for row in rows if row.held_out),
    }
    write_json(out / "networks.json", content)
