"""No output replaces a file that the same command reads, also where another file names it."""

import argparse
from pathlib import Path

import pytest

from cdmpp import cli
from cdmpp.cli.inputs import is_read

LINK = "bytes,seconds\n1,1e-4\n1000000,10.1e-3\n100000000,1000.1e-3\n"
LAYERS = "name,forward_s,backward_s,parameter_bytes,output_bytes,examples\na,0.01,0.02,1000000,1000,8\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "timed.csv").write_text(LINK)
    (tmp_path / "layers.csv").write_text(LAYERS + LAYERS.splitlines()[1].replace("a,", "b,") + "\n")
    (tmp_path / "own.yaml").write_text("batch_s: 0.1\nbatch: 8\nlink: timed.csv\n")
    (tmp_path / "made.py").write_text("def make(seed, worker, workers):\n    raise ValueError\n")
    return tmp_path


@pytest.mark.parametrize(
    ("words", "output"),
    [
        ("synchrony --workers own.yaml,own.yaml --bytes 1MB --policies bsp", "timed.csv"),
        ("synchrony --workers own.yaml --bytes 1MB --policies bsp", "own.yaml"),
        ("synchrony --workers own.yaml --bytes 1MB --policies bsp --link timed.csv", "./timed.csv"),
        ("plan layers.csv --strategies partition --device t4 --devices own,t4 --batch 16", "timed.csv"),
        ("network made.py:make --device t4", "made.py"),
        ("step made.py:make --device t4 --runtime torch", "made.py"),
    ],
)
@pytest.mark.parametrize("option", ["--csv", "--html"])
def test_inputs_stay_as_they_are(folder, capsys, words, output, option):
    before = Path(output).read_bytes()
    assert cli.main([*words.split(), option, output]) == 2
    assert f"cannot write {Path(output)}: the same command reads it" in capsys.readouterr().err
    assert Path(output).read_bytes() == before


def test_a_new_file_beside_them_is_written(folder, capsys):
    assert cli.main([*"synchrony --workers own.yaml --bytes 1MB --policies bsp --csv new.csv".split()]) == 0
    assert cli.main([*"synchrony --workers own.yaml --bytes 1MB --policies bsp --csv new.csv".split()]) == 0
    assert Path("new.csv").read_text() and Path("timed.csv").read_text() == LINK


def test_folders_and_descriptions_are_inputs_but_not_for_reports_in_them(folder):
    for name in ("model/config.json", "model/rows.csv", "conf/device/mine.yaml"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text("{}")
    options = argparse.Namespace(network="hf:model", device="mine", csv=None)
    assert is_read(Path("model/config.json"), options) and not is_read(Path("model/rows.csv"), options)
    assert is_read(Path("conf/device/mine.yaml"), options) and not is_read(Path("conf/device/other.yaml"), options)


def test_weights_beside_an_onnx_file_are_inputs(folder):
    onnx = pytest.importorskip("onnx")
    numpy = pytest.importorskip("numpy")
    helper = onnx.helper
    weights = onnx.numpy_helper.from_array(numpy.ones((2048,), numpy.float32), "w")
    ends = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2048]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "g", ends[:1], ends[1:], [weights])
    onnx.save(
        helper.make_model(graph), "net.onnx", save_as_external_data=True, location="net.weights", size_threshold=0
    )
    assert is_read(Path("net.weights"), argparse.Namespace(network="net.onnx"))
    assert not is_read(Path("timed.csv"), argparse.Namespace(network="net.onnx"))
    assert not is_read(Path("timed.csv"), argparse.Namespace(network="made.onnx"))
