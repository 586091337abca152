"""NeuSight's own files become the rows of its table; they come from a server once, checked by what their rows say."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from cdmpp import devices
from cdmpp.data import sources
from cdmpp.data.importers import neusight_source
from cdmpp.data.importers.neusight import import_neusight
from cdmpp.data.importers.neusight_source import (
    COMMIT,
    DEVICES,
    PLACE,
    download,
    files_of,
    pinned_files,
    read_file,
    read_files,
)
from cdmpp.data.loading import load_dataset
from cdmpp.data.records import read_records
from cdmpp.data.sources import data_folders
from cdmpp.errors import DataError, NoRecordsError
from cdmpp.operators.operator import EagerOperator
from tests.data.file_server import address, serving

_NVIDIA = "OPName,Latency,Device,Torch Version,CUDNN Version,Kernel Name,Warps per SM,Grid x,Grid y,Grid z,"
_NVIDIA += "CUDA Version,Kernels,"
_KERNEL = '"void f<float, float>(int, float)"'
"""Names of kernels hold commas."""


def _line(op: str, card: str, latency_ms: str, *sizes: int) -> str:
    told = f"{op},{latency_ms},{card},p2.1.0,8902,{_KERNEL},1.0,5,1,1,cu121,{_KERNEL},"
    return told + ",".join(map(str, sizes)) + "\n"


TRAIN = "dataset/train/collect/{op}/p2.1.0/Tesla T4.csv"
FILES = {
    TRAIN.format(op="linear"): _NVIDIA
    + "B,M,N,K\n"
    + _line("linear", "Tesla T4", "0.052213333547115326", 1, 58, 13, 141)
    + _line("linear", "Tesla T4", "0.25", 1, 64, 128, 256),
    TRAIN.format(op="conv"): _NVIDIA
    + "B,Input_Channel,Output_Channel,Kernel_Szie,Input_Size,Stride,Padding\n"
    + _line("conv", "Tesla T4", "2.5", 4, 8, 16, 3, 14, 1, 1),
    TRAIN.format(op="addu"): _NVIDIA + "B,H\n" + _line("addu", "Tesla T4", "0.03", 64, 128),
    "dataset/test/bmm.csv": _NVIDIA
    + "B,M,N,K\n"
    + _line("bmm", "NVIDIA L4", "0.5", 4, 64, 32, 64)
    + _line("bmm", "NVIDIA H100 80GB HBM3", "0.125", 4, 64, 32, 64)
    + _line("bmm", "Tesla T4", "0.75", 4, 64, 32, 64),
    "dataset_amd/train/collect/ln/p2.4.1/AMD Instinct MI100.csv": "OPName,Latency,Device,Kernel Name,Kernels,B,H\n"
    + f"ln,0.027,AMD Instinct MI100,{_KERNEL},{_KERNEL},60,272\n",
}


def _write(folder: Path) -> Path:
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.fixture
def copy(tmp_path) -> Path:
    return _write(tmp_path / "NeuSight" / PLACE)


@pytest.fixture
def pinned(copy, monkeypatch) -> None:
    """As if these files were the published ones."""
    files = {}
    for name in FILES:
        rows = list(read_file(copy / name, name))
        held = sorted({row["device"] for row in rows})
        files[name] = {"devices": held, "rows": len(rows), "sha256": neusight_source.rows_sum(rows)}
    monkeypatch.setattr(neusight_source, "pinned_files", lambda: files)


@pytest.fixture
def server(pinned):
    with serving({f"/{name}": text.encode() for name, text in FILES.items()}) as running:
        yield running


def test_lines_become_the_rows_of_the_table(copy):
    first, _ = read_file(copy / (name := TRAIN.format(op="linear")), name)
    assert {key: value for key, value in first.items() if value is not None} == {
        **{"device": "t4", "op": "linear", "dtype": "float32", "batch": 1, "rows": 58, "inner": 13, "cols": 141},
        **{"latency_s": 5.2213333547115325e-05, "kernel": _KERNEL.strip('"'), "torch": "2.1.0+cu121", "cudnn": 8902},
        **{"split": "train", "source_line": 2},
    }
    (conv,) = read_file(copy / (name := TRAIN.format(op="conv")), name)
    sizes = ("batch", "in_channels", "out_channels", "kernel_size", "in_size", "stride", "padding")
    assert [conv[size] for size in sizes] == [4, 8, 16, 3, 14, 1, 1] and conv["rows"] is None
    l4, t4 = read_file(copy / "dataset/test/bmm.csv", "dataset/test/bmm.csv")
    assert (l4["device"], l4["split"], t4["device"], t4["source_line"]) == ("l4", "test", "t4", 4), (
        "the H100 is left out"
    )
    (ln,) = read_file(copy / (name := list(FILES)[-1]), name)
    assert (ln["torch"], ln["cudnn"], ln["rows"], ln["cols"]) == ("2.4.1+rocm", None, 60, 272)


def test_a_copy_of_the_repository_is_imported(copy, pinned, tmp_path):
    report = import_neusight(tmp_path / "NeuSight", tmp_path / "out", progress=False)
    assert report.devices == {"l4": 1, "mi100": 1, "t4": 5} and not report.left_out
    record = next(r for r in read_records(tmp_path / "out") if r.latency_s == 2.5e-3)
    operator = EagerOperator.from_json(load_dataset(tmp_path / "out").tasks[record.task_id].op_name)
    assert str(operator) == "conv2d 4x8x16x14x3 padding=1" and record.extra["line"] == "2"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("0.25,", "0.26,"), "not the file of 6945927d9afc"),
        (("0.25,", "fast,"), r"no file of NeuSight's measurements.*near line 3"),
        (("B,M,N,K", "B,M,N,L"), "'K'.* near line 2"),
        (("Device,", "Card,"), "lacks Device"),
    ],
)
def test_a_changed_copy_is_refused(copy, pinned, change, message):
    path = copy / TRAIN.format(op="linear")
    path.write_text(path.read_text().replace(*change))
    with pytest.raises(DataError, match=message):
        list(read_files(copy))


def test_the_files_of_a_device_are_downloaded_once(server, own_cache):
    folder = download("t4", address(server), progress=False)
    assert own_cache in folder.parents and COMMIT[:12] in folder.name
    assert sorted(server.asked) == sorted(f"/{name}" for name in files_of("t4")) and len(server.asked) == 4
    assert sorted({row["op"] for row in read_files(folder, "t4")}) == ["addu", "bmm", "conv", "linear"]
    download("t4", address(server), progress=False)
    assert len(server.asked) == 4
    (folder / TRAIN.format(op="addu")).write_text("changed")
    download("t4", address(server), progress=False)
    assert server.asked[4:] == ["/" + TRAIN.format(op="addu")]


def test_training_finds_them_where_nothing_is_here(server, monkeypatch, tmp_path):
    monkeypatch.setattr(neusight_source, "download", partial(download, base_url=address(server)))
    (folder,) = data_folders("t4", [tmp_path], progress=False, features="library")
    assert {record.device for record in read_records(folder)} == {"t4"} and len(read_records(folder)) == 5
    asked = len(server.asked)
    assert data_folders("t4", [tmp_path], progress=False, features="library") == [folder]
    assert len(server.asked) == asked
    (tmp_path / "here").mkdir()
    import_neusight(tmp_path / "NeuSight", tmp_path / "here" / "own", progress=False)
    assert data_folders("t4", [tmp_path / "here"], features="library") == [tmp_path / "here" / "own"]


@pytest.mark.parametrize("fault", ["other content", "cut", "missing"])
def test_faults_leave_nothing_behind(server, own_cache, monkeypatch, tmp_path, fault):
    path = "/" + TRAIN.format(op="conv")
    if fault == "other content":
        server.files[path] = server.files[path].replace(b"2.5", b"2.6")
    elif fault == "cut":
        server.cut = 1
    else:
        del server.files[path]
    monkeypatch.setattr(neusight_source, "download", partial(download, base_url=address(server)))
    with pytest.raises(NoRecordsError) as error:
        data_folders("t4", [tmp_path / "none"], progress=False, features="library")
    told = str(error.value)
    assert ("not the pinned file" if fault == "other content" else "cannot download") in told
    for part in ("device t4", "none", COMMIT[:12], "source=neusight path=COPY", "device=t4 runtime=torch", "l4, mi100"):
        assert part in told
    left = [file.name for file in own_cache.rglob("*") if file.is_file() and "conv" in str(file)]
    assert not left and not list(own_cache.rglob("*.tmp")) and not list(own_cache.rglob("dataset.json"))


def test_a_device_that_nobody_published_says_so(tmp_path, monkeypatch):
    with pytest.raises(
        NoRecordsError, match=r"(?s)no public source is pinned.*cdmpp data measure device=b200 runtime=torch"
    ):
        data_folders("b200", [tmp_path], features="library")
    with pytest.raises(DataError, match="ansor_features"):
        sources.data_folders("t4", [tmp_path], features="ansor164")


def test_the_pinned_files():
    files = pinned_files()
    assert len(files) == 115 and sum(file["rows"] for file in files.values()) == 331_882
    assert (
        {name for file in files.values() for name in file["devices"]} == set(DEVICES.values()) <= set(devices.names())
    )
    assert all(len(file["sha256"]) == 64 for file in files.values())
    assert len(files_of("t4")) == 21 and len(files_of("l4")) == 5 and not files_of("b200")
