"""Databases of every TVM on PyPI: read, or refused with the version that wrote them."""

from __future__ import annotations

import base64
import gzip
import json
import re
import shutil
import struct
from pathlib import Path

import pytest

pytest.importorskip("tvm")

from cdmpp import cli  # noqa: E402
from cdmpp.data.importers.databases import import_database  # noqa: E402
from cdmpp.errors import DataError  # noqa: E402
from cdmpp.programs.database import BadLine, _graph_of_line, read_lines, read_workloads  # noqa: E402
from cdmpp.programs.replay import replay_on  # noqa: E402

VERSIONS = Path(__file__).parents[1] / "fixtures" / "tvm_versions"
STATED = re.compile(r'("tvm_version": ?)"[^"]+"')


def workload_lines(folder: Path) -> list[str]:
    return gzip.decompress((folder / "database_workload.json.gz").read_bytes()).decode().splitlines()


def written_by(source: Path, folder: Path, version: str | None) -> Path:
    """The database ``source``, its graphs saying another version of TVM, or none."""
    shutil.copytree(source, folder)
    lines = []
    for line in workload_lines(source):
        graph = _graph_of_line(folder, 1, line)
        assert STATED.search(graph)
        stated = STATED.sub(rf'\1"{version}"' if version else '"of": "nobody"', graph)
        packed = base64.b64encode(struct.pack("<Q", len(stated)) + stated.encode()).decode()
        lines.append(json.dumps([json.loads(line)[0], packed]))
    (folder / "database_workload.json.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    return folder


@pytest.mark.parametrize("version", ["0.25.0.post1", "0.26.0"])
def test_a_database_of_an_unread_tvm_is_refused_by_its_version(version, tmp_path, capsys):
    readable = f"written by TVM {re.escape(version)}, .*TVM 0.16 to 0.20 and 0.27 are"
    with pytest.raises(DataError, match=readable):
        read_workloads(VERSIONS / version)
    with pytest.raises(DataError, match=readable):
        import_database(VERSIONS / version, tmp_path / "out", "epyc-genoa", "matmul", on_bad="skip", progress=False)
    assert not (tmp_path / "out").exists()
    assert cli.main(["predict", str(VERSIONS / version), "--device", "epyc-genoa"]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert re.search(readable, said)


def test_a_database_of_this_tvm_before_its_post_release_is_read():
    (module,) = read_workloads(VERSIONS / "0.27.0")
    lines = list(read_lines(VERSIONS / "0.27.0"))
    assert len(lines) == 3
    assert len({replay_on(module, line.schedule).mod.script() for line in lines}) > 1


@pytest.mark.parametrize("version", ["0.16.0", "0.17.0", "0.18.dev0", "0.19.0", "0.20.0"])
def test_legacy_versions_are_read(version, legacy_database, tmp_path):
    folder = written_by(legacy_database, tmp_path / "db", version)
    assert not any(isinstance(one, BadLine) for one in read_workloads(folder))


@pytest.mark.parametrize("version", ["0.11.1", "0.15.0", "0.21.0", "0.27.0", "1.0.0", "nightly"])
def test_other_versions_in_the_legacy_format_are_refused(version, legacy_database, tmp_path):
    with pytest.raises(DataError, match=f"written by TVM {re.escape(version)}"):
        read_workloads(written_by(legacy_database, tmp_path / "db", version))


@pytest.mark.parametrize("version", ["0.20.0", "0.21.0", "0.24.0", "0.26.1", "0.28.0", "0.271.0", "1.27.0"])
def test_other_versions_in_the_newer_format_are_refused(version, native_database, tmp_path):
    with pytest.raises(DataError, match=f"written by TVM {re.escape(version)}"):
        read_workloads(written_by(native_database, tmp_path / "db", version))


@pytest.mark.parametrize("format_of", ["native_database", "legacy_database"])
def test_a_graph_that_states_no_version_is_judged_by_its_nodes(format_of, request, tmp_path):
    folder = written_by(request.getfixturevalue(format_of), tmp_path / "db", None)
    # The gate of newer graphs knows every field, of ``metadata`` as well.
    assert not any(isinstance(one, BadLine) for one in read_workloads(folder))


def test_one_foreign_workload_among_others_is_a_bad_line(native_database, tmp_path):
    shutil.copytree(native_database, tmp_path / "db")
    lines = workload_lines(native_database)
    lines[1] = workload_lines(VERSIONS / "0.26.0")[0]
    (tmp_path / "db" / "database_workload.json.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    found = read_workloads(tmp_path / "db")
    assert [isinstance(one, BadLine) for one in found] == [False, True, False, False]
    assert "workload line 2: written by TVM 0.26.0" in found[1].reason
