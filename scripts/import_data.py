"""Import a MetaSchedule tuning database: ``import_data.py path=DIR device=a100 network=resnet34``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cdmpp.entry import entry  # isort: skip  (first: it puts the module path right)
from cdmpp.data.importers import import_database


@entry("import_data")
def main(values: dict[str, Any]) -> None:
    folder, out = Path(values["path"]), Path(values["out"])
    device = values["device"]["name"]
    report = import_database(folder, out, device, values["network"], values["source"], values["on_bad"])
    print(f"{out}: {report}")


if __name__ == "__main__":
    main()
