"""Import a database, programs, operators or feature files: ``import_data.py path=DIR device=a100 network=resnet34``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cdmpp.cli.hydra_entry import entry
from cdmpp.data.ansor_features import import_features
from cdmpp.errors import CdmppError


@entry("import_data")
def main(values: dict[str, Any]) -> None:
    """Import into a data set folder and print what was met and written."""
    path, device, network = Path(values["path"]), (values.get("device") or {}).get("name"), values["network"]
    if values["source"] == "neusight":
        if device is not None:
            raise CdmppError(f"device={device}: rows of NeuSight say their device, leave it out")
        from cdmpp.data.neusight import import_neusight

        out = Path(values["out"] or "datasets/neusight")
        print(f"{out}: {import_neusight(path, out)}")
        return
    if device is None:
        raise CdmppError("device=NAME is missing: what the records were measured on, see `cdmpp devices`")
    if values["source"] == "ansor_features":
        out = Path(values["out"] or f"datasets/ansor_{device}")
        print(f"{out}: {import_features(path, out, device, values['on_bad'])}")
    elif values["source"] == "metaschedule":
        from cdmpp.data.importers import import_database  # needs TVM

        out = Path(values["out"] or f"datasets/{network}_{device}")
        print(f"{out}: {import_database(path, out, device, network, values['on_bad'])}")
    elif values["source"] == "tvmscript":
        from cdmpp.data.import_programs import import_programs  # needs TVM

        out = Path(values["out"] or f"datasets/{network or 'programs'}_{device}")
        print(f"{out}: {import_programs(path, out, device, network, values['on_bad'])}")
    else:
        raise CdmppError(f"source is {values['source']!r}: choose metaschedule, tvmscript, ansor_features or neusight")
