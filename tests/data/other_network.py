"""A second network's tuning database, made of the first one's."""

from __future__ import annotations

import base64
import gzip
import json
import shutil
import struct
from pathlib import Path


def other_network(database: Path, folder: Path) -> Path:
    """A copy of ``database`` in ``folder``: the same tasks under other block names, with programs of its own."""
    shutil.copytree(database, folder)
    path = folder / "database_workload.json.gz"
    renamed = []
    for line in gzip.decompress(path.read_bytes()).decode().splitlines():
        raw = base64.b64decode(json.loads(line)[1])
        text = raw[8:].decode().replace('"pad_temp"', '"padded"').encode()
        renamed.append(json.dumps(["0", base64.b64encode(struct.pack("<Q", len(text)) + text).decode()]))
    path.write_bytes(gzip.compress("\n".join(renamed).encode()))
    records = folder / "database_tuning_record.json.gz"
    text = gzip.decompress(records.read_bytes()).decode().replace('"pad_temp"', '"padded"')
    # Other latencies, other decisions: new programs.
    records.write_bytes(gzip.compress(text.replace("[0,16,64,512,1024]", "[0,16,64,512,2048]").encode()))
    return folder
